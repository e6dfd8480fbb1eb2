"""Locks a GPU for one job, because two jobs that time at once disturb each other. All users share the lock file."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path


@contextlib.asynccontextmanager
async def gpu_lock(name: str, waiting: Callable[[], None]) -> AsyncIterator[None]:
    """Holds the lock of the GPU called ``name``. Calls ``waiting`` once if another job holds it.

    The system releases the lock when its holder dies.
    """
    handle = _open(path(name))
    try:
        if not _try(handle):
            waiting()
            while not _try(handle):
                await asyncio.sleep(0.2)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def held(file: Path, *, wait: bool = True) -> Iterator[bool]:
    """Holds the lock in ``file``, in a process without an event loop. Yields whether it is held: False only where another one is not waited for."""
    handle = _open(file)
    try:
        if wait:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield wait or _try(handle)
    finally:
        os.close(handle)


def path(name: str) -> Path:
    """The file of the lock of the GPU called ``name``."""
    return Path(tempfile.gettempdir()) / f"tilescope-{re.sub(r'[^A-Za-z0-9-]+', '_', name)}.lock"


def _open(path: Path) -> int:
    # In a sticky folder another user's file cannot be opened with O_CREAT. A lock needs no write access.
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except PermissionError:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _try(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
