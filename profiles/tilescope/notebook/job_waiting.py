"""Waits for a job from Python code, in another thread where an event loop already runs. Imports neither torch nor triton."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilescope.jobs import supervisor, warm
from tilescope.jobs.job import Catalog, OnEvent
from tilescope.jobs.plan import Request, plan
from tilescope.runs import store


def run(request: Request, folder: Path, on_event: OnEvent, catalog: Catalog = ()) -> store.LoadedRun:
    """Plans and runs the request, and opens the run. Raises as ``profile`` does.

    ``catalog`` has the kernels' declarations; a worker is asked if it is empty.
    """
    warm.prepare()

    async def work(on_event: OnEvent) -> Path:
        return await supervisor.run(await plan(request, folder, catalog), on_event)

    return store.open_run(wait_for(work, on_event))


def wait_for(work: Callable[[OnEvent], Coroutine[Any, Any, Path]], on_event: OnEvent) -> Path:
    """Runs ``work`` to its end, in another thread where this one runs an event loop.

    ``on_event`` is called in this thread. Raises as ``work`` does; a KeyboardInterrupt says how to open the kept cases.
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
        looping = False
    else:
        looping = True
    try:
        return _in_a_thread(work, heard) if looping else asyncio.run(work(heard))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*kept) from None


def _in_a_thread(work: Callable[[OnEvent], Coroutine[Any, Any, Path]], on_event: OnEvent) -> Path:
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Path]]] = []
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    async def watched() -> Path:
        task = asyncio.ensure_future(work(events.put))
        started.append((asyncio.get_running_loop(), task))
        return await task

    def run() -> Path:
        try:
            return asyncio.run(watched())
        finally:
            events.put(None)

    def relay() -> None:
        while (event := events.get()) is not None:
            on_event(event)

    with ThreadPoolExecutor(1, "tilescope-profile") as thread:
        outcome = thread.submit(run)
        try:
            relay()
        except BaseException as error:
            for loop, task in started:
                loop.call_soon_threadsafe(task.cancel)
            # An ``on_event`` that raises also ends the job, and is not called again.
            if isinstance(error, KeyboardInterrupt):
                relay()
            raise
    return outcome.result()
