"""What a worker process is started with: its folder, the pipe of its events, and the pipe of what it prints.

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

#: Changes a worker's command line; the folder is where the wrapper may write.
Wrap = Callable[[list[str], Path], list[str]]
#: How often a cold process is looked at, in seconds.
_LOOK = 0.01


class Place:
    """A worker's folder, which ``close`` removes, and the reading ends of its two pipes. Raises OSError where none can be made.

    ``job`` is where the job is described, ``wrapped`` what the worker's wrapper may write into.
    """

    def __init__(self) -> None:
        self.events = self.output = self.writing = -1
        self._scratch = Scratch()
        folder = self._scratch.path
        self.mark, self.job, self.wrapped = folder.name, folder / "job.json", folder / "wrapped"
        try:
            for made in (self.wrapped, folder / "tmp"):
                made.mkdir()
            # A pipe, not a file: it takes no room on a disk, and who writes faster than can be read has to wait. By its
            # name, which comes through a wrapper where an open one might not.
            os.mkfifo(folder / "events")
            # Open for writing too: it has no end then, which would be there to be read all the time once the worker closed it.
            self.events = os.open(folder / "events", os.O_RDWR | os.O_NONBLOCK)
            self.output, self.writing = os.pipe()
            os.set_blocking(self.output, False)
            _widen(self.events)
            _widen(self.output)
        except BaseException:
            self.close()
            raise

    def describe(self, job: Mapping[str, Any]) -> None:
        """Writes the job's description, whole at once: who stands by may be looking for it."""
        folder, written = self.job.parent, self.job.with_suffix(".part")
        more = {"events": str(folder / "events"), "temporary": str(folder / "tmp"), "supervisor": os.getpid()}
        written.write_text(json.dumps({**job, **more}))
        written.rename(self.job)

    def hand_over(self) -> None:
        """Closes the writing end of the output's pipe, once the process has it: it ends with who holds it."""
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


class Cold:
    """A process that was started and not forked: as much of ``asyncio.subprocess.Process`` as a supervisor needs.

    It belongs to no event loop: one that stands by outlives the loop of the job before it.
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


def command(place: Place, wrap: Wrap | None, *more: str) -> list[str]:
    """The command line of a worker on the place's job; ``more`` are arguments of its own."""
    own = [sys.executable, *resident.WORKER, str(place.job), *more]
    return wrap(own, place.wrapped) if wrap else own


def start(place: Place, argv: Sequence[str], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a worker in a process group of its own. Raises OSError."""
    output = place.writing
    return subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables, start_new_session=True
    )


def variables(place: Place, more: Mapping[str, str]) -> dict[str, str]:
    """A worker's whole environment: ``more`` is what its collector adds."""
    return resident.environment({**more, resident.MARK: place.mark})


def _widen(pipe: int) -> None:
    """Enlarges a pipe's buffer where the system allows it, so that it is read less often."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1 << 20)
