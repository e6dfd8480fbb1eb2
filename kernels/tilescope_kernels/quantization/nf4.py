"""NF4 dequantization, in the layout of bitsandbytes: two codes per byte, the first in the high nibble.

A block of 64 consecutive elements has one scale, its largest magnitude. A code selects one of 16 fractions of it, which are
quantiles of a normal distribution (Dettmers et al., QLoRA, arXiv:2305.14314, appendix E).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import FLOATING, use_triton
from tilescope_kernels._shared.launching import launch
from tilescope_kernels._shared.one_byte import check_operands
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn

#: Elements of a block.
BLOCK = 64
#: The fractions of the codes 0 to 15.
FRACTIONS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip

_BLOCK = tl.constexpr(BLOCK)
_FRACTIONS = tl.constexpr(FRACTIONS)


@triton.jit
def _fractions():
    """The 16 fractions as a tensor for ``tl.gather``, which puts it in shared memory."""
    code = tl.arange(0, 16)
    fractions = tl.zeros((16,), tl.float32)
    for known in tl.static_range(16):
        fractions = tl.where(code == known, _FRACTIONS[known], fractions)
    return fractions


@triton.jit
def _dequantize_blocks(x_ptr, codes_ptr, absmax_ptr, left, BLOCKS: tl.constexpr, WHOLE: tl.constexpr):
    """Dequantize ``BLOCKS`` blocks, at most ``left`` elements. ``WHOLE`` blocks need no mask."""
    block = tl.arange(0, BLOCKS)
    pair = block[:, None] * (_BLOCK // 2) + tl.arange(0, _BLOCK // 2)[None, :]
    element = block[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    if WHOLE:
        pairs = tl.load(codes_ptr + pair, eviction_policy="evict_first")
        absmax = tl.load(absmax_ptr + block)
    else:
        pairs = tl.load(codes_ptr + pair, mask=2 * pair < left, other=0, eviction_policy="evict_first")
        absmax = tl.load(absmax_ptr + block, mask=block * _BLOCK < left, other=0.0)
    codes = tl.join(pairs >> 4, pairs & 15).reshape(BLOCKS * _BLOCK).to(tl.int32)
    fractions = tl.gather(_fractions(), codes, 0).reshape(BLOCKS, _BLOCK)
    x = (fractions * absmax[:, None]).to(x_ptr.dtype.element_ty)
    if WHOLE:
        tl.store(x_ptr + element, x)
    else:
        tl.store(x_ptr + element, x, mask=element < left)


@triton.jit
def nf4_dequantize_kernel(x_ptr, codes_ptr, absmax_ptr, n, BLOCKS: tl.constexpr):
    """Dequantize ``BLOCKS`` blocks of 64 elements per program."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS
    left = n - block * _BLOCK
    x_ptr += block * _BLOCK
    codes_ptr += block * (_BLOCK // 2)
    absmax_ptr += block
    # A mask whose end is no multiple of 16 bytes splits accesses into single elements: only the last program has one.
    if left >= BLOCKS * _BLOCK:
        _dequantize_blocks(x_ptr, codes_ptr, absmax_ptr, left, BLOCKS, True)
    else:
        _dequantize_blocks(x_ptr, codes_ptr, absmax_ptr, left, BLOCKS, False)


#: ``BLOCKS`` blocks of 64 elements per program are in flight.
CONFIGS = tuple(
    {"BLOCKS": blocks, "num_warps": warps}
    for blocks, warps in ((64, 4), (32, 4), (32, 2), (64, 8), (128, 4), (128, 8), (256, 8), (256, 16), (16, 1))
)


@operator("nf4_dequantize", fake=lambda codes, _, shape, dtype, __: codes.new_empty(shape, dtype=dtype))
def _nf4_dequantize(
    codes: torch.Tensor, absmax: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, config: str
) -> torch.Tensor:
    x = torch.empty(shape, dtype=dtype, device=codes.device)
    chosen = unpack(config) or CONFIGS[0]
    launch(
        nf4_dequantize_kernel, (triton.cdiv(x.numel(), BLOCK * chosen["BLOCKS"]),),
        x, codes, absmax, x.numel(), **chosen,
    )  # fmt: skip
    return x


def nf4_dequantize(
    codes: torch.Tensor, absmax: torch.Tensor, shape: Sequence[int], dtype: torch.dtype = torch.bfloat16, *,
    config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Dequantize NF4 codes to a tensor of ``shape`` in ``dtype`` (fp32, fp16, bf16), computed in fp32.

    For n elements, ``codes`` has ceil(n / 2) elements in uint8 and ``absmax`` ceil(n / 64) in fp32, both of any shape, as from
    ``nf4_quantize`` or bitsandbytes' ``quantize_4bit(..., blocksize=64, quant_type="nf4")``. ``config`` is one of ``CONFIGS``. Raises
    ValueError, naming the argument, for other dtypes, numbers of elements that do not fit ``shape``, and devices without CUDA.
    """
    if dtype not in FLOATING:
        raise ValueError(f"dtype is {dtype}: give torch.float32, torch.float16 or torch.bfloat16")
    n = math.prod(shape)
    for name, tensor, a_block in (("codes", codes, 2), ("absmax", absmax, BLOCK)):
        if tensor.numel() != triton.cdiv(n, a_block):
            raise ValueError(
                f"{name} has {tensor.numel()} elements: shape {tuple(shape)} wants {triton.cdiv(n, a_block)}"
            )
    if not use_triton():
        return reference(codes, absmax, shape).to(dtype)
    check_operands((torch.uint8,), codes=codes)
    check_operands((torch.float32,), absmax=absmax, beside=codes)
    if n == 0:
        return torch.empty(tuple(shape), dtype=dtype, device=codes.device)
    return _nf4_dequantize(codes.contiguous(), absmax.contiguous(), tuple(shape), dtype, pack(config))


def nf4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize ``x`` to NF4 codes (uint8, (ceil(n / 2), 1)) and the largest magnitude of each block (fp32), in PyTorch.

    Each element gets the nearest fraction. A block of zeros has magnitude 0 and is dequantized to zeros.
    """
    flat = torch.nn.functional.pad(x.reshape(-1).float(), (0, -x.numel() % BLOCK)).reshape(
        -(-x.numel() // BLOCK), BLOCK
    )
    absmax = flat.abs().amax(1)
    fractions = torch.tensor(FRACTIONS, device=x.device)
    middles = (fractions[1:] + fractions[:-1]) / 2
    codes = torch.bucketize(flat / absmax.clamp_min(1e-30)[:, None], middles).reshape(-1)[: x.numel() + x.numel() % 2]
    return (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None], absmax


def reference(codes: torch.Tensor, absmax: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The reference in plain PyTorch, in the dtype of ``absmax``."""
    n = math.prod(shape)
    fractions = torch.tensor(FRACTIONS, dtype=absmax.dtype, device=codes.device)
    flat = codes.reshape(-1).int()
    numbers = fractions[torch.stack((flat >> 4, flat & 15), 1).reshape(-1)[:n]]
    return (numbers * absmax.reshape(-1).repeat_interleave(BLOCK)[:n]).reshape(tuple(shape))


def fused(
    codes: torch.Tensor, absmax: torch.Tensor, shape: tuple[int, ...], like: torch.dtype, config: Config | None = None
) -> torch.Tensor:
    """``nf4_dequantize`` with the spec's arguments."""
    return nf4_dequantize(codes, absmax, shape, like, config=config)


def eager(codes: torch.Tensor, absmax: torch.Tensor, shape: tuple[int, ...], like: torch.dtype) -> torch.Tensor:
    """Unpack, look up and scale, one operation at a time, in fp64 if the magnitudes are fp64."""
    x = reference(codes, absmax, shape)
    return x if x.dtype == torch.float64 else x.to(like)


def bitsandbytes(codes: torch.Tensor, absmax: torch.Tensor, shape: tuple[int, ...], like: torch.dtype) -> torch.Tensor:
    """bitsandbytes' function, imported at the first call because it is an optional dependency."""
    from bitsandbytes.functional import dequantize_4bit  # noqa: PLC0415

    out = torch.empty(shape, dtype=like, device=codes.device)
    return dequantize_4bit(codes, absmax=absmax, out=out, blocksize=BLOCK, quant_type="nf4")


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """Codes and magnitudes of a standard normal matrix of rows x columns, its shape, and the dtype of the result."""
    shape = (rows, columns)
    x = draw(*shape)
    codes, absmax = nf4_quantize(x)
    return {"codes": codes, "absmax": absmax, "shape": shape, "like": x.dtype}


def cost(workload: Workload, direction: str) -> Cost:
    """Reads half a byte per element and a magnitude per block. One multiplication and one write per element."""
    n = workload.elements
    read = triton.cdiv(n, 2) + 4 * triton.cdiv(n, BLOCK)
    return Cost(flops=n, bytes_read=read, bytes_written=n * workload.itemsize)


SPEC = declare(
    "nf4_dequantize", "NF4 codes times the magnitude of their 64", "rows columns",
    "small 128x1024-bf16, medium 4096x4096-bf16, large 8192x14336-bf16, ragged 1823x781-fp16, empty 0x4096-bf16",
    triton=Implementation(fused, "one read, one write", CONFIGS),
    eager=Implementation(eager, "halves of bytes, table and magnitudes, one after the other"),
    bitsandbytes=Implementation(bitsandbytes, "bitsandbytes' own", requires=("bitsandbytes",)),
    reference=eager, inputs=inputs, cost=cost,
    # No fp32, because the result always has the workload's dtype and is compared in it.
    tolerance={"fp16": 7e-4, "bf16": 5.5e-3},
)  # fmt: skip
