"""``tilescope.profile`` and ``tilescope.resume``: run kernels from Python. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
import queue
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.jobs import resident, supervisor
from tilescope.jobs.job import Catalog, OnEvent
from tilescope.jobs.plan import AUTO, Request, plan
from tilescope.notebook import cell_source, live_progress, user_kernel
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store

if TYPE_CHECKING:
    from tilescope_kernels.spec import KernelSpec

#: Folder, below that of runs, of the modules that cells were written to.
CELLS = "cells"


def profile(
    *kernels: Any,
    inputs: Mapping[str, Any] | None = None,
    reference: Callable[..., Any] | None = None,
    implementations: Sequence[str] = (),
    workloads: Sequence[str] = (),
    directions: Sequence[str] = (),
    collectors: Sequence[str] = (AUTO,),
    configs: Sequence[str] = (),
    target: str = "",
    title: str = "",
    runs_dir: Path | str | None = None,
    on_event: OnEvent | None = None,
    **settings: Any,
) -> Profile:
    """Runs ``kernels`` and returns the finished run.

    Each is a name from the catalog, ``path/to/file.py:SPEC``, a ``KernelSpec``, or a function that launches a Triton
    kernel, with examples of its ``inputs`` and its ``reference`` (see ``tilescope.spec``). What a notebook's cells define is
    written to a file for the worker (see ``cell_source``). The other arguments are those of ``jobs.plan.Request``,
    ``settings`` those of ``jobs.job.Job``.

    ``on_event`` is called with each event of the job; without it, the progress is shown in a notebook and on a terminal.
    Works where an event loop already runs, as in JupyterLab. Raises ValueError, in one line, for a request that cannot be
    served. Interrupting stops the workers and keeps the finished cases: the KeyboardInterrupt says how to open them.
    """
    folder = Path(runs_dir) if runs_dir else store.runs_dir()
    store.check_writable(folder)
    names = [reference_to(kernel, folder / CELLS, inputs, reference) for kernel in kernels]
    request = Request(
        names, implementations, workloads, directions, collectors, configs, target, settings=settings, title=title
    )
    loaded = run(request, folder, on_event or live_progress.progress())
    # A run that is handed on takes its source along.
    for file in (Path(name.rpartition(":")[0]) for name in names):
        if file.parent == folder / CELLS:
            (loaded.folder / CELLS).mkdir(exist_ok=True)
            shutil.copy(file, loaded.folder / CELLS)
    return Profile.of(loaded)


def resume(name: Path | str, on_event: OnEvent | None = None) -> Profile:
    """Goes on with an interrupted run, by its id, its folder or ``latest``, and returns it when it is finished.

    ``on_event`` as ``profile`` has it. Raises ValueError, in one line, for a run that is whole, or that was made on another
    device, with other versions or other code.
    """
    folder = store.find_interrupted(str(name))

    async def work(on_event: OnEvent) -> Path:
        return await supervisor.resume(folder, on_event)

    return Profile.of(store.open_run(_wait_for(work, on_event or live_progress.progress())))


def run(request: Request, folder: Path, on_event: OnEvent, catalog: Catalog = ()) -> store.LoadedRun:
    """Serves the request and opens the run. Raises as ``profile`` does.

    ``catalog`` is what the kernels declare; empty means that a worker is asked.
    """
    resident.prepare()

    async def work(on_event: OnEvent) -> Path:
        return await supervisor.run(await plan(request, folder, catalog), on_event)

    return store.open_run(_wait_for(work, on_event))


def reference_to(
    kernel: Any, folder: Path, inputs: Mapping[str, Any] | None = None, reference: Callable[..., Any] | None = None
) -> str:
    """The text that a worker finds ``kernel`` by: a name of the catalog, or a file, which may be written into ``folder``.

    Raises ValueError (or CannotCarry, which is one) for what is no kernel and for what cannot be written down.
    """
    if isinstance(kernel, str):
        return kernel
    if hasattr(kernel, "implementations"):
        return _imported(kernel) or cell_source.write_spec(kernel, folder)
    user_kernel.check_launcher(kernel)
    if inputs is None or reference is None:
        name = getattr(kernel, "__name__", repr(kernel))
        raise ValueError(
            f"{name}: say what it takes and what is right, as in profile({name}, inputs={{'x': torch.randn(64, 100)}}, "
            "reference=in_plain_pytorch)"
        )
    return cell_source.write_spec(user_kernel.spec(kernel, inputs=inputs, reference=reference), folder)


def _imported(spec: KernelSpec) -> str:
    """The name or file of a spec that is a variable of an imported module (the one that draws its inputs); else empty."""
    module = sys.modules.get(spec.inputs.__module__)
    name = next((name for name, value in vars(module).items() if value is spec), "") if module else ""
    if not module or not name or module.__name__ == "__main__":
        return ""
    if any(known is spec for known in getattr(sys.modules.get("tilescope_kernels"), "CATALOG", ())):
        return spec.name
    return f"{module.__file__}:{name}"


def _wait_for(work: Callable[[OnEvent], Coroutine[Any, Any, Path]], on_event: OnEvent) -> Path:
    """Runs ``work`` to its end, in another thread where this one runs an event loop.

    ``on_event`` is called in this thread. Raises what ``work`` raises, KeyboardInterrupt with what was kept.
    """
    kept: list[str] = []

    def heard(event: dict[str, Any]) -> None:
        if event.get("event") == "done" and event.get("folder") and not event.get("complete"):
            run = repr(event["run"])
            kept.append(f"interrupted: tilescope.load({run}) opens the finished cases, tilescope.resume({run}) goes on")
        on_event(event)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        wait = _in_this_thread
    else:
        wait = _in_a_thread
    try:
        return wait(work, heard)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*kept) from None


def _in_this_thread(work: Callable[[OnEvent], Coroutine[Any, Any, Path]], on_event: OnEvent) -> Path:
    return asyncio.run(work(on_event))


def _in_a_thread(work: Callable[[OnEvent], Coroutine[Any, Any, Path]], on_event: OnEvent) -> Path:
    outcome: list[Path | BaseException] = []
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Path]]] = []
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    async def watched() -> Path:
        task = asyncio.ensure_future(work(events.put))
        started.append((asyncio.get_running_loop(), task))
        return await task

    def run() -> None:
        try:
            outcome.append(asyncio.run(watched()))
        except BaseException as error:
            outcome.append(error)
        events.put(None)

    def relay() -> None:
        while (event := events.get()) is not None:
            on_event(event)

    thread = threading.Thread(target=run, name="tilescope-profile")
    thread.start()
    try:
        relay()
    except BaseException as error:
        for loop, task in started:
            loop.call_soon_threadsafe(task.cancel)
        # An ``on_event`` that raises ends the job as well, and hears no more of it.
        if isinstance(error, KeyboardInterrupt):
            relay()
        raise
    finally:
        thread.join()
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
