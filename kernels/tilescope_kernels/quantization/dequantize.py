"""Dequantization: codes times scales, at any granularity of ``quantize``."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import FLOATING, use_triton
from tilescope_kernels._shared.launching import BEYOND, launch
from tilescope_kernels._shared.one_byte import check_operands
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels._shared.reach import slabs
from tilescope_kernels.quantization import quantize
from tilescope_kernels.quantization.quantize import default, inputs, most_rows, reference
from tilescope_kernels.quantization.quantize_kernels import GROUP, block_addresses
from tilescope_kernels.spec import Config, Cost, Implementation, KernelSpec, Workload, declare

_GROUP = tl.constexpr(GROUP)


@triton.jit
def dequantize_kernel(
    x_ptr, q_ptr, scale_ptr, q_stride, groups, columns, scale_row, scale_block,
    ROWS_A_SCALE: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """``GROUPS`` blocks of 1x128 per program. At every granularity a block has one scale."""
    row, column, mask, _ = block_addresses(groups, columns, GROUPS)
    q = tl.load(q_ptr + row * q_stride + column, mask=mask, other=0.0, eviction_policy="evict_first")
    # A 1-D load reads each scale once per block; in the 2-D layout each thread would load the scale of each of its elements.
    flat = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    a_row = tl.cdiv(columns, _GROUP)
    scale_ptr += (flat // a_row // ROWS_A_SCALE).to(tl.int64) * scale_row + flat % a_row * scale_block
    scale = tl.load(scale_ptr, mask=flat < groups, other=0.0)[:, None]
    tl.store(x_ptr + row * columns + column, (q.to(tl.float32) * scale).to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _dequantize_flat(x_ptr, q_ptr, scale, element, mask):
    q = tl.load(q_ptr + element, mask=mask, eviction_policy="evict_first")
    tl.store(x_ptr + element, (q.to(tl.float32) * scale).to(x_ptr.dtype.element_ty), mask=mask)


@triton.jit
def dequantize_flat_kernel(
    x_ptr, q_ptr, scale_ptr, n, columns, scale_row, scale_block, ROWS_A_SCALE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """``BLOCK`` consecutive elements per program, across contiguous rows: 16-byte accesses although rows are not 16-byte aligned."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    row = start // columns
    element = tl.arange(0, BLOCK)
    left = n - start
    # Relative to the program's first row, so in 32 bits, where division is cheap.
    apart = (start - row * columns).to(tl.int32) + element
    if ROWS_A_SCALE == 1:
        scale_ptr += row * scale_row
        place = apart // columns * scale_row
    else:
        place = (row + apart // columns) // ROWS_A_SCALE * scale_row
    scale = tl.load(scale_ptr + place + apart % columns // _GROUP * scale_block, mask=element < left, other=0.0)
    # A mask whose end is no multiple of 16 bytes splits accesses into single elements: only the last program has one.
    if left >= BLOCK:
        _dequantize_flat(x_ptr + start, q_ptr + start, scale, element, None)
    else:
        _dequantize_flat(x_ptr + start, q_ptr + start, scale, element, element < left)


#: Elements and warps of a program of ``dequantize_flat_kernel``.
_FLAT, _FLAT_WARPS = 1024, 4


@operator("dequantize", fake=lambda q, _, dtype, *__: q.new_empty(q.shape, dtype=dtype))
def _dequantize(
    q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, rows_a_scale: int, config: str
) -> torch.Tensor:
    rows, columns = q.shape
    x = torch.empty((rows, columns), dtype=dtype, device=q.device)
    # The strides of the scales encode the granularity: 0 along a dimension that shares one scale.
    steps = (scale.shape[1] if scale.shape[0] > 1 else 0, int(scale.shape[1] > 1)) if scale.dim() else (0, 0)
    # By rows, unaligned rows are accessed one element at a time, so contiguous tensors are one row. Offsets within a program must fit
    # 32 bits.
    if not config and columns % 16 and q.is_contiguous() and columns < BEYOND - _FLAT:
        launch(
            dequantize_flat_kernel, (triton.cdiv(q.numel(), _FLAT),),
            x, q, scale, q.numel(), columns, *steps,
            ROWS_A_SCALE=rows_a_scale, BLOCK=_FLAT, num_warps=_FLAT_WARPS,
        )  # fmt: skip
        return x
    chosen = unpack(config) or default(q, quantize.BLOCK_CONFIGS)
    most = most_rows(columns)
    scales = slabs(most // rows_a_scale, scale) if steps[0] else itertools.repeat((scale,))
    for (of_x, of_q), (of_scale,) in zip(slabs(most, x, q), scales, strict=False):
        groups = len(of_q) * triton.cdiv(columns, GROUP)
        launch(
            dequantize_kernel, (triton.cdiv(groups, chosen["GROUPS"]),),
            of_x, of_q, of_scale, q.stride(0), groups, columns, *steps, ROWS_A_SCALE=rows_a_scale, **chosen,
        )  # fmt: skip
    return x


def dequantize(
    q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.bfloat16, *, config: Config | None = None
) -> torch.Tensor:
    """``q * scale`` in ``dtype`` (fp32, fp16, bf16), for codes (..., columns) and scales from ``quantize``.

    The shape of ``scale`` gives the granularity. ``config`` is one of ``BLOCK_CONFIGS``. Raises ValueError, naming the
    argument, for other dtypes, scales that fit no granularity, and devices without CUDA.
    """
    if dtype not in FLOATING:
        raise ValueError(f"dtype is {dtype}: give torch.float32, torch.float16 or torch.bfloat16")
    if q.dim() == 0:
        raise ValueError("q has 0 dimensions: give at least 1")
    if use_triton():
        check_operands(tuple(quantize.LARGEST), q=q)
        check_operands((torch.float32,), scale=scale, beside=q)
    rows_a_scale = _rows_a_scale(q, scale)
    if not use_triton():
        return product(q, scale).to(dtype)
    if q.numel() == 0:
        return torch.empty(q.shape, dtype=dtype, device=q.device)
    flat = scale.reshape(-1, scale.shape[-1]).contiguous() if scale.dim() else scale
    return _dequantize(as_rows(q, q.shape[-1]), flat, dtype, rows_a_scale, pack(config)).reshape(q.shape)


def _rows_a_scale(q: torch.Tensor, scale: torch.Tensor) -> int:
    """The number of rows that share a scale: 128 for tiles, else 1. Raises ValueError for scales of other shapes."""
    blocks = triton.cdiv(q.shape[-1], GROUP)
    tiled = (triton.cdiv(q.shape[0], GROUP), blocks)
    if scale.dim() == 0 or tuple(scale.shape) in ((*q.shape[:-1], 1), (*q.shape[:-1], blocks)):
        return 1
    if q.dim() == 2 and tuple(scale.shape) == tiled:
        return GROUP
    raise ValueError(
        f"scale has shape {tuple(scale.shape)} beside q's {tuple(q.shape)}: give () for one scale, "
        f"{(*q.shape[:-1], 1)} for rows, {(*q.shape[:-1], blocks)} for blocks"
        + (f" or {tiled} for tiles" if q.dim() == 2 else "")
    )


def _spread(scale: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Expand ``scale`` of any granularity to a shape that broadcasts to ``x``."""
    if scale.dim() == 0 or scale.shape[-1] == 1 == _rows_a_scale(x, scale):
        return scale
    columns = scale.repeat_interleave(GROUP, -1)[..., : x.shape[-1]]
    return columns.repeat_interleave(_rows_a_scale(x, scale), 0)[: x.shape[0]]


def product(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``q * scale`` in plain PyTorch, in the dtype of ``scale`` (fp32 or fp64)."""
    return q.to(scale.dtype) * _spread(scale, q)


def _spec(name: str, dtype: torch.dtype, granularity: str, summary: str) -> KernelSpec:
    """The declaration of dequantization from ``dtype`` to the workload's dtype."""

    def fused(q: torch.Tensor, scale: torch.Tensor, like: torch.dtype, config: Config | None = None) -> torch.Tensor:
        return dequantize(q, scale, like, config=config)

    def eager(q: torch.Tensor, scale: torch.Tensor, like: torch.dtype) -> torch.Tensor:
        x = product(q, scale)
        return x if x.dtype == torch.float64 else x.to(like)

    def coded(workload: Workload, device: Any) -> dict[str, Any]:
        """Codes and scales of ``inputs``, and the dtype of the result."""
        x = inputs(workload, device)["x"]
        q, scale = reference(x, dtype, granularity)
        return {"q": q, "scale": scale, "like": x.dtype}

    def cost(workload: Workload, direction: str) -> Cost:
        """Reads codes and scales. One multiplication and one write per element."""
        rows, columns = workload.dims.values()
        groups = rows * (triton.cdiv(columns, GROUP) if granularity == "block" else 1)
        size = workload.bytes
        return Cost(flops=workload.elements, bytes_read=workload.elements + 4 * groups, bytes_written=size)

    return declare(
        name, summary, "rows columns", quantize.SIZES.format(ragged="fp16"),
        triton=Implementation(fused, "one read, one write", quantize.BLOCK_CONFIGS),
        eager=Implementation(eager, "conversion, multiplication and conversion, one after the other"),
        reference=eager, inputs=coded, cost=cost,
        # No fp32, because the result always has the workload's dtype and is compared in it.
        tolerance={"fp16": 7e-4, "bf16": 6e-3}, targets=quantize.TARGETS[dtype],
    )  # fmt: skip


INT8 = _spec("int8_dequantize", torch.int8, "row", "INT8 codes times the scale of their row")
FP8 = _spec("fp8_dequantize", torch.float8_e4m3fn, "block", "FP8 codes times the scale of their 1x128")
