"""Quantization to INT8 and FP8 (e4m3) with a scale per tensor, row, block of 1x128 or tile of 128x128.

A group's scale is its largest magnitude over the largest code, 127 or 448, so that ``x`` is about ``q * scale``. The magnitude
is at least 1e-30, so that a group of zeros has a usable scale. NaN does not count for the magnitude, and becomes 0 in INT8,
NaN in FP8. A group with an infinity has an infinite scale, and is dequantized to NaN.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton

from tilescope_kernels._shared.checks import check_no_grad, check_tensors, use_triton
from tilescope_kernels._shared.launching import BEYOND, launch
from tilescope_kernels._shared.one_byte import check_has_fp8
from tilescope_kernels._shared.operators import as_rows, operator, pack, unpack
from tilescope_kernels._shared.reach import SECOND_AXIS, slabs
from tilescope_kernels.quantization import quantize_kernels as kernels
from tilescope_kernels.quantization.quantize_kernels import GROUP, SMALLEST
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, KernelSpec, Workload, declare, drawn

#: The largest code of each dtype.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
#: Rows and columns of a group that shares a scale; 0 for all.
GRANULARITIES = {"tensor": (0, 0), "row": (1, 0), "block": (1, GROUP), "tile": (GROUP, GROUP)}


#: ``ROWS`` per program, in up to 128 KB of registers. If they do not fit, it takes one row.
ROW_CONFIGS = tuple(
    {"ROWS": rows, "num_warps": warps}
    for rows, warps in ((1, 16), (1, 8), (1, 4), (1, 2), (1, 32), (2, 4), (2, 8), (2, 16), (4, 4), (4, 8))
)
#: ``GROUPS`` blocks of 1x128 per program are in flight.
BLOCK_CONFIGS = tuple(
    {"GROUPS": groups, "num_warps": warps}
    for groups, warps in (
        (16, 4), (8, 1), (16, 2), (32, 4), (32, 8), (64, 4), (64, 8), (64, 16), (128, 8), (128, 16), (8, 4),
    )
)  # fmt: skip
TILE_CONFIGS = tuple({"TILES": tiles, "num_warps": warps} for tiles in (1, 2, 4) for warps in (16, 8, 4, 32))

#: Bytes of the longest row that is read once: half of an SM's registers.
_HELD = 128 * 1024
#: Elements of a block of a longer row.
_WALKED = 8192
#: Most programs that reduce a tensor's magnitude. Every program of the next kernel reads all their results.
_PARTIALS = 1024
#: Most blocks of 1x128 in a launch, whose last program also counts some that do not exist, in int32.
MOST_BLOCKS = BEYOND - 1024


def most_rows(columns: int) -> int:
    """Most rows whose blocks of 1x128 a launch can count, a multiple of 128 unless rows are longer than any memory."""
    rows = MOST_BLOCKS // triton.cdiv(columns, GROUP)
    return rows // GROUP * GROUP or rows


def default(x: torch.Tensor, configs: tuple[dict[str, int], ...]) -> dict[str, int]:
    """The first of ``configs``, or one with fewer elements per thread for rows that are not 16-byte aligned.

    Such rows are read one element at a time, each with its own address and mask.
    """
    unaligned = {"TILES": 1, "num_warps": 32} if "TILES" in configs[0] else {"GROUPS": 16, "num_warps": 8}
    return unaligned if x.shape[1] % 16 else configs[0]


def _for_rows(x: torch.Tensor, config: Config) -> dict[str, int]:
    """Kernel parameters and launch options for whole rows of ``x``."""
    block = triton.next_power_of_2(x.shape[1])
    rows = config.get("ROWS", max(1, 2048 // block))
    if rows * block * x.element_size() > _HELD:
        rows = 1
    # 32 elements per thread are four 16-byte loads in flight at 16 bits.
    elements = 8 if x.shape[1] % 16 else 32
    warps = min(32, max(1, rows * block // (32 * elements)))
    return {"num_warps": warps, **config, "ROWS": rows, "BLOCK": block}


def _scale_shape(shape: tuple[int, ...], granularity: str) -> tuple[int, ...]:
    """Shape of the scales of a matrix of ``shape``: () for ``tensor``, else (rows of groups, groups per row)."""
    if granularity == "tensor":
        return ()
    return tuple(
        triton.cdiv(extent, group) if group else 1
        for extent, group in zip(shape, GRANULARITIES[granularity], strict=True)
    )


def _results(x: torch.Tensor, kind: torch.dtype, granularity: str, config: str) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.new_empty(_scale_shape(x.shape, granularity), dtype=torch.float32)
    return x.new_empty(x.shape, dtype=kind), scale


@operator("quantize", fake=_results)
def _quantize(x: torch.Tensor, kind: torch.dtype, granularity: str, config: str) -> tuple[torch.Tensor, torch.Tensor]:
    (rows, columns), (q, scale) = x.shape, _results(x, kind, granularity, config)
    given = unpack(config)
    stride, largest, a_row = x.stride(0), LARGEST[kind], triton.cdiv(columns, GROUP)
    if granularity == "row" and triton.next_power_of_2(columns) * x.element_size() <= _HELD:
        chosen = _for_rows(x, given or {})
        grid = (triton.cdiv(rows, chosen["ROWS"]),)
        launch(kernels.quantize_rows_kernel, grid, q, scale, x, stride, rows, columns, LARGEST=largest, **chosen)
    elif granularity == "row":
        fixed = {"LARGEST": largest, "BLOCK": _WALKED, "num_warps": 16}
        launch(kernels.quantize_long_rows_kernel, (rows,), q, scale, x, stride, columns, **fixed)
    elif granularity == "tile":
        chosen = given or default(x, TILE_CONFIGS)
        scales = slabs(SECOND_AXIS, scale)
        for (of_q, of_x), (of_scale,) in zip(slabs(SECOND_AXIS * GROUP, q, x), scales, strict=True):
            grid, extents = (triton.cdiv(a_row, chosen["TILES"]), of_scale.shape[0]), (stride, of_x.shape[0], columns)
            launch(kernels.quantize_tiles_kernel, grid, of_q, of_scale, of_x, *extents, LARGEST=largest, **chosen)
    elif granularity == "block":
        chosen = given or default(x, BLOCK_CONFIGS)
        for of_q, of_scale, of_x in slabs(most_rows(columns), q, scale, x):
            groups = len(of_x) * a_row
            grid, extents = (triton.cdiv(groups, chosen["GROUPS"]),), (stride, groups, columns)
            launch(kernels.quantize_blocks_kernel, grid, of_q, of_scale, of_x, *extents, LARGEST=largest, **chosen)
    else:
        # Adjacent rows are one, whose blocks are aligned whatever the rows' length. The second pass begins where the first ended, so
        # that it finds the end of x in L2.
        if rows > most_rows(columns):
            x, stride = x.contiguous(), columns
        flat = stride == columns and x.data_ptr() % 16 == 0
        groups, tail = divmod(x.numel(), GROUP) if flat else (rows * a_row, 0)
        chosen = given or (BLOCK_CONFIGS[0] if flat else default(x, BLOCK_CONFIGS))
        pieces = max(1, triton.cdiv(groups, chosen["GROUPS"]))
        partial = torch.empty(min(pieces, _PARTIALS), dtype=torch.float32, device=x.device)
        extents, fixed = (stride, groups, columns, tail), {"FLAT": flat, **chosen}
        launch(kernels.absmax_kernel, (len(partial),), partial, x, *extents, **fixed)
        launch(
            kernels.quantize_tensor_kernel, (pieces,), q, scale, partial, x, *extents, len(partial),
            LARGEST=largest, PARTIALS=_PARTIALS, **fixed,
        )  # fmt: skip
    return q, scale


def quantize(
    x: torch.Tensor, dtype: torch.dtype = torch.int8, granularity: str = "row", *, config: Config | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize ``x`` (..., columns): codes and fp32 scales, so that ``x`` is about codes * scales. No gradient.

    ``x`` is fp32, fp16 or bf16, with any strides. ``dtype`` is ``torch.int8`` (rounded half to even, -127 to 127) or
    ``torch.float8_e4m3fn`` (rounded as PyTorch does). ``granularity`` is the group that shares a scale, and gives the scales'
    shape: ``"tensor"`` (), ``"row"`` (..., 1), ``"block"`` of 1x128 (..., ceil(columns / 128)), ``"tile"`` of 128x128 of a
    matrix (ceil(rows / 128), ceil(columns / 128)). For zeros, NaN and infinities see the module.

    ``x`` is read once; twice for ``"tensor"`` and for rows of more than 128 KB. ``config`` is one of ``ROW_CONFIGS`` for rows,
    ``TILE_CONFIGS`` for tiles, else ``BLOCK_CONFIGS``. Raises ValueError, naming the argument, for other dtypes,
    granularities or shapes, devices without CUDA, and FP8 on GPUs before sm_89.
    """
    if dtype not in LARGEST:
        raise ValueError(f"dtype is {dtype}: give {' or '.join(map(str, LARGEST))}")
    if granularity not in GRANULARITIES:
        raise ValueError(f"granularity is {granularity!r}: give one of {', '.join(GRANULARITIES)}")
    if not use_triton():
        return reference(x, dtype, granularity)
    check_tensors(x=x)
    check_no_grad("quantize", x=x)
    if dtype == torch.float8_e4m3fn:
        check_has_fp8(x, "x")
    if x.dim() == 0 or (granularity == "tile" and x.dim() != 2):
        raise ValueError(f"x has {x.dim()} dimensions: give {'2' if granularity == 'tile' else 'at least 1'}")
    if x.numel() == 0:
        return reference(x, dtype, granularity)
    q, scale = _quantize(as_rows(x, x.shape[-1]), dtype, granularity, pack(config))
    if granularity in ("row", "block"):
        scale = scale.reshape(*x.shape[:-1], scale.shape[-1])
    return q.reshape(x.shape), scale


def reference(x: torch.Tensor, dtype: torch.dtype, granularity: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantization in plain PyTorch, in fp32, or in fp64 if ``x`` is fp64."""
    finite = x.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf"))
    scaled, scale = _scaled(x, finite, dtype, granularity)
    return _rounded(scaled.nan_to_num(nan=0.0) if dtype == torch.int8 else scaled, dtype), scale


def unfused(x: torch.Tensor, dtype: torch.dtype, granularity: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantization of finite numbers, one operation at a time, as model code often writes it."""
    scaled, scale = _scaled(x, x, dtype, granularity)
    return _rounded(scaled, dtype), scale


def _rounded(scaled: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    # PyTorch converts fp64 to e4m3 by way of fp32, too.
    return scaled.round().to(dtype) if dtype == torch.int8 else scaled.float().to(dtype)


def _scaled(
    x: torch.Tensor, measured: torch.Tensor, dtype: torch.dtype, granularity: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x`` divided by its scales, not rounded, and the scales, computed from ``measured``."""
    groups, members = _grouped(x, granularity), _grouped(measured, granularity)
    # ``amax`` raises for an axis of length 0.
    shape = [1 if axis in _MEMBERS[granularity] else extent for axis, extent in enumerate(members.shape)]
    empty = members.new_zeros(shape)
    largest = members.abs().amax(_MEMBERS[granularity], keepdim=True) if members.numel() else empty
    absmax = (largest if x.dtype == torch.float64 else largest.float()).clamp_min(SMALLEST)
    scaled = (groups if x.dtype == torch.float64 else groups.float()) * (LARGEST[dtype] / absmax)
    scale = absmax / LARGEST[dtype]
    if granularity == "tensor":
        return scaled.reshape(x.shape), scale.reshape(())
    if granularity == "row":
        return scaled.reshape(x.shape), scale.reshape(*x.shape[:-1], 1)
    scaled = scaled.reshape(groups.shape[0] * groups.shape[1], groups.shape[2] * GROUP)
    scaled = scaled[: math.prod(x.shape[:-1]), : x.shape[-1]].reshape(x.shape)
    leading = (groups.shape[0],) if granularity == "tile" else x.shape[:-1]
    return scaled, scale.reshape(*leading, groups.shape[2])


#: The axes of ``_grouped`` within a group.
_MEMBERS = {"tensor": (0, 1), "row": (1,), "block": (1, 3), "tile": (1, 3)}


def _grouped(x: torch.Tensor, granularity: str) -> torch.Tensor:
    """``x`` as (rows, columns) or, for blocks and tiles, padded with zeros, as (rows / high, high, columns / 128, 128)."""
    high, wide = GRANULARITIES[granularity]
    matrix = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if not wide:
        return matrix
    rows, columns = matrix.shape
    if rows % high or columns % wide:
        matrix = torch.nn.functional.pad(matrix, (0, -columns % wide, 0, -rows % high))
    return matrix.reshape(triton.cdiv(rows, high), high, triton.cdiv(columns, wide), wide)


def _spec(
    name: str, dtype: torch.dtype, granularity: str, summary: str, configs: tuple[dict[str, int], ...],
    how: str = "one read, one write",
) -> KernelSpec:  # fmt: skip
    """The declaration of quantization to ``dtype`` at a granularity."""

    def fused(x: torch.Tensor, config: Config | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return quantize(x, dtype, granularity, config=config)

    def eager(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return unfused(x, dtype, granularity)

    def precise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``reference`` with fp64 codes for fp64 inputs, because PyTorch cannot compare FP8 with fp64."""
        q, scale = reference(x, dtype, granularity)
        return q.to(x.dtype) if x.dtype == torch.float64 else q, scale

    def cost(workload: Workload, direction: str) -> Cost:
        """Reads x, writes codes and fp32 scales. One multiplication per element, two divisions per group.

        With one scale, no code is known before every element has been read. The second read of x is not counted, because L2
        can hold x. If it does not, a 16-bit element takes 5 bytes instead of 3, so at most 60 % of the roof. The partial
        magnitudes, 8 bytes each, are not counted either.
        """
        groups = math.prod(_scale_shape((workload.dims["rows"], workload.dims["columns"]), granularity))
        return Cost(workload.elements + 2 * groups, workload.bytes, workload.elements + 4 * groups)

    return declare(
        name, summary, "rows columns", SIZES.format(ragged="fp32"),
        triton=Implementation(fused, how, configs),
        eager=Implementation(eager, "magnitude, maximum, scaling and rounding, one after the other"),
        reference=precise, inputs=inputs, cost=cost,
        # Codes are compared. A number close to the middle between two codes may round to the other one in another precision,
        # which is off by 1/127 of the largest in INT8 and 1/16 of the number itself in FP8. In 16 bits ties are frequent and
        # make up most of the error; in fp32 one such code in a small tensor is all of it.
        tolerance={"fp32": 5e-4, "fp16": 2e-3, "bf16": 2e-3}
        if dtype == torch.int8
        else {"fp32": 5e-3, "fp16": 1e-2, "bf16": 1e-2},
        targets=TARGETS[dtype],
    )  # fmt: skip


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns, standard normal."""
    return {"x": draw(rows, columns)}


#: Usual sizes in bf16, and a ragged one in another dtype.
SIZES = (
    "small 128x1024-bf16, medium 4096x4096-bf16, large 8192x14336-bf16, ragged 1823x781-{ragged}, tall 16384x4096-bf16, "
    "empty 0x4096-bf16"
)
#: Triton converts to and from e4m3 only where the hardware does: from Ada (sm_89) on.
TARGETS = {
    torch.int8: ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"),
    torch.float8_e4m3fn: ("sm_89", "sm_90", "sm_100", "sm_120"),
}

_TWICE = "the magnitude, then the codes: two reads, one write"
INT8_TENSOR = _spec("int8_tensor", torch.int8, "tensor", "INT8 codes and one scale", BLOCK_CONFIGS, _TWICE)
FP8_TENSOR = _spec("fp8_tensor", torch.float8_e4m3fn, "tensor", "FP8 codes and one scale", BLOCK_CONFIGS, _TWICE)
INT8_ROWS = _spec("int8_rows", torch.int8, "row", "INT8 codes and a scale of each row", ROW_CONFIGS)
FP8_ROWS = _spec("fp8_rows", torch.float8_e4m3fn, "row", "FP8 codes and a scale of each row", ROW_CONFIGS)
FP8_BLOCKS = _spec("fp8_blocks", torch.float8_e4m3fn, "block", "FP8 codes and a scale of each 1x128", BLOCK_CONFIGS)
FP8_TILES = _spec("fp8_tiles", torch.float8_e4m3fn, "tile", "FP8 codes and a scale of each 128x128", TILE_CONFIGS)
