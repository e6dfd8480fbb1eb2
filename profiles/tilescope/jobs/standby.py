"""A standby worker under a wrapper (ncu): it imports torch and makes a CUDA context before its job is known.

ncu starts its program itself, so that program cannot be forked from a process that has torch imported. This process keeps one
worker on standby for its next job under the same wrapper. A process that stays starts the next one when a job takes it; that one
makes its context once nothing is measured. Imports neither torch nor triton.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescope.jobs import resident, worker_start
from tilescope.jobs.worker_start import WorkerFolder, Wrap

#: The worker's argument for standby; the id of the process that it waits for follows.
STAND_BY = "stand-by"
#: The file beside the future job that allows the worker to use the GPU.
FREE = "free"
#: Fewest processors with which one is free while something is measured.
_ROOMY = 4


@dataclass(frozen=True)
class Standby:
    """A standby worker of the process ``owner``. ``start_arguments`` is its command, environment and folder, without its folder."""

    start_arguments: tuple[Any, ...]
    folder: WorkerFolder
    process: subprocess.Popen[bytes]
    owner: int

    @property
    def alive(self) -> bool:
        """Whether it belongs to this process and runs."""
        return self.owner == os.getpid() and self.process.poll() is None

    def free(self) -> None:
        """Lets it make its context now, not only when its job comes."""
        self.folder.job.with_name(FREE).touch()

    def end(self) -> None:
        """Kills the worker and its wrapper."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.folder.close()


_lock = threading.Lock()
#: The standby worker, if there is one.
_standing: Standby | None = None
#: The wrapper and environment of the last wrapped job.
_last: tuple[Wrap, dict[str, str]] | None = None
#: Whether this process stays after its job.
_stays = False


def roomy() -> bool:
    """Whether a processor is free while something is measured."""
    return len(os.sched_getaffinity(0)) >= _ROOMY


def stay() -> None:
    """Declares that this process stays after its job, so that a worker is kept for the next one."""
    global _stays  # noqa: PLW0603 - one a process
    _stays = True


def begin(wrap: Wrap, environment: Mapping[str, str], free: bool = True) -> None:
    """Starts a standby worker unless an equal one runs; one of another wrapper is ended. Never raises.

    If the GPU is not ``free``, it makes its context only after ``again`` is called or its job comes.
    """
    global _standing  # noqa: PLW0603 - one a process
    if os.environ.get(resident.SWITCH, "1") == "0":
        return
    with _lock, contextlib.suppress(Exception):
        arguments = _start_arguments(wrap, environment)
        if _standing and _standing.alive and _standing.start_arguments == arguments:
            if free:
                _standing.free()
            return
        _end()
        folder = WorkerFolder()
        try:
            argv = worker_start.command(folder, wrap, STAND_BY, str(os.getpid()))
            process = worker_start.start(folder, argv, worker_start.variables(folder, environment))
            folder.hand_over()
        except BaseException:
            folder.close()
            raise
        _standing = Standby(arguments, folder, process, os.getpid())
        if free:
            _standing.free()


def take(wrap: Wrap, environment: Mapping[str, str]) -> Standby | None:
    """Hands over the standby worker for such a job; None where there is none.

    A process that stays starts the next one if a processor is free.
    """
    global _standing, _last  # noqa: PLW0603 - one a process
    with _lock:
        _last = wrap, dict(environment)
        taken = None
        if _standing and _standing.alive and _standing.start_arguments == _start_arguments(wrap, environment):
            taken, _standing = _standing, None
    if _stays and roomy():
        begin(wrap, environment, free=False)
    return taken


def again() -> None:
    """Starts or frees a standby worker for a job like the last wrapped one. Call it when nothing is measured."""
    if _last:
        begin(*_last)


def end() -> None:
    """Ends the standby worker."""
    with _lock:
        _end()


def _end() -> None:
    global _standing  # noqa: PLW0603 - one a process
    if _standing and _standing.owner == os.getpid():
        _standing.end()
    _standing = None


def _start_arguments(wrap: Wrap, environment: Mapping[str, str]) -> tuple[Any, ...]:
    """The command, environment and folder of a worker under the wrapper."""
    return (wrap([], Path()), resident.environment(environment), Path.cwd())


atexit.register(end)
