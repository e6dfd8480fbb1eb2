"""Distinguishes failures of the machine (full disk, no memory, a limit) from failures of a kernel."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

#: Errors of system calls for lack of a resource, which may be available at another time.
_LACKING = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EROFS, errno.EIO}
)  # fmt: skip
#: Texts of such errors in the output of tools.
_SAID = re.compile("|".join(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE)))
#: Signals of a process that exceeds its limits.
LIMITS = frozenset({"SIGXFSZ", "SIGXCPU"})
#: Signals that usually come from outside: the system (memory ran out), a person, a batch system.
FROM_OUTSIDE = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})


def lacking(error: BaseException, starting: bool = False) -> str:
    """The lacking resource that caused ``error``, as ``No space left on device (ENOSPC)``; empty where there is none.

    A MemoryError counts only while a process is ``starting``; later the case itself may cause it.
    """
    for link in _chain(error):
        if isinstance(link, OSError) and link.errno in _LACKING:
            return f"{os.strerror(link.errno)} ({errno.errorcode[link.errno]})"
        if starting and isinstance(link, MemoryError):
            return os.strerror(errno.ENOMEM)
        with contextlib.suppress(Exception):  # str() of a kernel's own exception may raise
            if found := _SAID.search(str(link)[:10_000]):
                return found[0]
    return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes."""
    link: BaseException | None = error
    for _ in range(20):
        if link is None:
            return
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def oom_kills() -> int:
    """The number of processes that the system has killed so far for lack of memory, here or in this container."""
    return sum(_counted(path) for path in _counters())


def _counters() -> Iterator[Path]:
    yield Path("/proc/vmstat")
    groups = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                yield groups / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                yield groups / "memory" / path.lstrip("/") / "memory.oom_control"
    # In containers that see their own group as the root.
    yield groups / "memory.events"


def _counted(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0
