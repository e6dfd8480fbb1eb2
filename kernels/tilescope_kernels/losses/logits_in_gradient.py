"""The first rows of ``linear_cross_entropy``, whose logits are stored in the memory of the weight's gradient.

dW (classes, columns) has room for the logits of as many rows as there are columns. They are stored in blocks of classes, each
a matrix (rows, classes of the block), shifted by one block: block i of the logits is in the memory of block i - 1 of dW, and
block 0 is in scratch memory. The gradient is computed from the last block to the first. Block i of dW then overwrites the
logits of block i + 1, which are no longer needed. So many rows share large products without memory for their logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.exponentials import LOG2_E
from tilescope_kernels._shared.launching import launch

#: Elements of 16 bytes. cuBLAS chooses its kernels by extents, not only by strides: where an extent of 16-bit operands is not a multiple, it
#: takes slow kernels that move two bytes at a time, even if all rows are aligned. In fp32 all extents are equally fast.
_EVEN = 8


def slices(classes: int, dtype: torch.dtype) -> list[slice]:
    """Slices of classes to multiply one at a time: the last few that are no multiple of 16 bytes, then the others."""
    even = classes // _EVEN * _EVEN
    if dtype == torch.float32 or even in (0, classes):
        return [slice(0, classes)]
    return [slice(even, classes), slice(0, even)]


def write_logits(logits: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Write ``x @ weight.T``, plus ``bias`` unless None, to ``logits``."""
    for part in slices(weight.shape[0], x.dtype):
        if bias is None:
            torch.mm(x, weight[part].T, out=logits[:, part])
        else:
            torch.addmm(bias[part], x, weight[part].T, out=logits[:, part])


def write_dx(dx: torch.Tensor, logits: torch.Tensor, weight: torch.Tensor) -> None:
    """Write ``logits @ weight`` to ``dx``. It adds the smaller of two parts first, so that it rounds the larger one once."""
    first, *others = slices(weight.shape[0], dx.dtype)
    torch.mm(logits[:, first], weight[first], out=dx)
    for part in others:
        dx.addmm_(logits[:, part], weight[part])


def write_dw(dw: torch.Tensor, logits: torch.Tensor, x: torch.Tensor) -> None:
    """Write ``logits.T @ x`` to ``dw``."""
    for part in slices(dw.shape[0], dw.dtype):
        torch.mm(logits[:, part].T, x, out=dw[part])


def add_dw(dw: torch.Tensor, logits: torch.Tensor, x: torch.Tensor) -> None:
    """Add ``logits.T @ x`` to ``dw``, rounding once."""
    for part in slices(dw.shape[0], dw.dtype):
        dw[part].addmm_(logits[:, part].T, x)


#: Alignment of rows of logits, in elements: sectors of 32 bytes in 16 bits. The classes of a block are a multiple of it.
_ALIGNED = 16
#: Fewest classes of a block, fewest rows, and the multiple that rows are rounded to: smaller products are slow.
_LEAST_CLASSES, _LEAST_ROWS, _MULTIPLE = 1024, 256, 128
#: Elements of a row that a program of eight warps holds at a time.
_BLOCK = 8192


@triton.jit
def block_sums_kernel(
    sums_ptr, chosen_ptr, x_ptr, target_ptr, rows, columns, stride, first, ignore_index,
    SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Maximum, sum of exponentials and (if ``SMOOTH``) plain sum of a row's logits in one block, one row per program.

    ``sums`` is (3, rows), for this block. Also stores the target's logit if it is in this block, whose first class is ``first``.
    """
    row = tl.program_id(0)
    x_ptr += row.to(tl.int64) * stride
    lanes = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        x = tl.load(x_ptr + start + lanes, mask=start + lanes < columns, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, x)
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp2((largest - shift) * LOG2_E) + tl.exp2((x - shift) * LOG2_E)
        largest = larger
        if SMOOTH:
            plain += tl.where(start + lanes < columns, x, 0.0)
    most = tl.max(largest, 0)
    shift = tl.where(most == float("-inf"), 0.0, most)
    tl.store(sums_ptr + row, most)
    tl.store(sums_ptr + rows + row, tl.sum(total * tl.exp2((largest - shift) * LOG2_E), 0))
    if SMOOTH:
        tl.store(sums_ptr + 2 * rows + row, tl.sum(plain, 0))
    target = tl.load(target_ptr + row)
    place = target.to(tl.int64) - first
    if (target != ignore_index) & (place >= 0) & (place < columns):
        tl.store(chosen_ptr + row, tl.load(x_ptr + place).to(tl.float32))


@triton.jit
def merge_sums_kernel(
    loss_ptr, parts_ptr, sums_ptr, chosen_ptr, target_ptr, rows, classes, ignore_index, smoothing,
    BLOCKS: tl.constexpr, SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss of each row and the two parts of its log-sum-exp (shift, log), from the sums (blocks, 3, rows) of all blocks."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = row < rows
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    plain = tl.zeros((BLOCK,), tl.float32)
    for block in range(BLOCKS):
        sums = sums_ptr + block * 3 * rows + row
        most = tl.load(sums, mask=mask, other=0.0)
        larger = tl.maximum(largest, most)
        shift = tl.where(larger == float("-inf"), 0.0, larger)
        total *= tl.exp2((largest - shift) * LOG2_E)
        total += tl.load(sums + rows, mask=mask, other=1.0) * tl.exp2((most - shift) * LOG2_E)
        largest = larger
        if SMOOTH:
            plain += tl.load(sums + 2 * rows, mask=mask, other=0.0)
    shift = tl.where(largest == float("-inf"), 0.0, largest)
    log = tl.log(total)
    # Softmax is undefined if a logit is +inf or all are -inf: give NaN.
    log = tl.where(tl.abs(log) == float("inf"), float("nan"), log)
    loss = log + (shift - tl.load(chosen_ptr + row, mask=mask, other=0.0))
    if SMOOTH:
        loss = (1.0 - smoothing) * loss + smoothing * (log + (shift - plain / classes))
    counts = tl.load(target_ptr + row, mask=mask, other=0) != ignore_index
    tl.store(loss_ptr + row, tl.where(counts, loss, 0.0), mask=mask)
    tl.store(parts_ptr + row, shift, mask=mask)
    tl.store(parts_ptr + rows + row, log, mask=mask)


@triton.jit
def block_gradient_kernel(
    x_ptr, parts_ptr, target_ptr, count_ptr, rows, columns, stride, first, classes, ignore_index, smoothing,
    SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Replace a row's logits in one block by their gradient, divided by ``count`` unless None. One row per program."""
    row = tl.program_id(0)
    x_ptr += row.to(tl.int64) * stride
    target = tl.load(target_ptr + row)
    counts = target != ignore_index
    place = (target.to(tl.int64) - first).to(tl.int32)
    scale = 1.0
    if count_ptr is not None:
        scale = 1.0 / tl.load(count_ptr).to(tl.float32)
    shift, log = tl.load(parts_ptr + row), tl.load(parts_ptr + rows + row)
    lanes = tl.arange(0, BLOCK)
    for start in range(0, columns, BLOCK):
        column = start + lanes
        x = tl.load(x_ptr + column, mask=column < columns, other=0.0).to(tl.float32)
        dx = tl.exp2((x - shift) * LOG2_E - log * LOG2_E)
        if SMOOTH:
            dx -= smoothing / classes
        dx = tl.where(column == place, dx - (1.0 - smoothing), dx) * scale
        tl.store(x_ptr + column, tl.where(counts, dx, 0.0).to(x_ptr.dtype.element_ty), mask=column < columns)


@dataclass(frozen=True)
class Blocks:
    """The number of first rows, of blocks, and of classes per block (the last one may have fewer)."""

    rows: int
    number: int
    classes: int


def plan(rows: int, columns: int, classes: int, scratch: int) -> Blocks | None:
    """The rows whose logits fit in dW, in blocks whose logits fit in ``scratch`` elements.

    None where that is not at least twice a chunk, whose logits ``scratch`` holds, or where there would be a single block.
    """
    most = scratch // max(columns, 1) // _ALIGNED * _ALIGNED
    if columns < _MULTIPLE or not _LEAST_CLASSES <= most < classes:
        return None
    number = triton.cdiv(classes, most)
    each = triton.cdiv(triton.cdiv(classes, number), _ALIGNED) * _ALIGNED
    # dx of these rows passes through the scratch memory, too.
    first = min(rows, columns // _MULTIPLE * _MULTIPLE, scratch // columns)
    if first < max(_LEAST_ROWS, 2 * (scratch // classes)):
        return None
    return Blocks(first, triton.cdiv(classes, each), each)


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, first: bool) -> None:
    """Add ``a @ b`` to fp32 ``total``, which is uninitialized for the ``first`` product."""
    if a.dtype == torch.float32 or not a.is_cuda:
        product = a.to(torch.float32) @ b.to(torch.float32)
        total.copy_(product) if first else total.add_(product)
    elif first:
        torch.mm(a, b, out_dtype=torch.float32, out=total)
    else:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)


def run(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, target: torch.Tensor, ignore_index: int,
    smoothing: float, count: torch.Tensor | None, blocks: Blocks,
    losses: torch.Tensor, dx: torch.Tensor | None, dw: torch.Tensor, db: torch.Tensor | None, scratch: torch.Tensor,
) -> None:  # fmt: skip
    """Fill ``losses``, ``dx`` (fp32), ``dw`` and ``db`` of the ``blocks.rows`` rows of ``x``, those that are not None.

    ``scratch`` holds the logits of the first block. ``db`` is added to.
    """
    rows, columns = x.shape
    classes = weight.shape[0]
    sums = torch.empty((blocks.number, 3, rows), dtype=torch.float32, device=x.device)
    chosen = torch.full((rows,), float("nan"), dtype=torch.float32, device=x.device)
    parts = torch.empty((2, rows), dtype=torch.float32, device=x.device)
    memory = dw.view(-1)
    smooth = smoothing > 0

    def block(index: int) -> tuple[slice, torch.Tensor]:
        part = slice(index * blocks.classes, min(classes, (index + 1) * blocks.classes))
        size = part.stop - part.start
        stride = triton.cdiv(size, _ALIGNED) * _ALIGNED
        room = memory[(index - 1) * blocks.classes * columns :] if index else scratch
        return part, room[: rows * stride].view(rows, stride)[:, :size]

    for index in range(blocks.number):
        part, logits = block(index)
        write_logits(logits, x, weight[part], None if bias is None else bias[part])
        launch(
            block_sums_kernel, (rows,),
            sums[index], chosen, logits, target, rows, logits.shape[1], logits.stride(0), part.start, ignore_index,
            SMOOTH=smooth, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
    launch(
        merge_sums_kernel, (triton.cdiv(rows, 512),),
        losses, parts, sums, chosen, target, rows, classes, ignore_index, smoothing,
        BLOCKS=blocks.number, SMOOTH=smooth, BLOCK=512, num_warps=4,
    )  # fmt: skip
    for index in reversed(range(blocks.number)):
        part, logits = block(index)
        launch(
            block_gradient_kernel, (rows,),
            logits, parts, target, count, rows, logits.shape[1], logits.stride(0), part.start, classes, ignore_index,
            smoothing, SMOOTH=smooth, BLOCK=_BLOCK, num_warps=8,
        )  # fmt: skip
        if dx is not None:
            for number, classes_of in enumerate(slices(logits.shape[1], x.dtype)):
                first = index == blocks.number - 1 and number == 0
                _add_product(dx, logits[:, classes_of], weight[part][classes_of], first)
        if db is not None:
            db[part] += logits.sum(0, dtype=torch.float32)
        write_dw(dw[part], logits, x)
