"""A script that runs in a worker process, which then collects what needs no other process: it has the launches compiled already.

``profile`` is this process's side, ``serve`` the worker's. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from tilescope.hardware import device, gpu_lock
from tilescope.jobs import triton_setup, warm
from tilescope.jobs.job import IN_TURN, ON_GPU, Job, OnEvent, patience
from tilescope.jobs.process import Standby, WorkerProcess
from tilescope.runs import places

#: Collectors that the script's process runs itself.
EARLY = tuple(name for name in IN_TURN if name in ON_GPU)
#: Seconds between two looks of a process that waits.
_LOOK = 0.01


async def profile(
    script: str,
    settings: Mapping[str, Any],
    *,
    on_event: OnEvent,
    on_output: Callable[[bytes], None] | None = None,
    runs_dir: Path | None = None,
    standing: Mapping[str, Standby] | None = None,
    worker: WorkerProcess | None = None,
    **options: Any,
) -> tuple[Job, Path, str]:
    """Runs the script and profiles its launches.

    Returns the job, the run's folder, and how the script ended badly or an empty text.

    ``settings`` and the ``options`` are those of ``script_running.captured``. ``on_event`` gets the job's events, and before them
    ``files`` with the ``texts`` of the script's own files and ``captured`` with the first launch that was ``unmade``, and ``why``.
    ``on_output`` gets the script's output; without it the script has this process's standard input and output, and an interrupt ends
    the script alone. ``standing`` is as in ``supervisor.run``. ``worker`` is an entered process of ``started`` that waits. Raises
    ValueError for a script that cannot be run, that launches nothing, or that ends its process.
    """
    async with contextlib.AsyncExitStack() as stack:
        if worker:
            stack.push_async_exit(worker)
            worker.on_output = on_output or bytes
            worker.let_go()
        else:
            new = started(script, settings, on_output=on_output, runs_dir=runs_dir, **options)
            worker = await stack.enter_async_context(new)
        events = await stack.enter_async_context(contextlib.aclosing(worker.events(math.inf)))
        with _interrupting(worker.pid) if on_output is None else contextlib.nullcontext(list[int]()) as interrupts:
            from tilescope.jobs import supervisor  # noqa: PLC0415 - the script runs beside these imports
            from tilescope.notebook import capturing  # noqa: PLC0415

            try:
                captured = await _captured(events, on_event)
                if captured is None:
                    raise ValueError(f"{script}: its process {worker.ending()}")
            except ValueError:
                if interrupts:  # before it launched anything
                    raise asyncio.CancelledError from None
                raise
        worker.patience = patience(settings)
        early, job = supervisor.Early(_early(), events, worker.stop), Job.from_json(captured["job"])
        folder = await supervisor.run(job, on_event, early, standing)
        capturing.keep(Path(captured["folder"]), folder)
        return job, folder, captured["ended"]


def started(
    script: str,
    settings: Mapping[str, Any],
    *,
    on_output: Callable[[bytes], object] | None = None,
    runs_dir: Path | None = None,
    waits: bool = False,
    **options: Any,
) -> WorkerProcess:
    """The process of ``profile``. One that ``waits`` makes a CUDA context and starts CUPTI, which take a second, and begins once it is let go."""
    places.check_writable(runs_dir or places.runs_dir())  # not after a script that ran for an hour
    triton_setup.check_cache()
    asked = {
        "action": f"{serve.__module__}.serve", "script": script, "settings": dict(settings), "options": options,
        "runs_dir": str((runs_dir or places.runs_dir()).absolute()), "waits": waits,
        "lock": str(gpu_lock.path(device.lock_name())),
    }  # fmt: skip
    return WorkerProcess(asked, on_output=on_output or bytes, attached=on_output is None)


async def _captured(events: AsyncIterator[dict[str, Any]], on_event: OnEvent) -> dict[str, Any] | None:
    """The event of a script that has ended; None where its process has. Raises ValueError for a script that cannot be profiled."""
    async for event in events:
        if event["event"] == "error":
            raise ValueError(event["message"])
        if event["event"] in ("files", "captured"):
            on_event(event)
        if event["event"] == "captured":
            return event
    return None


@contextlib.contextmanager
def _interrupting(pid: int) -> Iterator[list[int]]:
    """Meanwhile passes interrupts of this process on to the process ``pid``, and is not interrupted itself. Yields those so far."""
    passed: list[int] = []

    def on(number: int, frame: object) -> None:
        passed.append(number)
        os.kill(pid, number)

    before = signal.signal(signal.SIGINT, on)
    try:
        yield passed
    finally:
        signal.signal(signal.SIGINT, before)


def serve(job: Mapping[str, Any], emit: Callable[[Mapping[str, Any]], None]) -> int:
    """The worker's action: runs a script, tells the job that profiles it, and collects what needs no other process.

    ``job`` has ``script``, ``settings``, the ``options`` of ``captured``, whether it ``waits``, and ``lock``, the file of the GPU's
    lock. Returns the exit status.
    """
    from tilescope.jobs.worker import main  # noqa: PLC0415 - a worker has it imported
    from tilescope.notebook import script_running  # noqa: PLC0415

    if job["waits"]:
        _wait(Path(job["temporary"]))
    before, folder = set(sys.modules), Path(tempfile.mkdtemp())
    with contextlib.suppress(AttributeError):  # another stream
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        capture, asked, ended = script_running.captured(
            job["script"], job["settings"], runs_dir=Path(job["runs_dir"]), **job["options"]
        )
    finally:
        texts = {str(path): path.read_text(errors="replace") for path in own_files(before, job["script"])}
        emit({"event": "files", "texts": texts})
    triton_setup.check_cache()  # the script may have named another folder
    emit({
        "event": "captured", "job": asked.to_json(), "ended": ended, "folder": str(capture.written),
        "unmade": capture.unmade, "why": capture.why_unmade,
    })  # fmt: skip
    del capture
    gc.collect()
    given = {(one.collector, one.case) for one in asked.given}
    for name in filter([*asked.collectors].__contains__, _early()):
        cases = [case for case in asked.cases if (name, case) not in given]
        with gpu_lock.held(Path(job["lock"])) if name in ON_GPU else contextlib.nullcontext():
            if status := main.collect(name, cases, folder / name, asked.settings, emit):
                return status
    return 0


def _wait(temporary: Path) -> None:
    from tilescope.collectors.cupti import counters  # noqa: PLC0415 - as above

    with contextlib.suppress(Exception):  # the first count reports it
        counters.start_ahead()
    # Without a word, unlike other jobs that wait: nobody reads events before the save, and a full pipe would block.
    while not temporary.with_name(warm.GO).exists():
        time.sleep(_LOOK)


def _early() -> tuple[str, ...]:
    """The collectors that the script's process runs itself. Free processors compile meanwhile, which needs no GPU."""
    from tilescope.jobs import supervisor  # noqa: PLC0415

    return EARLY if supervisor.roomy() else (*EARLY, "compiler")


def own_files(before: Collection[str], script: str) -> list[Path]:
    """The script and the files that it imported, except those of installed packages, of Python and of Tilescope."""
    fresh = [module for name, module in sys.modules.items() if name not in before and not name.startswith("tilescope")]
    from tilescope.notebook import script_running  # noqa: PLC0415

    files = [script, *(getattr(module, "__file__", None) for module in fresh)]
    paths = dict.fromkeys(Path(file).resolve() for file in files if file and file.endswith(".py"))
    return [path for path in paths if script_running.is_own(str(path))]
