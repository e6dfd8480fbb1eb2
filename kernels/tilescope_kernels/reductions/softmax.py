"""``softmax(x, dim)``, forward and backward: a row stays in registers between its reduction and its result.

Longer rows are in ``softmax_long``.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.exponentials import LOG2_E, exp, finite, merge
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import as_rows, operator, pack, shaped_as, unpack
from tilescope_kernels._shared.row_tiles import (
    aligned,
    ends,
    in_pieces,
    load_pieces,
    narrow,
    pieces_of,
    skewed,
    store_piece,
    vector,
    whole_part,
)
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn, peer


@triton.jit
def softmax_rows_kernel(
    y_ptr, x_ptr, x_stride, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr
):
    """``ROWS`` whole rows per program: one read, one write. ``columns`` and ``x_stride`` are multiples of ``VECTOR``."""
    x_stride = aligned(x_stride, VECTOR)
    columns = aligned(columns, VECTOR)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    x = tl.load(x_ptr + row * x_stride + column, mask=mask, other=float("-inf"))
    # As in PyTorch, a row of -inf becomes NaN (-inf - -inf), and a NaN makes its whole row NaN.
    largest = tl.max(x.to(tl.float32), axis=1, keep_dims=True)
    e = exp(x.to(tl.float32) - largest)
    total = tl.sum(e, axis=1, keep_dims=True)
    y = e * (1.0 / total)
    tl.store(y_ptr + row * columns + column, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["x_stride", "columns"])
def softmax_pieces_kernel(
    y_ptr, x_ptr, x_stride, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """One row per program, in pieces of its dtype: as fp32 exponentials, two wide rows would not fit an SM.

    Each thread computes the maximum and the sum of its elements. One reduction over threads merges both. ``SKEWED`` rows of x and
    y share their misalignment: the pieces are of what aligned accesses cover, and their two ends are held apart.
    """
    row = tl.program_id(0).to(tl.int64)
    begin, before, length = whole_part(row * aligned(x_stride, 1 if SKEWED else WIDTH), columns, WIDTH, SKEWED)
    x_ptr += begin
    y_ptr += begin if SKEWED else row * aligned(columns, WIDTH)
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        end = tl.load(x_ptr + offset, mask=inside, other=float("-inf")).to(tl.float32)
    held = load_pieces(x_ptr, length, float("-inf"), LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    lane_largest = tl.full((LANES,), float("-inf"), tl.float32)
    for i in tl.static_range(STEPS):
        lane_largest = tl.maximum(lane_largest, tl.max(held[i].to(tl.float32), axis=1))
    lane_shift = finite(lane_largest)
    lane_total = tl.zeros((LANES,), tl.float32)
    for i in tl.static_range(STEPS):
        lane_total += tl.sum(tl.exp2((held[i].to(tl.float32) - lane_shift[:, None]) * LOG2_E), axis=1)
    largest, total = tl.reduce((lane_largest, lane_total), 0, merge)
    if SKEWED:
        end_largest = tl.max(end, axis=0)
        end_total = tl.sum(tl.exp2((end - finite(end_largest)) * LOG2_E), axis=0)
        largest, total = merge(largest, total, end_largest, end_total)
    # The sum is infinite only if x is, and 0 only for a row of -inf. PyTorch returns NaN for both.
    less = tl.where((total == float("inf")) | (total == 0.0), float("nan"), -tl.log2(total))
    # The maximum is subtracted separately: max + log would lose the logarithm's low bits if the maximum is large.
    for i in tl.static_range(STEPS):
        y = tl.exp2((held[i].to(tl.float32) - finite(largest)) * LOG2_E + less)
        store_piece(y_ptr, y, length, i, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    if SKEWED:
        y = tl.exp2((end - finite(largest)) * LOG2_E + less)
        tl.store(y_ptr + offset, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def softmax_rows_backward_kernel(
    dx_ptr, dy_ptr, y_ptr, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr, VECTOR: tl.constexpr
):
    """``dx = (dy - sum(dy * y)) * y`` of ``ROWS`` whole rows per program: two reads, one write."""
    columns = aligned(columns, VECTOR)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    mask = (row < rows) & (column < columns)
    offsets = row * columns + column
    dy = tl.load(dy_ptr + offsets, mask=mask, other=0.0)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0)
    inner = tl.sum(dy.to(tl.float32) * y.to(tl.float32), axis=1, keep_dims=True)
    dx = (narrow(dy, columns).to(tl.float32) - inner) * narrow(y, columns).to(tl.float32)
    tl.store(dx_ptr + offsets, dx.to(dx_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["columns"])
def softmax_pieces_backward_kernel(
    dx_ptr, dy_ptr, y_ptr, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr, SKEWED: tl.constexpr,
):  # fmt: skip
    """``dx`` of one row per program, in pieces (``row_tiles``). ``SKEWED`` rows are not 16-byte aligned: see the forward pass."""
    row = tl.program_id(0).to(tl.int64)
    begin, before, length = whole_part(row * aligned(columns, 1 if SKEWED else WIDTH), columns, WIDTH, SKEWED)
    dx_ptr += begin
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        dy_end = tl.load(dy_ptr + begin + offset, mask=inside, other=0.0).to(tl.float32)
        y_end = tl.load(y_ptr + begin + offset, mask=inside, other=0.0).to(tl.float32)
    dy = load_pieces(dy_ptr + begin, length, 0.0, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    y = load_pieces(y_ptr + begin, length, 0.0, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    products = tl.zeros((LANES,), tl.float32)
    for i in tl.static_range(STEPS):
        products += tl.sum(dy[i].to(tl.float32) * y[i].to(tl.float32), axis=1)
    inner = tl.sum(products, axis=0)
    if SKEWED:
        inner += tl.sum(dy_end * y_end, axis=0)
    for i in tl.static_range(STEPS):
        dx = (narrow(dy[i], columns).to(tl.float32) - inner) * narrow(y[i], columns).to(tl.float32)
        store_piece(dx_ptr, dx, length, i, LANES, WIDTH, STEPS, WHOLE, MASKED=2)
    if SKEWED:
        tl.store(dx_ptr + offset, ((dy_end - inner) * y_end).to(dx_ptr.dtype.element_ty), mask=inside)


#: ``ROWS`` per program. The first is the launcher's choice for rows of about 4096 columns.
CONFIGS = tuple({"ROWS": rows, "num_warps": warps} for rows in (1, 2, 4) for warps in (4, 1, 2, 8, 16, 32))

#: Bytes of the longest row in registers as a block, and in the backward pass of each operand by the bytes of an element.
_HELD = 32 * 1024
_HELD_BACKWARD = {2: 64 * 1024, 4: 32 * 1024}
#: Fewest columns of rows in pieces that are not 16-byte aligned, which as a block would be accessed element by element.
_LEAST_SKEWED = 513
#: Elements of the largest block of several rows.
_MOST = 32768


def _bytes(x: torch.Tensor) -> int:
    """Bytes of a row."""
    return x.shape[1] * x.element_size()


def _even(pieces: Config, most: int = 32) -> Config:
    """The parameters with an even number of pieces, up to ``most``: more widths share a compiled kernel. Two pieces are masked then."""
    steps = pieces["STEPS"]
    is_odd = steps % 2 and 1 < steps < most and not pieces["WHOLE"]
    return {**pieces, "STEPS": steps + 1} if is_odd else pieces


def _pieces(x: torch.Tensor, warps: int | None) -> Config | None:
    """``in_pieces``, but three pieces become four. More pieces would idle too many lanes.

    Rows that are contiguous but not 16-byte aligned have pieces of what aligned accesses cover (``whole_part``).
    """
    columns, size = x.shape[1], x.element_size()
    if not skewed(x):
        found = in_pieces(x, warps)
        return found and _even(found, most=4)
    if columns < _LEAST_SKEWED:
        return None
    # At most 96 bytes per thread: of 1 to 32 warps, these were the fastest for softmax of 513 to 20001 columns in bf16.
    length = columns * size // 16 * (16 // size)
    pieces = pieces_of(length, size, warps or min(32, next_power_of_2(cdiv(length * size, 3072))))
    # The covered part has one of two lengths.
    return _even({**pieces, "WHOLE": False})


def _block(x: torch.Tensor, config: Config, elements: int, most: int) -> Config:
    """Parameters for whole rows in one block, of ``elements`` per thread in at most ``most`` warps.

    Raises ValueError for a config that does not fit.
    """
    block = next_power_of_2(x.shape[1])
    rows = config.get("ROWS", max(1, 1024 // block))
    if rows > 1 and rows * block > _MOST:
        raise ValueError(f"config has ROWS={rows}: a program holds at most {max(1, _MOST // block)} such rows")
    # Rows that are not 16-byte aligned are read one element at a time, each with its own address and mask.
    each = elements if _bytes(x) % 16 == 0 else min(elements, 8)
    warps = min(most, max(1, rows * block // (32 * each)))
    return {"num_warps": warps, **config, "ROWS": rows, "BLOCK": block, "VECTOR": vector(x)}


def _forward_pieces(x: torch.Tensor, config: Config) -> Config | None:
    """Parameters for rows in pieces: over 4096 columns or not 16-byte aligned, up to 48 KB. None for others."""
    (rows, columns), has_ends = x.shape, skewed(x)
    # Few short rows are sooner done element by element, in more warps each, than in aligned pieces and their ends.
    short = columns <= 1024 and rows <= 16 * multiprocessors(x) if has_ends else columns <= 4096
    if short or _bytes(x) > 48 * 1024 or config.get("ROWS", 1) > 1:
        return None
    # Norms take 16 warps where 8 are the default here, but exchange less.
    return _pieces(x, config.get("num_warps", 8 if 12288 <= columns <= 16384 and not has_ends else None))


def _backward_pieces(y: torch.Tensor, config: Config) -> Config | None:
    """As ``_forward_pieces``. With a power of two of columns a block has no idle lanes and is as fast."""
    is_held = _bytes(y) <= _HELD_BACKWARD[y.element_size()] and config.get("ROWS", 1) == 1
    return _pieces(y, config.get("num_warps")) if is_held and y.shape[1] != next_power_of_2(y.shape[1]) else None


@operator("softmax", autocast="fp32", shards="r r", fake=lambda x, _: x.new_empty(x.shape))
def _softmax(x: torch.Tensor, config: str) -> torch.Tensor:
    rows, columns = x.shape
    y, chosen = x.new_empty(rows, columns), unpack(config) or {}
    if y.numel() == 0:
        return y
    if held := _forward_pieces(x, chosen):
        launch(softmax_pieces_kernel, (rows,), y, x, x.stride(0), columns, SKEWED=skewed(x), **held)
    elif next_power_of_2(columns) * x.element_size() <= _HELD:
        # 32 elements per thread are four 16-byte loads in flight at 16 bits.
        block = _block(x, chosen, 32, 16)
        launch(softmax_rows_kernel, (cdiv(rows, block["ROWS"]),), y, x, x.stride(0), rows, columns, **block)
    else:
        from tilescope_kernels.reductions import softmax_long  # noqa: PLC0415 - few models have such rows

        softmax_long.write(y, x, chosen)
    return y


@operator("softmax_backward", shards="rr r", fake=lambda _, y, __: y.new_empty(y.shape))
def _softmax_backward(dy: torch.Tensor, y: torch.Tensor, config: str) -> torch.Tensor:
    rows, columns = y.shape
    dx, chosen = y.new_empty(rows, columns), unpack(config) or {}
    if dx.numel() == 0:
        return dx
    if held := _backward_pieces(y, chosen):
        launch(softmax_pieces_backward_kernel, (rows,), dx, dy, y, columns, SKEWED=skewed(y), **held)
    elif next_power_of_2(columns) * y.element_size() <= _HELD_BACKWARD[y.element_size()]:
        block = _block(y, chosen, 16, 32)
        launch(softmax_rows_backward_kernel, (cdiv(rows, block["ROWS"]),), dx, dy, y, rows, columns, **block)
    else:
        from tilescope_kernels.reductions import softmax_long  # noqa: PLC0415 - few models have such rows

        softmax_long.write_gradient(dx, dy, y, chosen)
    return dx


@_softmax.gradient(lambda x, config, y: (y,))
def _differentiate(ctx: Any, dy: torch.Tensor) -> torch.Tensor:
    return _softmax_backward(dy.contiguous(), *ctx.saved_tensors, *ctx.rest)


def softmax(x: torch.Tensor, dim: int = -1, *, config: Config | None = None) -> torch.Tensor:
    """Softmax of ``x`` (fp32, fp16, bf16; any shape and strides) along ``dim``, computed in fp32.

    As ``torch.nn.functional.softmax``, including infinities and NaN; once differentiable. Rows of up to 48 KB (32 KB if they
    are neither contiguous nor 16-byte aligned) are read once, and on GPUs with enough shared memory those of up to 128 KB;
    longer ones a second time from L2. ``config`` is one of ``CONFIGS``. Raises
    ValueError, naming the argument, for other dtypes, a ``dim`` that ``x`` does not have, and devices without CUDA.
    """
    if not use_triton():
        return reference(x, dim)
    check_tensors(x=x)
    axes = max(x.dim(), 1)
    if not -axes <= dim < axes:
        raise ValueError(f"dim is {dim}: x has {x.dim()} dimensions, so give {-axes} to {axes - 1}")
    if dim in (-1, x.dim() - 1) and x.dim():
        return shaped_as(_softmax(as_rows(x, x.shape[-1]), pack(config)), x)
    moved = x.reshape(1) if x.dim() == 0 else x.movedim(dim, -1)
    y = _softmax(as_rows(moved, moved.shape[-1]), pack(config)).reshape(moved.shape)
    return y.reshape(()) if x.dim() == 0 else y.movedim(-1, dim)


def reference(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """The reference in plain PyTorch."""
    return F.softmax(x, dim)


def eager(x: torch.Tensor) -> torch.Tensor:
    """The formula one operation at a time, through memory."""
    # The gradient through the maximum is zero; detaching it saves a useless backward operation.
    e = (x - x.amax(-1, keepdim=True).detach()).exp()
    return e / e.sum(-1, keepdim=True)


@drawn
def inputs(draw: Draw, rows: int, columns: int) -> dict[str, Any]:
    """``x`` of rows x columns, normal with standard deviation 2: some probabilities large, most small."""
    return {"x": draw(rows, columns, scale=2.0, grad=True)}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x and writes y; backward reads dy and y and writes dx. Each takes four operations per element.

    Forward: subtract, exponential, add, divide (comparisons for the maximum do not count). Backward: multiply and add for
    the inner product, subtract, multiply.
    """
    size = workload.bytes
    return Cost(flops=4 * workload.elements, bytes_read=size if direction == FORWARD else 2 * size, bytes_written=size)


SPEC = declare(
    "softmax", "softmax of each row", "rows columns",
    "small 128x1024-bf16, medium 4096x1024-bf16, large 16384x4096-bf16, ragged 1823x781-fp32, "
    "wide 8192x16384-bf16, widest 2048x65536-bf16",
    triton=Implementation(softmax, "one read, one write", CONFIGS),
    eager=Implementation(eager, "max, subtract, exp, sum and divide, one after the other"),
    aten=Implementation(reference, "torch.nn.functional.softmax"),
    liger=peer("liger-kernel", "liger_kernel.ops.softmax:LigerSoftmaxFunction.apply", "Liger-Kernel's"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-6, "fp16": 1.1e-3, "bf16": 9e-3},
    passes="forward backward",
)  # fmt: skip
