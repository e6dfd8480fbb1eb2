"""Workers under a wrapper (ncu) that stand by: they have torch and a CUDA context before their job is known.

ncu starts the program that it counts itself, so what it counts cannot be forked from a process that has both. One worker
stands by a process like this, for its next job under the same wrapper. In a process that stays the next one begins when one is given a
job, and makes its context when nothing is measured any more. Imports neither torch nor triton.
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

from tilescope.jobs import resident, started
from tilescope.jobs.started import Place, Wrap

#: The argument that has a worker stand by; the process that it stands by follows.
STAND_BY = "stand-by"
#: Beside the job that is still to come: a worker may have the GPU meanwhile.
FREE = "free"
#: Fewest processors of which one is to spare while something is measured.
_ROOMY = 4


@dataclass(frozen=True)
class Standby:
    """A worker that stands by the process ``owner``. ``made`` is all that it was made with, but for its place."""

    made: tuple[Any, ...]
    place: Place
    process: subprocess.Popen[bytes]
    owner: int

    @property
    def alive(self) -> bool:
        """Whether it stands by this process still."""
        return self.owner == os.getpid() and self.process.poll() is None

    def free(self) -> None:
        """Has it make its context now, and not when its job comes."""
        self.place.job.with_name(FREE).touch()

    def end(self) -> None:
        """Ends it and its wrapper."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.place.close()


_lock = threading.Lock()
#: The worker that stands by, if there is one.
_standing: Standby | None = None
#: What the last wrapped job was wrapped in, and its environment, once there was one.
_last: tuple[Wrap, dict[str, str]] | None = None
#: Whether this process stays when its job is done.
_stays = False


def roomy() -> bool:
    """Whether there is a processor to spare while something is measured."""
    return len(os.sched_getaffinity(0)) >= _ROOMY


def stay() -> None:
    """Says that this process stays when its job is done: workers stand by for the next one."""
    global _stays  # noqa: PLW0603 - one a process
    _stays = True


def begin(wrap: Wrap, environment: Mapping[str, str], free: bool = True) -> None:
    """Starts a worker that stands by, unless one like it does; one of another wrapper ends. Never raises.

    Unless the GPU is ``free`` it makes no context until ``again`` is called, or its job is there.
    """
    global _standing  # noqa: PLW0603 - one a process
    if os.environ.get(resident.SWITCH, "1") == "0":
        return
    with _lock, contextlib.suppress(Exception):
        made = _made(wrap, environment)
        if _standing and _standing.alive and _standing.made == made:
            if free:
                _standing.free()
            return
        _end()
        place = Place()
        try:
            argv = started.command(place, wrap, STAND_BY, str(os.getpid()))
            process = started.start(place, argv, started.variables(place, environment))
            place.hand_over()
        except BaseException:
            place.close()
            raise
        _standing = Standby(made, place, process, os.getpid())
        if free:
            _standing.free()


def take(wrap: Wrap, environment: Mapping[str, str]) -> Standby | None:
    """The worker that stands by for such a job, which is the caller's from now on; None where there is none.

    In a process that stays the next one begins, where it takes no processor from what is measured.
    """
    global _standing, _last  # noqa: PLW0603 - one a process
    with _lock:
        _last = wrap, dict(environment)
        taken = None
        if _standing and _standing.alive and _standing.made == _made(wrap, environment):
            taken, _standing = _standing, None
    if _stays and roomy():
        begin(wrap, environment, free=False)
    return taken


def again() -> None:
    """Has a worker stand by for a job like the last wrapped one, if there was one, now that nothing is measured."""
    if _last:
        begin(*_last)


def end() -> None:
    """Ends whoever stands by."""
    with _lock:
        _end()


def _end() -> None:
    global _standing  # noqa: PLW0603 - one a process
    if _standing and _standing.owner == os.getpid():
        _standing.end()
    _standing = None


def _made(wrap: Wrap, environment: Mapping[str, str]) -> tuple[Any, ...]:
    """All that a worker under the wrapper is started with, but for its place."""
    return (wrap([], Path()), resident.environment(environment), Path.cwd())


atexit.register(end)
