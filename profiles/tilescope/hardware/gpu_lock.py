"""One job a GPU: two timings at once are both wrong. Held through a file that every user's jobs agree on."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path


@contextlib.asynccontextmanager
async def gpu_lock(name: str, waiting: Callable[[], None]) -> AsyncIterator[None]:
    """Holds the lock of the GPU called ``name``; calls ``waiting`` once if another job has it.

    The system lets go of the lock when its holder dies.
    """
    path = Path(tempfile.gettempdir()) / f"tilescope-{re.sub(r'[^A-Za-z0-9-]+', '_', name)}.lock"
    handle = _open(path)
    try:
        told = False
        while not _try(handle):
            if not told:
                waiting()
                told = True
            await asyncio.sleep(0.2)
        yield
    finally:
        os.close(handle)


def _open(path: Path) -> int:
    # Another user's file cannot be opened with O_CREAT in a sticky folder, nor need it be written to be locked.
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
