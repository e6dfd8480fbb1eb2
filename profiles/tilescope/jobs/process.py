"""Starts a worker process, reads its events, stops it, and reports how it ended.

A bounded part of its output is kept. At its end all processes that it started are killed. Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from tilescope.jobs import machine_limits, resident, standby, worker_start
from tilescope.jobs.worker_output import BoundedLog, EventLines
from tilescope.jobs.worker_start import StartedProcess, WorkerFolder, Wrap
from tilescope.table.sources import KNOWN

#: Least seconds that a worker has for its imports before its first case.
STARTUP = 120.0
#: Seconds that a worker has to end after SIGTERM before it is killed.
GRACE = 3.0
#: Bytes read at a time, and the most reads after the process has ended, because others may still write.
_PIECE, _LAST = 64 << 10, 64
#: The most looks at a process without an environment, and the seconds in between.
_LOOKS, _PAUSE = 5, 0.01


class StartError(RuntimeError):
    """A worker that cannot be started. The message has the reason; ``lacking`` names the machine's lacking resource, if any."""

    def __init__(self, message: str, lacking: str = "") -> None:
        super().__init__(message)
        self.lacking = lacking


class WorkerProcess:
    """A process ``python -m tilescope.jobs.worker`` on one job, in a process group of its own.

    It is forked from the fork server, or taken from standby under a wrapper, or started cold. ``wrap`` may change the command line
    (ncu goes in front of it); ``environment`` adds variables. Use it as an asynchronous context manager, which stops the process
    at its end. ``status`` is the exit status once ``events`` has ended; ``silent`` is True when it was killed for not answering.
    """

    def __init__(
        self, job: Mapping[str, Any], wrap: Wrap | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._job, self._wrap, self._environment = dict(job), wrap, dict(environment or {})
        self._folder: WorkerFolder | None = None
        self._lines, self._log = EventLines(), BoundedLog()
        self._process: StartedProcess | resident.Forked | None = None
        self._patience = 0.0
        self._left = False
        self.status: int | None = None
        self.silent = False

    async def __aenter__(self) -> WorkerProcess:
        """Raises StartError when the command cannot be started."""
        try:
            await self._start()
        except BaseException as error:
            self._close()
            if not isinstance(error, Exception):
                raise
            what = (
                f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
            )
            raise StartError(f"the worker cannot be started: {what}", machine_limits.lacking(error)) from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        try:
            await self.stop()
        finally:
            self._close()

    async def _start(self) -> None:
        """Takes a worker from standby, has one forked, or starts one."""
        standing = standby.take(self._wrap, self._environment) if self._wrap else None
        self._folder = folder = standing.folder if standing else WorkerFolder()
        folder.describe(self._job)
        if standing:
            self._process = StartedProcess(standing.process)
        else:
            argv, variables = (
                worker_start.command(folder, self._wrap),
                worker_start.variables(folder, self._environment),
            )
            if not self._wrap:
                self._process = await resident.fork(folder.job, variables, folder.writing, self._on_gpu())
            if self._process is None:
                self._process = StartedProcess(worker_start.start(folder, argv, variables))
            folder.hand_over()
        asyncio.get_running_loop().add_reader(folder.output, self._hear_output)

    def _on_gpu(self) -> bool:
        """Whether the job needs exclusive use of the GPU."""
        collector = KNOWN.get(str(self._job.get("collector")))
        return self._job.get("action") == "ceilings" or bool(collector and collector.on_gpu)

    def _hear_output(self) -> None:
        if self._folder and not self._take_output():
            asyncio.get_running_loop().remove_reader(self._folder.output)

    def _take_output(self) -> bool:
        """Adds one piece of output to the log. Returns False when every writer has closed the pipe."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._folder.output, _PIECE) if self._folder else b""
            self._log.write(piece)
            return bool(piece)
        return True

    async def events(self, patience: float) -> AsyncIterator[dict[str, Any]]:
        """The worker's events until it has ended. Kills it after ``patience`` seconds without a new event.

        Before its first event, and after ``start``, it has at least ``STARTUP`` seconds.
        """
        assert self._process is not None  # noqa: S101 - only used inside the context
        self._patience = patience
        clock = asyncio.get_running_loop().time
        heard, limit, last = clock(), max(patience, STARTUP), None
        ended = asyncio.ensure_future(self._process.wait())
        try:
            while True:
                await self._said(ended, heard + limit - clock())
                done = ended.done()
                for event in self.drain() if done else self._take_events() or ():
                    if event != last:  # repeated events are no progress
                        heard, limit = clock(), max(patience, STARTUP) if event["event"] == "start" else patience
                    last = event
                    yield event
                if done or self._left:
                    break
                if clock() - heard > limit:
                    self.silent, heard = True, clock()
                    _signal_group(self._process.pid, signal.SIGKILL)
            self.status = 0 if self._left else ended.result()
        finally:
            ended.cancel()

    async def _said(self, ended: asyncio.Future[int], seconds: float) -> None:
        """Waits for data in the pipe of events, for the process's end, or for this many seconds."""
        assert self._folder is not None  # noqa: S101 - only used inside the context
        loop, pipe = asyncio.get_running_loop(), self._folder.events
        come: asyncio.Future[Any] = loop.create_future()
        waited: set[asyncio.Future[Any]] = {ended, come}
        # Only while waiting: otherwise the callback would fire repeatedly while an event is handled.
        loop.add_reader(pipe, lambda: None if come.done() else come.set_result(None))
        try:
            await asyncio.wait(waited, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            loop.remove_reader(pipe)

    def _take_events(self) -> list[dict[str, Any]] | None:
        """Events completed by the next piece of the pipe; None when the pipe is empty."""
        with contextlib.suppress(BlockingIOError):
            piece = os.read(self._folder.events, _PIECE) if self._folder else b""
            return self._lines.feed(piece) if piece else None
        return None

    def drain(self) -> list[dict[str, Any]]:
        """All events in the pipe."""
        found: list[dict[str, Any]] = []
        for _ in range(_LAST):
            fresh = self._take_events()
            if fresh is None:
                break
            found += fresh
        return found

    def leave(self) -> None:
        """Stops waiting for the exit of a worker that is done, which would take as long as a small case.

        A cold process is still waited for.
        """
        self._left = isinstance(self._process, resident.Forked)

    async def stop(self) -> None:
        """Ends the process group: SIGTERM, then SIGKILL after ``GRACE`` seconds, or at once after ``leave`` or a cancellation."""
        process = self._process
        if process is None:
            return
        try:
            if process.returncode is None and not self._left:
                _signal_group(process.pid, signal.SIGTERM)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), GRACE)
        finally:
            # Also kills processes that the worker left behind, even in groups of their own.
            _signal_group(process.pid, signal.SIGKILL)
            if self._folder:
                _kill_marked(self._folder.mark)
            if not self._left:
                await process.wait()

    def take_wrapped(self, folder: Path) -> None:
        """Moves the wrapper's files into ``folder``. Raises OSError."""
        for file in self._folder.wrapped.iterdir() if self._folder else ():
            shutil.move(file, folder / file.name)

    def log(self) -> str:
        """The output of the worker and its wrapper; the beginning and the end where it is long."""
        if self._folder:
            # Not until its end, because a process that outlives the worker may hold the pipe open.
            for _ in range(_LAST):
                known = self._log.written
                if not self._take_output() or self._log.written == known:
                    break
        said = self._log.text()
        ignored = self._lines.ignored
        return f"{said}\n[{ignored} lines in the worker's stream of events were no events]" if ignored else said

    @property
    def signal(self) -> str:
        """The name of the signal that ended the process; empty where none did."""
        status = self.status or 0
        # A shell or ncu reports a signal of its child as 128 + its number.
        number = -status if status < 0 else status - 128
        if status < 0 or 128 < status < 160:
            with contextlib.suppress(ValueError):
                return signal.Signals(number).name
        return ""

    def ending(self) -> str:
        """The process's end as text: ``was killed (SIGKILL)``, ``ended with status 1``."""
        if self.silent:
            return f"did not answer for {self._patience:g} s and was killed"
        if name := self.signal:
            return f"{'was killed' if name in machine_limits.FROM_OUTSIDE else 'crashed'} ({name})"
        return f"ended with status {self.status or 0}"

    def _close(self) -> None:
        if isinstance(self._process, resident.Forked):
            self._process.close()
        if self._folder:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._folder.output)
            self._folder.close()
            self._folder = None


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _kill_marked(mark: str) -> None:
    """Kills processes that a worker started and that left its group, as daemons do. They are found by their environment."""
    sign = f"{resident.MARK}={mark}".encode()
    with contextlib.suppress(OSError):
        unclear = [process for process in Path("/proc").iterdir() if process.name.isdigit()]
        for _ in range(_LOOKS):
            unclear = [process for process in unclear if not _kill_if_marked(process, sign)]
            if not unclear:
                break
            time.sleep(_PAUSE)


def _kill_if_marked(process: Path, sign: bytes) -> bool:
    """Kills the process of this folder of /proc if its environment has the sign. False where it must be looked at again."""
    with contextlib.suppress(OSError):
        environment = (process / "environ").read_bytes()
        if sign in environment.split(b"\0"):
            os.kill(int(process.name), signal.SIGKILL)
        if not environment:
            # The environment is empty for a moment during exec. The system's own processes have no program and fail here.
            (process / "exe").readlink()
            return False
    return True
