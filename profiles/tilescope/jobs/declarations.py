"""A disk cache of the declarations of the catalog's kernels, which are then known without importing the kernels.

An entry is valid while the library's code, Tilescope's code that describes it, and the versions are unchanged. Kernels in a
person's own files are not cached, because they may import from anywhere. Imports neither torch nor triton.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilescope.files import user_cache
from tilescope.hardware import device, requirements
from tilescope.version import VERSION

_KIND = "declarations"
#: Files of Tilescope that make a description.
_MAKERS = ("execution/describe.py", "execution/execute.py", "hardware/requirements.py")


def known(kernels: Sequence[str], workloads: Sequence[str]) -> list[dict[str, Any]] | None:
    """The cached answer to ``questions.describe`` with these arguments; None where there is none."""
    key = _key(kernels, workloads)
    if key is None:
        return None
    entries: list[dict[str, Any]] | None = user_cache.read(_KIND, key)
    if not (isinstance(entries, list) and all(isinstance(one, dict) and "implementations" in one for one in entries)):
        entries = None
    if entries is None and kernels and not workloads:
        # Without other workloads, the answer is part of the whole catalog's.
        whole = {entry["kernel"]: entry for entry in known((), ()) or ()}
        entries = [whole[kernel] for kernel in kernels] if all(kernel in whole for kernel in kernels) else None
    for entry in entries or ():
        for declared in entry["implementations"].values():
            declared["available"] = not requirements.absent(declared["requires"])
    return entries


def keep(kernels: Sequence[str], workloads: Sequence[str], entries: Sequence[Any]) -> None:
    """Caches an answer, unless a kernel is in a person's own file."""
    key = _key(kernels, workloads)
    if key is not None:
        user_cache.write(_KIND, key, list(entries))


def _key(kernels: Sequence[str], workloads: Sequence[str]) -> str | None:
    library = importlib.util.find_spec("tilescope_kernels")
    roots = [Path(root) for root in (library.submodule_search_locations or [])] if library else []
    if not roots or any(".py" in kernel for kernel in kernels):
        return None
    here = Path(__file__).resolve().parents[1]
    try:
        code = [user_cache.digest_of_code(path) for path in (*roots, *(here / name for name in _MAKERS))]
    except OSError:
        return None
    versions = {"python": sys.version, "tilescope": VERSION, **device.installed()}
    return user_cache.digest([[str(root) for root in roots], code, versions, list(kernels), list(workloads)])
