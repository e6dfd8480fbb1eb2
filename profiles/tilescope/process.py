"""One worker process, seen from the parent: start it, read its events, stop it, say how it ended.

Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from tilescope import ptxas

#: How often the file of events is looked at, in seconds.
POLL = 0.05
#: How long a worker may take to import what it needs before its first case, in seconds, whatever a case may take.
STARTUP = 120.0
#: How long a worker may take to end after SIGTERM before it is killed, in seconds.
GRACE = 3.0

Wrap = Callable[[list[str]], list[str]]


class StartError(RuntimeError):
    """A worker whose command cannot be started. The message says why."""


class WorkerProcess:
    """``python -m tilescope.worker`` on one job, in a process group of its own.

    ``wrap`` may change the command line (ncu goes in front of it); ``environment`` adds variables. Use as an
    asynchronous context manager: leaving it stops whatever still runs. ``status`` is the exit status once
    ``events`` has ended, ``silent`` is True when it was killed for not answering.
    """

    def __init__(
        self, job: Mapping[str, Any], wrap: Wrap | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._job, self._wrap, self._environment = dict(job), wrap, dict(environment or {})
        self._scratch = tempfile.TemporaryDirectory(prefix="tilescope-")
        self._events = Path(self._scratch.name) / "events"
        self._log = Path(self._scratch.name) / "log"
        self._read = 0
        self._process: asyncio.subprocess.Process | None = None
        self.status: int | None = None
        self.silent = False

    async def __aenter__(self) -> WorkerProcess:
        """Raises StartError when the command cannot be started."""
        path = Path(self._scratch.name) / "job.json"
        self._events.touch()
        path.write_text(json.dumps({**self._job, "events": str(self._events), "supervisor": os.getpid()}))
        command = [sys.executable, "-P", "-m", "tilescope.worker", str(path)]
        try:
            if self._wrap:
                command = self._wrap(command)
            with self._log.open("wb") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **ptxas.environment(), "PYTHONPATH": _python_path(), **self._environment},
                    start_new_session=True,
                )
        except BaseException as error:
            self._scratch.cleanup()
            if not isinstance(error, Exception):
                raise
            what = f"{command[0]}: {error.strerror}" if isinstance(error, OSError) else str(error)
            raise StartError(f"the worker cannot be started: {what}") from error
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()
        with contextlib.suppress(OSError):
            self._scratch.cleanup()

    async def events(self, patience: float) -> AsyncIterator[dict[str, Any]]:
        """The worker's events until it has ended; kills it when a case brings none for ``patience`` seconds."""
        assert self._process is not None  # noqa: S101 - only used inside the context
        clock = asyncio.get_running_loop().time
        heard, limit = clock(), max(patience, STARTUP)
        ended = asyncio.ensure_future(self._process.wait())
        try:
            while True:
                done, _ = await asyncio.wait({ended}, timeout=POLL)
                for event in self.drain():
                    heard, limit = clock(), max(patience, STARTUP) if event["event"] == "start" else patience
                    yield event
                if done:
                    break
                if clock() - heard > limit:
                    self.silent = True
                    _signal_group(self._process.pid, signal.SIGKILL)
            self.status = ended.result()
        finally:
            ended.cancel()

    def drain(self) -> list[dict[str, Any]]:
        """Events written since the last look. A line that its writer did not finish is left for the next look."""
        with self._events.open("rb") as file:
            file.seek(self._read)
            fresh = file.read()
        whole = fresh[: fresh.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(text) for text in whole.splitlines() if text]

    async def stop(self) -> None:
        """Ends the process group: SIGTERM, then SIGKILL after ``GRACE`` seconds."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE)
        # Whatever the worker started and left behind goes too.
        _signal_group(process.pid, signal.SIGKILL)
        await process.wait()

    def log(self) -> str:
        """What the worker and its wrapper printed."""
        with contextlib.suppress(OSError):
            return self._log.read_text(encoding="utf-8", errors="replace")
        return ""

    def ending(self) -> str:
        """How the process ended, in words: ``was killed (SIGKILL)``, ``ended with status 1``."""
        if self.silent:
            return "did not answer and was killed"
        status = self.status or 0
        # A shell or ncu reports a signal of its child as 128 + its number.
        number = -status if status < 0 else status - 128
        if status < 0 or 128 < status < 160:
            with contextlib.suppress(ValueError):
                name = signal.Signals(number).name
                verb = "was killed" if name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") else "crashed"
                return f"{verb} ({name})"
        return f"ended with status {status}"


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _python_path() -> str:
    """The parent's path, and where the packages were found: they need not be installed."""
    roots = [str(Path(__file__).resolve().parents[1])]
    kernels = importlib.util.find_spec("tilescope_kernels")
    roots += [str(Path(root).parent) for root in (kernels.submodule_search_locations or [])] if kernels else []
    existing = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(dict.fromkeys(filter(None, [*existing.split(os.pathsep), *roots])))
