"""The first rows of ``linear_cross_entropy``, whose logits lie where the weight's gradient will be.

The gradient of a weight (classes, columns) has room for the logits of as many rows as there are columns. They lie there in
blocks of classes, each one a matrix of all these rows, and each one block further ahead than its part of the gradient: the
first block's logits lie in other memory. From the last block on, what is written over logits that are not needed any more is
the gradient of the next block: so many rows are multiplied at once without memory for their logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.online_softmax import LOG2_E

#: Rows of a block are aligned to this many elements, 16 bytes of any dtype, and its classes a multiple of it.
_ALIGNED = 8
#: Fewest classes of a block and fewest rows, and what the number of rows is a multiple of: below, products are small.
_LEAST_CLASSES, _LEAST_ROWS, _MULTIPLE = 1024, 256, 128
#: Elements of a row that a program of eight warps holds.
_BLOCK = 8192


@triton.jit
def block_sums_kernel(
    sums_ptr, chosen_ptr, x_ptr, target_ptr, rows, columns, stride, first, ignore_index,
    SMOOTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a row of a block: largest logit, sum of exponentials, and with ``SMOOTH`` plain sum; its target, if it is here.

    A program a row. ``sums`` (3, rows) are of this block, whose first class is ``first``.
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
    """The loss of each row and the two parts of its log-sum-exp, from the sums (blocks, 3, rows) of all blocks."""
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
    # Softmax is not defined where a logit is infinite, or where all are -inf.
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
    """Replace a row's logits of a block by their gradient. A program a row; ``count`` divides it unless None."""
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
    """How many rows go first, and the number and the classes of the blocks that their logits lie in, the last one aside."""

    rows: int
    number: int
    classes: int


def plan(rows: int, columns: int, classes: int, scratch: int) -> Blocks | None:
    """The rows whose logits fit the weight's gradient, in blocks of which ``scratch`` elements hold one.

    None where that is no more than a chunk of rows, whose logits ``scratch`` holds, or where there is one block alone.
    """
    most = scratch // columns // _ALIGNED * _ALIGNED
    if not _LEAST_CLASSES <= most < classes:
        return None
    number = triton.cdiv(classes, most)
    each = triton.cdiv(triton.cdiv(classes, number), _ALIGNED) * _ALIGNED
    # The gradient of these rows of x goes through the scratch memory, too.
    first = min(rows, columns // _MULTIPLE * _MULTIPLE, scratch // columns)
    if first < max(_LEAST_ROWS, 2 * (scratch // classes)):
        return None
    return Blocks(first, triton.cdiv(classes, each), each)


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor, first: bool) -> None:
    """Add ``a @ b`` to ``total``, which is fp32 and, of the first one, not written yet."""
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
    """Fill the losses of ``blocks.rows`` rows of ``x``, and what they are given of ``dx`` (in fp32), ``dw`` and ``db``.

    ``scratch`` holds the logits of the first block.
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
        if bias is None:
            torch.mm(x, weight[part].T, out=logits)
        else:
            torch.addmm(bias[part], x, weight[part].T, out=logits)
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
            _add_product(dx, logits, weight[part], index == blocks.number - 1)
        if db is not None:
            db[part] += logits.sum(0, dtype=torch.float32)
        torch.mm(logits.T, x, out=dw[part])
