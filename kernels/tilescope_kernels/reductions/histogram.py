"""Histogram by atomics: one per element, or one per bin and program after counting in shared memory."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_integers, use_triton
from tilescope_kernels._shared.launching import BEYOND, cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, compiled, declare, drawn


@triton.jit
def histogram_naive_kernel(counts_ptr, x_ptr, n, bins, BLOCK: tl.constexpr):
    """One atomic addition per element. Elements of the same bin serialize at one address in L2."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + start + offsets, mask=offsets < n - start, other=-1)
    tl.atomic_add(counts_ptr + x, 1, mask=(x >= 0) & (x < bins), sem="relaxed")


@triton.jit
def histogram_kernel(counts_ptr, x_ptr, n, bins, BLOCK: tl.constexpr, BINS: tl.constexpr):
    """Count blocks ``program, program + programs, ...`` in shared memory, then add each bin with one atomic."""
    offsets = tl.arange(0, BLOCK)
    counts = tl.zeros((BINS,), tl.int32)
    for block in range(tl.program_id(0), tl.cdiv(n, BLOCK), tl.num_programs(0)):
        start = block * tl.full((), BLOCK, tl.int64)
        x = tl.load(x_ptr + start + offsets, mask=offsets < n - start, other=-1, eviction_policy="evict_first")
        counts += tl.histogram(x, BINS, mask=(x >= 0) & (x < bins))
    which = tl.arange(0, BINS)
    tl.atomic_add(counts_ptr + which, counts, mask=(which < bins) & (counts > 0), sem="relaxed")


#: ``PROGRAMS`` per SM walk the blocks. Each ends with an atomic addition per bin.
CONFIGS = tuple(
    {"BLOCK": block, "PROGRAMS": programs, "num_warps": warps}
    for block, programs, warps in (
        (4096, 8, 8), (1024, 4, 4), (1024, 8, 4), (2048, 4, 4), (2048, 8, 4), (4096, 2, 8), (4096, 4, 8), (8192, 2, 16),
    )
)  # fmt: skip
NAIVE_CONFIGS = tuple({"BLOCK": block, "num_warps": warps} for block in (1024, 2048, 4096) for warps in (4, 8))

#: Most bins of the shared-memory kernel: each thread of 8 warps then holds 16 counts.
_MOST = 4096
#: Most elements of a launch. In int32 the number of blocks of nearly 2**31 elements would be negative.
_AT_ONCE = BEYOND // 2


@operator("histogram", fake=lambda x, bins, *_: torch.empty(bins, dtype=torch.int32, device=x.device))
def _histogram(x: torch.Tensor, bins: int, naive: bool, config: str) -> torch.Tensor:
    counts = torch.zeros(bins, dtype=torch.int32, device=x.device)
    if x.numel() == 0 or bins == 0:
        return counts
    chosen = unpack(config) or (NAIVE_CONFIGS if naive else CONFIGS)[0]
    fixed = {name: chosen[name] for name in ("BLOCK", "num_warps")}
    # Launches add to the counts, so several may share the elements.
    for part in (x,) if x.numel() <= _AT_ONCE else x.view(-1).split(_AT_ONCE):
        n = part.numel()
        blocks = cdiv(n, chosen["BLOCK"])
        if naive:
            launch(histogram_naive_kernel, (blocks,), counts, part, n, bins, **fixed)
            continue
        programs = min(blocks, chosen["PROGRAMS"] * multiprocessors(x))
        # ``tl.histogram`` needs at least 32 bins, one per thread of a warp.
        padded = max(32, next_power_of_2(bins))
        launch(histogram_kernel, (programs,), counts, part, n, bins, BINS=padded, **fixed)
    return counts


def _checked(x: torch.Tensor, bins: int) -> torch.Tensor:
    check_integers(x=x)
    if bins < 0:
        raise ValueError(f"bins is {bins}: it must not be negative")
    if x.numel() >= BEYOND:
        raise ValueError(f"x has {x.numel()} elements: a bin counts at most 2147483647")
    return x.contiguous()


def histogram(x: torch.Tensor, bins: int, *, config: Config | None = None) -> torch.Tensor:
    """Counts (bins,) in int32 of the values 0 .. bins - 1 in ``x`` (int32, any shape).

    As ``torch.bincount``, but of a fixed length: other values are not counted. Integer atomics are deterministic. ``config`` is one of
    ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, more than 4096 bins, and devices without CUDA.
    """
    if not use_triton():
        return reference(x, bins)
    if bins > _MOST:
        raise ValueError(f"bins is {bins}: at most {_MOST}; histogram_naive takes more")
    return _histogram(_checked(x, bins), bins, False, pack(config))


def histogram_naive(x: torch.Tensor, bins: int, *, config: Config | None = None) -> torch.Tensor:
    """``histogram`` by one atomic addition per element, for any number of bins. ``config`` is one of ``NAIVE_CONFIGS``."""
    if not use_triton():
        return reference(x, bins)
    return _histogram(_checked(x, bins), bins, True, pack(config))


def reference(x: torch.Tensor, bins: int) -> torch.Tensor:
    """The reference in plain PyTorch."""
    x = x.reshape(-1)
    return torch.bincount(x[(x >= 0) & (x < bins)].long(), minlength=bins).to(torch.int32)


def eager(x: torch.Tensor, bins: int) -> torch.Tensor:
    """torch.bincount, whose length depends on the data, so it synchronizes to read the largest value."""
    return torch.bincount(x.reshape(-1), minlength=bins).to(torch.int32)


def scatter(x: torch.Tensor, bins: int) -> torch.Tensor:
    """Histogram by ``index_add_``, which torch.compile can trace."""
    return torch.zeros(bins, dtype=torch.int32, device=x.device).index_add_(0, x, torch.ones_like(x))


@drawn
def inputs(draw: Draw, n: int, bins: int, hot: int) -> dict[str, Any]:
    """``x`` of ``n`` elements: ``hot`` per cent in one bin, the others uniform."""
    x = draw.empty(n, dtype=torch.int32)
    if draw.numbers is not None and n:
        x.random_(0, max(bins, 1), generator=draw.numbers)
        x[torch.rand(n, generator=draw.numbers, device=draw.device) * 100 < hot] = bins // 2
    return {"x": x, "bins": bins}


def cost(workload: Workload, direction: str) -> Cost:
    """One addition per element. Reads x, writes one count per bin."""
    n, bins, _ = workload.dims.values()
    return Cost(flops=n, bytes_read=4 * n, bytes_written=4 * bins)


SPEC = declare(
    "histogram", "counts of integers, by atomics", "n bins hot",
    "small 65536x256x0-int32, medium 16777216x256x0-int32, large 67108864x256x0-int32, "
    "ragged 1423763x1000x50-int32, large-hot 67108864x256x100-int32",
    triton=Implementation(histogram, "counted by each program, then one atomic a bin", CONFIGS),
    naive=Implementation(histogram_naive, "one atomic an element", NAIVE_CONFIGS),
    eager=Implementation(eager, "torch.bincount"),
    compile=Implementation(compiled(scatter), "torch.compile of an index_add"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"int32": 0.0, "fp32": 0.0, "fp16": 0.0, "bf16": 0.0},
)  # fmt: skip
