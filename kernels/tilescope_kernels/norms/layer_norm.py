"""LayerNorm, forward and backward: one read and one write of each row, and dW and dB without atomics.

Ba, Kiros and Hinton, "Layer Normalization", arXiv:1607.06450.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2, shared_memory
from tilescope_kernels._shared.operators import as_rows, as_vector, operator, pack, shaped_as, unpack, wants_grad
from tilescope_kernels._shared.row_tiles import in_pieces, vector
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.norms import layer_norm_kernels as kernels
from tilescope_kernels.norms.special_rows import SUMMED, backward_of_special_rows
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn, peer

#: ``PROGRAMS`` per SM, 0 for the launcher's choice, walk the rows in the backward pass and prefetch ``STAGES - 1`` rows. Each
#: accumulates its share of dW and dB. The forward pass has one program per row, or per several short rows.
CONFIGS = tuple(
    {"PROGRAMS": programs, "STAGES": stages, "num_warps": warps}
    for programs, stages in ((0, 2), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (4, 1), (4, 2))
    for warps in (4, 8, 16)
)

#: Bytes of the longest row in one program, half of an SM's registers. Longer rows are split into parts.
_HELD = 128 * 1024
#: Most columns of rows that share a backward program: wider rows are faster one at a time with prefetching.
_SHORT = 64
#: Most columns whose fp32 sums for both dW and dB fit in registers.
_SUMMED_TWICE = 8192
#: Warps and stages for 16-bit rows of more columns, and warps for such rows in pieces.
_ROW_WARPS, _ROW_STAGES, _PIECES_WARPS = 32, 1, 16


def _warps(x: torch.Tensor, rows: int, elements: int) -> int:
    """Number of warps for ``rows`` rows of ``x`` at ``elements`` per thread, between 1 and 16."""
    if x.shape[1] * x.element_size() % 16:
        # Rows that are not 16-byte aligned are read one element at a time, each with its own address and mask.
        elements = min(elements, 8)
    return min(16, max(1, rows * next_power_of_2(x.shape[1]) // (32 * elements)))


def _for_pieces(x: torch.Tensor) -> tuple[int | None, bool]:
    """Warps for 16-bit rows in pieces, and whether weights are loaded early, with a row: few rows would not find them in L1.

    With 4 warps twelve programs fit an SM instead of six. With 8 warps instead of 16, wide rows leave fewer lanes idle. Few rows are
    faster in 8 warps that load weights early; more rows are not.
    """
    rows, columns = x.shape
    if x.element_size() != 2 or columns > 16384:
        return None, False
    early = columns <= 8192 and rows <= 2 * multiprocessors(x)
    if 4096 <= columns <= 8192:
        return 8 if early else 4, early
    return 8 if columns > 14336 else None, early


def _keep(x: torch.Tensor, block: int, summed: bool) -> int:
    """What a backward program keeps in registers of a row of ``block`` elements, beside sums for dW if ``summed``."""
    if block <= (_SUMMED_TWICE if summed else SUMMED):
        return int(kernels._ALL.value)
    return int((kernels._ROW if summed and x.element_size() == 2 else kernels._NOTHING).value)


def _column_sums(partial: torch.Tensor, x: torch.Tensor) -> None:
    """Fill fp32 ``partial`` (programs, columns) with partial sums over the rows of contiguous ``x`` (rows, columns)."""
    rows, columns = x.shape
    block = 1024
    launch(
        kernels.column_sums_kernel, (cdiv(columns, block), partial.shape[0]), partial, x, rows, columns, ROWS=4, BLOCK=block, num_warps=4,
    )  # fmt: skip


def _results(
    x: torch.Tensor, weight: Any, bias: Any, eps: float, save: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(*x.shape), x.new_empty((x.shape[0] if save else 0, 2), dtype=torch.float32)


@operator("layer_norm", autocast="fp32", shards="rww rr", fake=_results)
def _layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, save: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """y and, if ``save``, each row's mean and 1 / standard deviation (rows, 2); else an empty tensor."""
    (rows, columns), (y, stats) = x.shape, _results(x, weight, bias, eps, save, config)
    if y.numel() == 0:
        return y, stats
    asked, saved = (unpack(config) or {}).get("num_warps"), stats if save else None
    block = next_power_of_2(columns)
    few, early = _for_pieces(x)
    if columns * x.element_size() > _HELD:
        from tilescope_kernels.norms.long_rows import forward_in_parts  # noqa: PLC0415 - few models have such rows

        forward_in_parts(y, None, saved, x, None, weight, bias, eps, centred=True)
    elif held := in_pieces(x, asked or few):
        launch(
            kernels.layer_norm_pieces_kernel, (rows,), y, saved, x, weight, bias, x.stride(0), columns, eps,
            ONCE=x.element_size() == 2, EARLY=early, **held,
        )  # fmt: skip
    else:
        # Two rows of 4096 per program share its latency; with more short rows, small inputs would have too few programs.
        # 32 elements per thread are four 16-byte loads in flight at 16 bits.
        tile = max(1, min(2, 8192 // block)) if block > 512 else 1024 // block
        # Few rows find no weights in L1 and leave SMs idle: they load weights early.
        early = rows <= 4 * multiprocessors(x)
        if early and block >= 512:
            tile = 1
        launch(
            kernels.layer_norm_kernel, (cdiv(rows, tile),), y, saved, x, weight, bias, x.stride(0), rows, columns, eps,
            ROWS=tile, BLOCK=block, VECTOR=vector(x), EARLY=early, num_warps=asked or _warps(x, tile, 8 if early else 32),
        )  # fmt: skip
    return y, stats


@operator(
    "layer_norm_backward",
    shards="rrwr rp",
    fake=lambda dy, x, weight, stats, sums, config: (
        x.new_empty(*x.shape),
        x.new_empty((2, x.shape[1] if sums else 0), dtype=sums_dtype(x, weight)),
    ),
)
def _layer_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, stats: torch.Tensor, sums: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """dx and, if ``sums``, dW and dB as rows of one tensor (2, columns); else (2, 0)."""
    rows, columns = x.shape
    if x.numel() == 0:
        return x.new_empty(rows, columns), torch.zeros(
            (2, columns if sums else 0), dtype=sums_dtype(x, weight), device=x.device
        )
    none = torch.empty((2, 0), dtype=sums_dtype(x, weight), device=x.device)
    if found := backward_of_special_rows(dy, None, x, weight, stats, sums, config, short=_SHORT, centred=True):
        dx, both = found
        return dx, none if both is None else both
    block = next_power_of_2(columns)
    chosen = unpack(config) or {}
    keep = _keep(x, block, sums)
    dx = x.new_empty(rows, columns)
    if sums:
        # An SM's registers hold the sums of 16384 columns. With fewer columns several programs fit and hide each other's
        # latency, at the cost of a row of partial sums each. Short rows are prefetched instead.
        most = min(4, _SUMMED_TWICE // block) if block > 1024 else min(8, 4096 // block)
        each = multiprocessors(x)
        # At least eight rows per program, down to one program per SM: with few rows, the partial sums are as much traffic as
        # the rows.
        programs = min(max(1, most) * each, max(each, rows // 8))
        programs = min(rows, chosen["PROGRAMS"] * each if chosen.get("PROGRAMS") else programs)
        # A row that is read twice hits L1 the second time, which asynchronous copies would bypass.
        warps, stages = _warps(x, 1, 32), 1
        if keep == kernels._ROW.value:
            warps, stages = _ROW_WARPS, chosen.get("STAGES", _ROW_STAGES)
        elif keep == kernels._ALL.value:
            row = block * x.element_size()
            ahead = 3 if row <= 2048 else 2 if row <= 16384 else 1
            warps, stages = _warps(x, 1, 16), chosen.get("STAGES", 1 + ahead)
        partial = torch.empty((2, programs, columns), device=x.device)
    else:
        warps, programs, stages, partial = _warps(x, 1, 16), rows, 1, None
    if held := in_pieces(x, chosen.get("num_warps", _PIECES_WARPS)) if keep == kernels._ROW.value else None:
        # Prefetching pays where no piece has a mask.
        ahead = columns == block and shared_memory(x) > 10 * columns
        launch(
            kernels.layer_norm_backward_pieces_kernel, (programs,), dx, partial, dy, x, weight, stats, x.stride(0), rows, columns,
            STAGES=chosen.get("STAGES", 1 + ahead), **held,
        )  # fmt: skip
        return dx, sum_partials(partial, sums_dtype(x, weight))
    launch(
        kernels.layer_norm_backward_kernel, (programs,), dx, partial, dy, x, weight, stats, x.stride(0), rows, columns,
        BLOCK=block, KEEP=keep, STAGES=stages, VECTOR=vector(x), num_warps=chosen.get("num_warps", warps),
    )  # fmt: skip
    if partial is None:
        return dx, none
    if keep != kernels._ALL.value:
        _column_sums(partial[1], dy)
    return dx, sum_partials(partial, sums_dtype(x, weight))


@_layer_norm.gradient(lambda x, weight, bias, eps, save, config, y, stats: (x, weight, stats))
def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    wants_dw, wants_db = ctx.needs_input_grad[1:3]
    dx, sums = _layer_norm_backward(dy.contiguous(), *ctx.saved_tensors, wants_dw or wants_db, ctx.rest[-1])
    return dx, sums[0] if wants_dw else None, sums[1].to(ctx.dtypes[2]) if wants_db else None


def layer_norm(
    x: torch.Tensor, normalized_shape: int | Sequence[int], weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, eps: float = 1e-5, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """LayerNorm of ``x`` over its trailing ``normalized_shape``, computed in fp32; once differentiable.

    As ``torch.nn.functional.layer_norm``. ``weight`` and ``bias`` have the shape ``normalized_shape`` and the dtype of
    ``x`` (fp32, fp16, bf16) or fp32. The result has the dtype of ``x``. Gradients are deterministic. ``config`` is one of
    ``CONFIGS``. Raises ValueError, naming the argument, for other dtypes, shapes that do not fit, and devices without CUDA.
    """
    if not use_triton():
        return reference(x, weight, bias, eps, normalized_shape)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    check_tensors(True, x=x, weight=weight, bias=bias)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(f"normalized_shape is {shape} but x has shape {tuple(x.shape)}: give its trailing dimensions")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: give normalized_shape, {shape}")
    columns = math.prod(shape)
    save = wants_grad(x, weight, bias)
    y, _ = _layer_norm(as_rows(x, columns), as_vector(weight), as_vector(bias), eps, save, pack(config))
    return shaped_as(y, x)


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm``, with the same arguments, parameters and state, computed by ``layer_norm``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize ``input`` (..., *normalized_shape). Raises ValueError as ``layer_norm`` does."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)


def reference(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float = 1e-5,
    normalized_shape: int | Sequence[int] | None = None,
) -> torch.Tensor:  # fmt: skip
    """LayerNorm in plain PyTorch, over the last dimension unless ``normalized_shape`` is given."""
    shape = x.shape[-1:] if normalized_shape is None else normalized_shape
    return F.layer_norm(x, (shape,) if isinstance(shape, int) else tuple(shape), weight, bias, eps)


def triton_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float, config: Config | None = None
) -> torch.Tensor:
    """``layer_norm`` over the last dimension, with the spec's arguments."""
    return layer_norm(x, x.shape[-1], weight, bias, eps, config=config)


def eager(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """The formula one operation at a time, through memory."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + eps) * weight + bias


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns around 0.5 (a mean to remove), ``weight`` around 1, ``bias`` around 0."""
    x, weight = draw(rows, columns, shift=0.5, grad=True), draw(columns, scale=0.2, shift=1.0, grad=True)
    return {"x": x, "weight": weight, "bias": draw(columns, scale=0.2, grad=True), "eps": 1e-5}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x, weight and bias and writes y; backward reads dy, x and weight and writes dx, dW and dB.

    Saved statistics, which can be recomputed, and the partial sums of dW and dB are not counted. Operations per element: forward, one for the mean, three for the variance, three for the scaling. Backward: two for n,
    one for g, three for the two sums, four for dx, three for dW and dB.
    """
    rows, columns = workload.dims.values()
    row, size = columns * workload.itemsize, workload.bytes
    if direction == FORWARD:
        return Cost(flops=rows * (7 * columns + 4), bytes_read=size + 2 * row, bytes_written=size)
    return Cost(flops=rows * (13 * columns + 2), bytes_read=2 * size + row, bytes_written=size + 2 * row)


SPEC = declare(
    "layer_norm", "LayerNorm of each row", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x781-fp32, "
    "wide 8192x16384-bf16, widest 2048x65536-bf16",
    triton=Implementation(triton_rows, "one read, one write", CONFIGS),
    eager=Implementation(eager, "the formula one operation at a time"),
    aten=Implementation(reference, "torch.nn.functional.layer_norm"),
    liger=peer("liger-kernel", "liger_kernel.ops.layer_norm:LigerLayerNormFunction.apply", "Liger-Kernel's"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6.8e-3},
    passes="forward backward",
)  # fmt: skip
