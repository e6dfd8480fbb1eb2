"""Atomic, durable writes: a file gets its name only when it is whole and on the disk. Imports neither torch nor triton."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection
from pathlib import Path

#: What the system answers where syncing means nothing.
_CANNOT = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EROFS, errno.EBADF})


def replace(path: Path, write: Callable[[Path], object]) -> None:
    """Lets ``write`` make a file beside ``path``, then puts it in that place: a reader sees the old file or the new
    one.
    """
    scratch = path.with_name(f"{path.name}.tmp")
    write(scratch)
    sync(scratch)
    scratch.replace(path)
    sync(path.parent)


def rename(old: Path, new: Path, there: Collection[str] = ()) -> None:
    """Renames a folder, with all that is in it on the disk before: what is in its folders ``there`` is known to be."""
    for folder, folders, files in os.walk(old):
        folders[:] = [name for name in folders if Path(folder) != old or name not in there]
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))
    old.rename(new)
    sync(new.parent)


def append(path: Path, text: str) -> None:
    """Adds the text to the file's end; it is on the disk when this returns."""
    made = not path.exists()
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if made:
        sync(path.parent)


def sync(path: Path) -> None:
    """Waits until the file or folder is on the disk. A file system that cannot sync is accepted, and so is a file that
    another process has just removed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        # ENOSPC and EIO are said: they mean that what was promised is not there.
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(handle)
