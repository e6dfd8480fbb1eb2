"""Profiling from Python: one call, a run back. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from tilescope import store, supervisor
from tilescope.plan import AUTO, Request, plan
from tilescope.store import LoadedRun


def profile(
    *kernels: str,
    implementations: Sequence[str] = (),
    workloads: Sequence[str] = (),
    directions: Sequence[str] = (),
    collectors: Sequence[str] = (AUTO,),
    configs: Sequence[str] = (),
    target: str = "",
    title: str = "",
    runs_dir: Path | str | None = None,
    on_event: Callable[[dict[str, Any]], None] = lambda event: None,
    **settings: Any,
) -> LoadedRun:
    """Runs ``kernels`` (catalog names or ``path/to/file.py:SPEC``) and returns the finished run.

    The arguments are those of ``plan.Request``; ``settings`` those of ``supervisor.Job``. ``on_event`` hears the
    progress. Works where an event loop already runs, as in JupyterLab. Raises ValueError, in one line, for a
    request that cannot be served.
    """
    request = Request(
        kernels, implementations, workloads, directions, collectors, configs, target, settings=settings, title=title
    )

    async def work() -> Path:
        return await supervisor.run(await plan(request, Path(runs_dir) if runs_dir else None), on_event)

    return store.open_run(_wait_for(work))


def _wait_for(work: Callable[[], Coroutine[Any, Any, Path]]) -> Path:
    """Runs ``work`` to its end, in a thread of its own where this one's event loop is busy."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    outcome: list[Path | BaseException] = []
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Path]]] = []

    async def watched() -> Path:
        task = asyncio.ensure_future(work())
        started.append((asyncio.get_running_loop(), task))
        return await task

    def run() -> None:
        try:
            outcome.append(asyncio.run(watched()))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, name="tilescope-profile")
    thread.start()
    try:
        thread.join()
    except KeyboardInterrupt:
        for loop, task in started:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]
