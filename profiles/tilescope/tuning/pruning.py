"""Reasons to stop compiling a config: it exceeds a limit of the hardware, or certainly spills. Imports triton.

The products' accumulators are read from TTGIR, before LLVM and ptxas, which take most of the time. Shared memory is known after LLVM.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import Any

from tilescope.execution import observe
from tilescope.hardware import occupancy

#: A layout's name, and the number of a block's warps along each dimension.
_LAYOUT = re.compile(r"^#(\w+) = #ttg\.nvidia_mma<\{.*?warpsPerCTA = \[([\d, ]+)\]", re.MULTILINE)
#: The result of a product: its extents, element and layout.
_PRODUCT = re.compile(r"(?:ttng\.warp_group_dot|tt\.dot)\s.*-> tensor<([\dx]+)x([a-z]+)(\d+)\w*, #(\w+)>")
_REGISTER_BITS = 32


class Refused(Exception):
    """A compilation that was ended early because the config cannot run well. The message is the reason in one line."""


def refusal(target: str, *, threads: int = 0, shared_memory: int = 0, accumulators: int = 0) -> str:
    """The reason why a block cannot run well on ``target`` (``sm_90``); empty where there is none.

    ``threads`` are those of a block, ``shared_memory`` its bytes, ``accumulators`` registers a thread, which spill above the limit.
    Raises ValueError for an unknown target.
    """
    chip = occupancy.limits(target)
    if threads > occupancy.BLOCK_THREADS:
        return f"{threads} threads a block, {target} has {occupancy.BLOCK_THREADS}: cannot be launched"
    if shared_memory > chip.block_shared_memory:
        return f"{shared_memory} bytes of shared memory a block, {target} has {chip.block_shared_memory}: cannot be launched"
    if accumulators > occupancy.THREAD_REGISTERS:
        return f"{accumulators} registers a thread for accumulators, {occupancy.THREAD_REGISTERS} exist: spills"
    return ""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Ends compilations with Refused, while active, where ``refusal`` gives a reason.

    Other kernels compile as usual, under the same keys of Triton's cache.
    """
    with observe.hooked(_refuse_around_llvm):
        yield


def accumulators(ttgir: str) -> int:
    """The 32-bit registers a thread of the largest product's result; 0 where there is no product."""
    warps = {name: math.prod(int(n) for n in counts.split(",")) for name, counts in _LAYOUT.findall(ttgir)}
    found = [
        math.prod(int(extent) for extent in extents.split("x")) * int(bits)
        // (_REGISTER_BITS * warps[layout] * occupancy.WARP_THREADS)
        for extents, _, bits, layout in _PRODUCT.findall(ttgir)
        if layout in warps
    ]  # fmt: skip
    return max(found, default=0)


def _refuse_around_llvm(backend: Any, stages: dict[str, Any]) -> None:
    """Inserts the checks before and after the stage from TTGIR to LLVM. Triton calls this with the stages of a compilation."""
    to_llvm, target = stages["llir"], f"sm_{backend.target.arch}"

    def checked(module: Any, metadata: Any) -> Any:
        _end_if(refusal(target, threads=_threads(metadata), accumulators=accumulators(str(module))))
        found = to_llvm(module, metadata)
        _end_if(refusal(target, threads=_threads(metadata), shared_memory=metadata["shared"]))
        return found

    stages["llir"] = checked


def _threads(metadata: Any) -> int:
    """Threads of a block; after LLVM with those of warp groups that specialization adds."""
    return int(metadata["num_warps"]) * occupancy.WARP_THREADS


def _end_if(reason: str) -> None:
    if reason:
        raise Refused(reason)
