"""The key under which a sweep's timings are remembered: code, sizes, device, versions. Imports neither torch nor triton."""

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

#: The name of an implementation's own choice among its configs.
DEFAULT = "default"


def config_name(case: Case) -> str:
    return case.config or DEFAULT


def of_sweep(case: Case, digest: str, name: str, uuid: str, target: str) -> Problem:
    """The problem of the case's sweep on the GPU of this name and UUID; ``target`` is ``sm_90``."""
    return Problem(f"{case.kernel}/{case.impl}", digest, shape(case), name, uuid, versions(target))


def shape(case: Case) -> str:
    """The pass, dtype, seed and sizes of the workload as the text of a tuple."""
    sizes = tuple(int(size) for size in re.findall(r"\d+", case.workload.partition("-")[0]))
    seed = next((part for part in case.workload.split("-")[1:] if re.fullmatch(r"s\d+", part)), "")
    return str((case.direction, case.dtype, *([seed] if seed else []), *sizes))


def versions(target: str) -> str:
    """The versions of triton and torch, and the target, as one text."""
    known = device.installed()
    return ", ".join([*(f"{name} {known[name]}" for name in ("triton", "torch") if name in known), target])


@cache
def library_digest() -> str:
    """The digest of the kernel library's code; empty where it is not installed."""
    library = importlib.util.find_spec("tilescope_kernels")
    roots = [Path(root) for root in (library.submodule_search_locations or [])] if library else []
    return user_cache.digest([user_cache.digest_of_code(root) for root in roots]) if roots else ""


def digest(case: Case, kernels: Iterable[str] = ()) -> str:
    """The digest of the code behind a case; empty where it is not known.

    A kernel of the catalog has the library's. A user's own file may import from anywhere, so it has one of ``kernels``: the
    digests of the Triton functions that its configs launch, which only a process with Triton can tell.
    """
    if ".py" not in case.kernel:
        return library_digest()
    found = sorted(kernels)
    return user_cache.digest([case.kernel, found]) if found else ""
