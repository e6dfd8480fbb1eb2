"""Temporary folders, and the removal of those that killed processes left.

A folder is in use while a process holds the lock on its file ``lock``, which the system releases at the process's end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tilescope.runs import journal, store

#: The start of these folders' names, which no person's folder is likely to have.
PREFIX = "tilescope-scratch-"
_LOCK = "lock"
#: Age in seconds from which a folder without a lock file counts as abandoned: its creator locks it at once.
_UNLOCKED = 3600.0
#: The same for the folder of a run.
_BEGUN = 60.0


class Scratch:
    """A folder for temporary files, removed by ``close``. Raises OSError where none can be made."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            self._lock = (self.path / _LOCK).open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def close(self) -> None:
        """Removes the folder with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *exception: object) -> None:
        self.close()


def sweep(runs: Path) -> int:
    """Removes folders of dead processes: temporary ones, and runs in ``runs`` without anything to resume.

    Returns their number. Never raises; folders of other users stay.
    """
    swept = 0
    for folder in _folders(Path(tempfile.gettempdir()), PREFIX):
        swept += _remove(folder, _LOCK, _UNLOCKED)
    for folder in _folders(runs, store.PARTIAL):
        holds = journal.kept(folder) or any((folder / "parts").glob("*"))
        swept += 0 if holds else _remove(folder, ".lock", _BEGUN)
    return swept


def _folders(place: Path, prefix: str) -> list[Path]:
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(place):
            mine = entry.name.startswith(prefix) and entry.is_dir(follow_symlinks=False)
            if mine and entry.stat(follow_symlinks=False).st_uid == os.getuid():
                found.append(Path(entry.path))
    return found


def _remove(folder: Path, lock: str, unlocked: float) -> bool:
    """Removes the folder unless a process holds its lock. Returns whether it is gone."""
    try:
        handle: Any = (folder / lock).open("r+")
    except FileNotFoundError:
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime < unlocked:
                return False
            shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()
    except OSError:
        return False
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
