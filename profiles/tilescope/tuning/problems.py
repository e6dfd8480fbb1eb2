"""What a kernel's sweep is remembered by: code, sizes, device and versions. Imports neither torch nor triton."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tilescope.files import user_cache
from tilescope.hardware import device
from tilescope.table.case import Case
from tilescope.tuning.memory import Problem

#: What an implementation's own choice is called among its configs.
DEFAULT = "default"


def of_sweep(case: Case, digest: str, name: str, uuid: str, target: str) -> Problem:
    """The problem that the configs of the case's sweep are raced for, on the GPU of this name and UUID."""
    return Problem(f"{case.kernel}/{case.impl}", digest, shape(case), name, uuid, versions(target))


def shape(case: Case) -> str:
    """The class of shapes: the direction, the dtype and the sizes of the workload, as ``near_shapes`` compares them."""
    sizes = tuple(int(size) for size in re.findall(r"\d+", case.workload.partition("-")[0]))
    seed = next((part for part in case.workload.split("-")[1:] if re.fullmatch(r"s\d+", part)), "")
    return str((case.direction, case.dtype, *([seed] if seed else []), *sizes))


def versions(target: str) -> str:
    """What compiles and launches, and what for, as one text."""
    known = device.installed()
    return ", ".join([*(f"{name} {known[name]}" for name in ("triton", "torch") if name in known), target])


@cache
def library_digest() -> str:
    """Digest of the kernel library's code; empty where it is not there."""
    library = importlib.util.find_spec("tilescope_kernels")
    roots = [Path(root) for root in (library.submodule_search_locations or [])] if library else []
    return user_cache.digest([user_cache.digest_of_code(root) for root in roots]) if roots else ""


def digest(case: Case, kernels: Iterable[str] = ()) -> str:
    """Digest of the code behind a case; empty where it is not known.

    That is the library's for a kernel of the catalog. What a person's own file imports may be anywhere: there it is that of the
    ``kernels``, the keys of all Triton functions that its configs launch, which only a process that has Triton knows.
    """
    if ".py" not in case.kernel:
        return library_digest()
    found = sorted(kernels)
    return user_cache.digest([case.kernel, found]) if found else ""
