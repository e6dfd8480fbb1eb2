"""Atomic, durable writes: a file gets its name only when it is whole and on the disk. Imports neither torch nor triton."""

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
    sync(scratch)
    scratch.replace(path)
    sync(path.parent)


def rename(old: Path, new: Path, synced: Collection[str] = ()) -> None:
    """Renames a folder once all its files are on the disk. Its subfolders ``synced`` are on the disk already."""
    for folder, folders, files in os.walk(old):
        folders[:] = [name for name in folders if Path(folder) != old or name not in synced]
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))
    old.rename(new)
    sync(new.parent)


def append(path: Path, text: str) -> None:
    """Appends the text to the file. It is on the disk when this returns."""
    made = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if made:
        sync(path.parent)


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
