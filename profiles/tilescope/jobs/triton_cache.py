"""Triton's cache of compiled kernels. Imports neither torch nor triton."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tilescope.jobs.job import WorkerError


def folder() -> Path:
    home = Path(os.environ.get("TRITON_HOME", Path.home()))
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")


def check() -> None:
    """Makes the cache's folder. Raises WorkerError, with the cure, where it cannot be written: no kernel is at fault then."""
    where = folder()
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise WorkerError(
            f"Triton's cache {where} cannot be written ({why}): set TRITON_CACHE_DIR to a folder you may write to"
        ) from error
