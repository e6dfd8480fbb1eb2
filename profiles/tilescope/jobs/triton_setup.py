"""Triton's cache of compiled kernels, and its PTX assembler: the one in Triton's package, or the one that its environment variable names.

Inductor sets that variable when it first compiles. Triton writes PTX for the assembler's version but leaves the version out of
its cache key, so one process's PTX in the cache may be refused by another's assembler. Therefore all workers get the same
assembler, and a run records its version. Imports neither torch nor triton.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from tilescope.files import installed
from tilescope.jobs.job import WorkerError
from tilescope.jobs.versions import version_text

#: The binary and its variable, for targets before sm_100 and from there on.
_BINARIES = (("ptxas", "TRITON_PTXAS_PATH"), ("ptxas-blackwell", "TRITON_PTXAS_BLACKWELL_PATH"))
_BLACKWELL = 100


def environment() -> dict[str, str]:
    """Variables that fix Triton's assemblers in a worker. A person's own settings take precedence. Empty without triton."""
    found = {variable: _path(binary, variable) for binary, variable in _BINARIES}
    return {variable: str(path) for variable, path in found.items() if path}


def assembler_version(target: str) -> str | None:
    """Version of the assembler for ``target`` (``sm_90``), as ``12.8.93`` for CUDA 12.8's. None where it is not found."""
    digits = re.search(r"\d+", target)
    path = _path(*_BINARIES[digits is not None and int(digits[0]) >= _BLACKWELL])
    number = re.search(r"\bV(\d+(?:\.\d+)+)", version_text(str(path))) if path else None
    return number[1] if number else None


def _path(binary: str, variable: str) -> Path | None:
    """The assembler as Triton finds it: the variable's file if it exists, or the one in Triton's package."""
    if (named := os.environ.get(variable)) and Path(named).is_file():
        return Path(named)
    found = (root / "backends" / "nvidia" / "bin" / binary for root in installed.folders_of("triton"))
    return next((path for path in found if path.is_file()), None)


def cache_folder() -> Path:
    home = Path(os.environ.get("TRITON_HOME", Path.home()))
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache")


def check_cache() -> None:
    """Makes the cache's folder. Raises WorkerError, with the cure, where it cannot be written: no kernel is at fault then."""
    where = cache_folder()
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=where):
            pass
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise WorkerError(
            f"Triton's cache {where} cannot be written ({why}): set TRITON_CACHE_DIR to a folder you may write to"
        ) from error
