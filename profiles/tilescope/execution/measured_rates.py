"""Measures roofs: the rates that this GPU reaches with plain programs on random data.

Copies, reads and cuBLAS products stand for very good programs. Times are by CUDA events, the median of several runs. Imports torch
and triton: worker-side only.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope.execution.cold import intervals
from tilescope.hardware.ceilings import MEASURED, unit
from tilescope.table.run import Ceiling

_RUNS = 9
#: Clock cycles that the GPU waits while the runs are queued. Without them a CPU that launches late would be measured too.
_AHEAD = 20_000_000

#: Errors of a chip without fp8, or without memory for the buffers: that roof is absent.
_ABSENT = (RuntimeError, AttributeError, NotImplementedError, ValueError)

#: Pipe -> sizes of the timed square products. Power limits the large one, wave quantisation the small one.
_SIZES = {"fp32": (4096,), "fp64": (4096,), "default": (4096, 8192)}
#: int32 values that a block of ``read_chunks`` loads at a time.
_CHUNK = 4096


def measure() -> list[Ceiling]:
    """Measures every roof of the current GPU, which takes some seconds. A roof that fails is absent."""
    found: list[Ceiling] = []
    products = [functools.partial(_product, pipe) for pipe in PRODUCTS]
    roofs: list[Callable[[], Ceiling]] = [_hbm_copy, _hbm_read, _l2_read, _l1_read, *products]
    for roof in roofs:
        try:
            found.append(roof())
        except _ABSENT:
            torch.cuda.synchronize()
        torch.cuda.empty_cache()  # so that no roof depends on what the previous one left allocated
    return found


def _seconds(run: Callable[[], Any]) -> float:
    """Median seconds of a call on the GPU, after two calls that compile and load it."""
    run()
    run()
    torch.cuda._sleep(_AHEAD)  # type: ignore[no-untyped-call]
    return float(statistics.median(intervals(run, _RUNS)))


def _random(nbytes: int) -> torch.Tensor:
    """An int32 tensor of that many random bytes. Constant data would move faster than real data."""
    return torch.randint(-(2**31), 2**31 - 1, (nbytes // 4,), dtype=torch.int32, device="cuda")


def _large() -> int:
    """Bytes of a buffer far larger than the L2: a power of two, at most 1 GiB and at most a quarter of the free memory."""
    free, _ = torch.cuda.mem_get_info()
    return 1 << min(30, (free // 4).bit_length() - 1)


def _hbm_copy() -> Ceiling:
    source = _random(_large())
    target = torch.empty_like(source)
    time = _seconds(lambda: target.copy_(source))
    moved = 2 * source.numel() * 4
    return Ceiling("hbm", moved / time, "byte/second", MEASURED, f"device copy of {moved // 2:,} bytes, read + written")


@triton.jit  # type: ignore[untyped-decorator]
def read_chunks(source, sums, chunks, steps, CHUNK: tl.constexpr, STRIDE: tl.constexpr, MODE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Sums ``steps`` chunks of int32 from a ring of ``chunks``, so that no load is optimised away and little is written."""
    program = tl.program_id(0)
    total = tl.zeros((CHUNK,), tl.int32)
    # With STRIDE 0 each program stays in a ring of its own, which fits in L1.
    first = program * chunks if STRIDE == 0 else 0
    chunk = 0 if STRIDE == 0 else program % chunks
    for _ in range(steps):
        address = source + (first + chunk) * CHUNK + tl.arange(0, CHUNK)
        total += tl.load(address, cache_modifier=MODE)
        chunk += 1 if STRIDE == 0 else STRIDE
        # Not a remainder: a division would take longer than a read from L1.
        chunk = tl.where(chunk >= chunks, chunk - chunks, chunk)
    tl.store(sums + program, tl.sum(total))


def _read_rate(source: torch.Tensor, *, programs: int, chunks: int, steps: int, stride: int, mode: str) -> float:
    """Bytes a second that ``programs`` blocks read, each of them ``steps`` chunks."""
    sums = source.new_empty(programs)
    time = _seconds(lambda: read_chunks[(programs,)](source, sums, chunks, steps, _CHUNK, stride, mode, num_warps=8))
    return programs * steps * _CHUNK * 4 / time


def _hbm_read() -> Ceiling:
    source, steps = _random(_large()), 4
    chunks = source.numel() // _CHUNK
    programs = chunks // steps
    rate = _read_rate(source, programs=programs, chunks=chunks, steps=steps, stride=programs, mode="")
    note = f"read of {programs * steps * _CHUNK * 4:,} bytes, summed by a Triton kernel"
    return Ceiling("hbm_read", rate, "byte/second", MEASURED, note)


def _l2_read() -> Ceiling:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    # A quarter of the L2: on chips whose L2 has two halves, each half then holds all of it.
    chunks = max(1, properties.L2_cache_size // 4 // (_CHUNK * 4))
    source, programs = _random(chunks * _CHUNK * 4), properties.multi_processor_count * 8
    rate = _read_rate(source, programs=programs, chunks=chunks, steps=256, stride=1, mode=".cg")
    note = f"{chunks * _CHUNK * 4:,} bytes re-read past L1 by a Triton kernel"
    return Ceiling("l2", rate, "byte/second", MEASURED, note)


def _l1_read() -> Ceiling:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    chunks, programs = 2, properties.multi_processor_count * 2
    source = _random(programs * chunks * _CHUNK * 4)
    rate = _read_rate(source, programs=programs, chunks=chunks, steps=2048, stride=0, mode=".ca")
    note = f"{chunks * _CHUNK * 4:,} bytes a block re-read from L1 by a Triton kernel, 2 blocks an SM"
    return Ceiling("l1", rate, "byte/second", MEASURED, note)


def _matmul(dtype: torch.dtype, size: int) -> Callable[[], Any]:
    a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=dtype)
    return lambda: torch.mm(a, b, out=out)


def _fp8(size: int) -> Callable[[], Any]:
    a, b = (torch.randn(size, size, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    return lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)


#: Pipes but ``ceilings.UNREACHED`` -> a function that prepares a square product of a size, and PyTorch's matmul precision meanwhile.
PRODUCTS: dict[str, tuple[Callable[[int], Callable[[], Any]], str]] = {
    "bf16": (lambda size: _matmul(torch.bfloat16, size), "highest"),
    "fp16": (lambda size: _matmul(torch.float16, size), "highest"),
    "tf32": (lambda size: _matmul(torch.float32, size), "high"),
    "fp32": (lambda size: _matmul(torch.float32, size), "highest"),
    "fp64": (lambda size: _matmul(torch.float64, size), "highest"),
    "fp8": (_fp8, "highest"),
}


def _product(pipe: str) -> Ceiling:
    prepare, precision = PRODUCTS[pipe]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        rates = {size: 2 * size**3 / _seconds(prepare(size)) for size in _SIZES.get(pipe, _SIZES["default"])}
    finally:
        torch.set_float32_matmul_precision(before)
    best = max(rates, key=lambda size: rates[size])
    note = f"cuBLAS product {best}^3 of random data, best of {', '.join(map(str, rates))}"
    return Ceiling(pipe, rates[best], unit(pipe), MEASURED, note)
