"""The PTX assembler: the one in Triton's package, or the one that its environment variable names.

Inductor sets that variable when it first compiles. Triton writes PTX for the assembler's version but leaves the version out of
its cache key, so one process's PTX in the cache may be refused by another's assembler. Therefore all workers get the same
assembler, and a run records its version. Imports neither torch nor triton.
"""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

from tilescope.jobs.versions import version_text

#: The binary and its variable, for targets before sm_100 and from there on.
_BINARIES = (("ptxas", "TRITON_PTXAS_PATH"), ("ptxas-blackwell", "TRITON_PTXAS_BLACKWELL_PATH"))
_BLACKWELL = 100


def environment() -> dict[str, str]:
    """Variables that fix Triton's assemblers in a worker. A person's own settings take precedence. Empty without triton."""
    found = {variable: _path(binary, variable) for binary, variable in _BINARIES}
    return {variable: str(path) for variable, path in found.items() if path}


def version(target: str) -> str | None:
    """Version of the assembler for ``target`` (``sm_90``), as ``12.8.93`` for CUDA 12.8's. None where it is not found."""
    digits = re.search(r"\d+", target)
    path = _path(*_BINARIES[digits is not None and int(digits[0]) >= _BLACKWELL])
    number = re.search(r"\bV(\d+(?:\.\d+)+)", version_text(str(path))) if path else None
    return number[1] if number else None


def _path(binary: str, variable: str) -> Path | None:
    """The assembler as Triton finds it: the variable's file if it exists, or the one in Triton's package."""
    if (named := os.environ.get(variable)) and Path(named).is_file():
        return Path(named)
    triton = importlib.util.find_spec("triton")
    for root in (triton.submodule_search_locations or []) if triton else []:
        path = Path(root, "backends", "nvidia", "bin", binary)
        if path.is_file():
            return path
    return None
