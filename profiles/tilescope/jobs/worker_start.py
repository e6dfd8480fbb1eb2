"""The start of a worker process: its folder, the pipes of its events and its output, its command and environment.

Imports neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilescope.jobs import resident
from tilescope.jobs.scratch import Scratch

#: Changes a worker's command line; the wrapper may write into the folder.
Wrap = Callable[[list[str], Path], list[str]]
#: Seconds between two looks at a cold process.
_LOOK = 0.01


class WorkerFolder:
    """A worker's folder, which ``close`` removes, and the reading ends of its two pipes. Raises OSError where they cannot be made.

    ``job`` is the file of the job's description, ``wrapped`` the folder for the wrapper's output.
    """

    def __init__(self) -> None:
        self.events = self.output = self.writing = -1
        self._scratch = Scratch()
        folder = self._scratch.path
        self.mark, self.job, self.wrapped = folder.name, folder / "job.json", folder / "wrapped"
        try:
            for made in (self.wrapped, folder / "tmp"):
                made.mkdir()
            # A pipe needs no disk and slows a writer that is too fast. It has a name because a wrapper may close inherited
            # descriptors.
            os.mkfifo(folder / "events")
            # Also open for writing, so that reading never sees an end of file after the worker has closed it.
            self.events = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
            self.output, self.writing = os.pipe()
            os.set_blocking(self.output, False)
            _widen(self.events)
            _widen(self.output)
        except BaseException:
            self.close()
            raise

    def describe(self, job: Mapping[str, Any]) -> None:
        """Writes the job's description atomically, because a standby worker may be waiting for the file."""
        folder, written = self.job.parent, self.job.with_suffix(".part")
        more = {"events": str(folder / "events"), "temporary": str(folder / "tmp"), "supervisor": os.getpid()}
        written.write_text(json.dumps({**job, **more}))
        written.rename(self.job)

    def hand_over(self) -> None:
        """Closes this process's writing end of the output's pipe, after the worker has inherited it."""
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        """Closes the pipes and removes the folder."""
        self.hand_over()
        for number in (self.events, self.output):
            if number >= 0:
                os.close(number)
        self.events = self.output = -1
        self._scratch.close()


class StartedProcess:
    """A started process, with the part of ``asyncio.subprocess.Process`` that a supervisor needs.

    It belongs to no event loop, because a standby worker outlives the loop of the job before it.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        """The exit status, negative for a signal, once it has ended."""
        while (status := self._process.poll()) is None:
            await asyncio.sleep(_LOOK)
        return status


def command(folder: WorkerFolder, wrap: Wrap | None, *more: str) -> list[str]:
    """The command line of a worker on the job in the folder, with further arguments ``more``."""
    own = [sys.executable, *resident.WORKER, str(folder.job), *more]
    return wrap(own, folder.wrapped) if wrap else own


def start(folder: WorkerFolder, argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a worker in a process group of its own. Raises OSError."""
    output = folder.writing
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True
    )


def variables(folder: WorkerFolder, more: Mapping[str, str]) -> dict[str, str]:
    """A worker's whole environment; ``more`` are its collector's variables."""
    return resident.environment({**more, resident.MARK: folder.mark})


def _widen(pipe: int) -> None:
    """Enlarges a pipe's buffer where the system allows it, so that it is read less often."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
