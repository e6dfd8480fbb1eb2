"""Atomic writes: a file gets its name only when it is whole, a folder when it is on the disk. Imports neither torch nor triton."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

#: Errors of ``fsync`` on files and file systems that cannot be synced.
_CANNOT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EBADF})


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Has ``write`` make a file beside ``path`` and renames it to ``path``: readers see the old file or the new one."""
    scratch = path.with_name(f"{path.name}.tmp")
    write(scratch)
    scratch.replace(path)


def rename(old: Path, new: Path, without: Collection[str] = ()) -> None:
    """Renames a folder once its files are on the disk, but for those in its subfolders ``without``."""
    for folder, folders, files in os.walk(old):
        folders[:] = [name for name in folders if Path(folder) != old or name not in without]
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))
    old.rename(new)
    sync(new.parent)


def sync(path: Path) -> None:
    """Waits until the file or folder is on the disk.

    Does nothing on a file system that cannot sync, or for a file that another process has just removed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        # ENOSPC and EIO mean that data was lost.
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(handle)
