"""What makes CUDA or Triton refuse a launch of code that compiles. Imports triton: worker-side only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton.runtime import _allocation

#: Most blocks of a grid in x, y and z (CUDA C++ Programming Guide, Technical Specifications per Compute Capability).
GRID = (2**31 - 1, 65_535, 65_535)
#: Most threads of a block.
THREADS = 1024


def refusal(grid: Sequence[int], threads: int = 0, metadata: Any = None) -> str:
    """Why a launch of this grid and of so many threads a block is refused, with the cure; empty where it is not.

    ``metadata`` is the compiled kernel's, if it is compiled.
    """
    blocks = (grid[0] * getattr(metadata, "num_ctas", 1), *grid[1:])
    for name, count, most in zip("xyz", blocks, GRID, strict=True):
        if count > most:
            cure = "fewer programs" if name == "x" else "the grid's first dimension for it"
            return f"its grid has {count:,} blocks in {name}, and CUDA allows {most:,}: use {cure}"
    if threads > THREADS:
        return f"it has {threads:,} threads a block, and CUDA allows {THREADS:,}: use fewer num_warps"
    if getattr(metadata, "global_scratch_size", 0) and not has_allocator():
        what = "it needs memory for what it makes there, such as tensor descriptors, and no allocator was set"
        return f"{what}: use triton.set_allocator before the launch"
    return ""


def has_allocator() -> bool:
    """Whether ``triton.set_allocator`` was called."""
    return not isinstance(_allocation._allocator.get(), _allocation.NullAllocator)


def set_allocator(there: bool) -> None:
    """Sets an allocator of PyTorch's memory, or takes the one that is set away."""
    triton.set_allocator(_workspace if there else _allocation.NullAllocator())


def _workspace(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    return torch.empty(size, device="cuda", dtype=torch.int8)
