"""Waits for a job from Python code, and shows its progress in a notebook's output or on Python's terminal."""

from __future__ import annotations

import asyncio
import importlib
import queue
import sys
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

from tilescope.jobs import supervisor, warm
from tilescope.jobs.job import Catalog, OnEvent
from tilescope.jobs.plan import Request, plan
from tilescope.jobs.progress import Progress, TerminalLine
from tilescope.runs import store


def progress() -> Progress:
    """The display to call with each event of a job: an output of the cell, a line on a terminal, or none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and hasattr(shell, "kernel"):
        return CellOutput()
    return TerminalLine() if sys.stderr is not None and sys.stderr.isatty() else Progress()


class Telling:
    """Shows what is being done, from its first message on, and that it was ``done`` at its end."""

    def __init__(self, done: str) -> None:
        self._done = done
        self._shown: Progress | None = None

    def __call__(self, doing: str) -> None:
        if self._shown is None:
            self._shown = progress()
        self._shown({"event": "waiting", "doing": doing})

    def close(self) -> None:
        if self._shown is not None:
            self._shown.ended = self._shown.doing = self._done
            self._shown.show({})


class CellOutput(Progress):
    """One output of the cell, updated in place."""

    def __init__(self) -> None:
        super().__init__()
        # Imported by name, because only notebooks have it.
        ipython = importlib.import_module("IPython.display")
        self._html = ipython.HTML
        self._output = ipython.display(self._html(self.html()), display_id=True)

    def html(self) -> str:
        """A bar and a line of escaped text; the bar goes when the job has ended."""
        bar = f'<progress value="{self.index}" max="{max(self.of, 1)}" style="width: 240px"></progress> '
        return (
            f'<div role="status" style="overflow-wrap: anywhere">{"" if self.ended else bar}{escape(self.line())}</div>'
        )

    def show(self, event: Mapping[str, Any]) -> None:
        self._output.update(self._html(self.html()))


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
