"""Triton kernels of ``conv2d``: tiles of pixels by filters, through pointers or TMA descriptors."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def _gathered(
    x_ptr, w_ptr, batch, height, width, channels, out_height, out_width, filters, stride_h, stride_w, pad_h, pad_w,
    dilation_h, dilation_w, first_pixel, first_filter, KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Accumulate a tile of BLOCK_M pixels, consecutive in memory, by BLOCK_N filters, through pointers.

    ``RUN``: a whole row of taps, consecutive in memory without dilation, is multiplied as one run of channels. That fills a
    step along K when channels are few: with 3 channels and 7 taps 21 of 32 elements, instead of 3 of 16.
    """
    pixel = first_pixel + tl.arange(0, BLOCK_M)
    column = pixel % out_width * stride_w - pad_w
    row = pixel // out_width % out_height * stride_h - pad_h
    image = pixel // (out_width * out_height)
    filter_ = first_filter + tl.arange(0, BLOCK_N)
    channel = tl.arange(0, BLOCK_K)
    # Only a pixel's origin needs 64 bits.
    x_rows = x_ptr + ((image.to(tl.int64) * height + row) * width + column)[:, None] * channels + channel[None, :]
    w_rows = w_ptr + filter_.to(tl.int64)[None, :] * (KERNEL_H * KERNEL_W * channels) + channel[:, None]
    TAPS: tl.constexpr = 1 if RUN else KERNEL_W
    run = channels * (KERNEL_W // TAPS)
    blocks = tl.cdiv(run, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, KERNEL_H * TAPS * blocks):
        tap = step // blocks
        start = step % blocks * BLOCK_K
        down = tap // TAPS * dilation_h
        right = tap % TAPS * dilation_w
        # Elements outside the image are padding, as are pixels past the last image.
        inside = (row + down >= 0) & (row + down < height) & (image < batch)
        if RUN:
            at = column[:, None] + ((start + channel) // channels)[None, :]
            x_mask = inside[:, None] & (at >= 0) & (at < width)
        else:
            x_mask = (inside & (column + right >= 0) & (column + right < width))[:, None]
        w_mask = (filter_ < filters)[None, :]
        if not EVEN:
            x_mask = x_mask & (start + channel < run)[None, :]
            w_mask = w_mask & (start + channel < run)[:, None]
        x = tl.load(x_rows + ((down * width + right) * channels + start), mask=x_mask, other=0.0)
        w = tl.load(w_rows + (tap * run + start), mask=w_mask, other=0.0)
        # "ieee": fp32 operands are multiplied as fp32, not rounded to tf32.
        total = tl.dot(x, w, total, input_precision="ieee")
    return total


@triton.jit
def _finished(total, bias_ptr, first_filter, filters, BLOCK_N: tl.constexpr, RELU: tl.constexpr):
    """Add the bias and apply ReLU, which keeps NaN."""
    if bias_ptr is not None:
        filter_ = first_filter + tl.arange(0, BLOCK_N)
        total += tl.load(bias_ptr + filter_, mask=filter_ < filters, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.where(total < 0.0, 0.0, total)
    return total


@triton.jit
def conv2d_kernel(
    y_ptr, x_ptr, w_ptr, bias_ptr, batch, height, width, channels, out_height, out_width, filters,
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, RELU: tl.constexpr, EVEN: tl.constexpr, RUN: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile per program, through pointers. ``EVEN``: the channels, or those of a ``RUN``, are a multiple of BLOCK_K."""
    tiles_n = tl.cdiv(filters, BLOCK_N)
    # Consecutive programs have tiles of the same pixels, which they share in L2.
    first_pixel = tl.program_id(0) // tiles_n * BLOCK_M
    first_filter = tl.program_id(0) % tiles_n * BLOCK_N
    total = _gathered(
        x_ptr, w_ptr, batch, height, width, channels, out_height, out_width, filters, stride_h, stride_w, pad_h, pad_w,
        dilation_h, dilation_w, first_pixel, first_filter, KERNEL_H, KERNEL_W, BLOCK_M, BLOCK_N, BLOCK_K, EVEN, RUN,
    )  # fmt: skip
    total = _finished(total, bias_ptr, first_filter, filters, BLOCK_N, RELU)
    m = tl.arange(0, BLOCK_M)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    y_tile = y_ptr + first_pixel.to(tl.int64) * filters + first_filter
    mask = (first_pixel + m < batch * out_height * out_width) & (first_filter + n < filters)
    tl.store(y_tile + m * filters + n, total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["batch", "out_height", "out_width"])
def conv2d_rectangles_kernel(
    y_ptr, x_ptr, w_ptr, bias_ptr, y_tiles, x_tiles, w_tiles, batch, channels, out_height, out_width, filters,
    pad_h, pad_w, dilation_h, dilation_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE: tl.constexpr, RELU: tl.constexpr,
    IMAGES: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """IMAGES x ROWS x COLUMNS pixels by BLOCK_N filters per program, at ``STRIDE`` 1 or 2, through TMA descriptors.

    At stride 1 the inputs under one tap are a rectangle too. At stride 2 they are one of the rows, and of the columns, of one parity:
    ``x_tiles`` has a dimension for the parity of rows, and its last holds the channels of an even and of an odd column. TMA fills a
    rectangle with zeros outside the image, so padding costs no masks or address arithmetic. ``y_tiles`` is None if a pixel's filters are not a multiple of 16 bytes. The grid's second axis
    splits the sum over taps and channels: each split has a result of its own in ``y``. ``PDL``: programmatic dependent launch.
    """
    if PDL:
        gdc_launch_dependents()
    tiles_n = tl.cdiv(filters, BLOCK_N)
    tile = tl.program_id(0) // tiles_n
    first_filter = tl.program_id(0) % tiles_n * BLOCK_N
    tiles_w = tl.cdiv(out_width, COLUMNS)
    tiles_h = tl.cdiv(out_height, ROWS)
    column = tile % tiles_w * COLUMNS
    row = tile // tiles_w % tiles_h * ROWS
    image = tile // (tiles_w * tiles_h) * IMAGES
    blocks = tl.cdiv(channels, BLOCK_K)
    # The product is transposed, filters x pixels, because Triton keeps a reshaped operand in shared memory only on the right;
    # a left one must have the shape that was loaded.
    total = tl.zeros((BLOCK_N, IMAGES * ROWS * COLUMNS), tl.float32)
    steps = KERNEL_H * KERNEL_W * blocks
    each = tl.cdiv(steps, tl.num_programs(1))
    first = tl.program_id(1) * each
    for step in range(first, tl.minimum(steps, first + each)):
        tap = step // blocks
        start = step % blocks * BLOCK_K
        down = tap // KERNEL_W * dilation_h - pad_h
        right = tap % KERNEL_W * dilation_w - pad_w
        if STRIDE == 1:
            x = x_tiles.load([image, row + down, column + right, start])
        else:
            x = x_tiles.load(
                [image, row + (down >> 1), down & 1, column + (right >> 1), (right & 1) * channels + start]
            )
        x = x.reshape(IMAGES * ROWS * COLUMNS, BLOCK_K)
        w = w_tiles.load([tap, first_filter, start]).reshape(BLOCK_N, BLOCK_K)
        total = tl.dot(w, x.T, total)
    total = _finished(total.T, bias_ptr, first_filter, filters, BLOCK_N, RELU)
    y = total.to(y_ptr.dtype.element_ty)
    if y_tiles is not None:
        y_tiles.store([image, row, column, first_filter], y.reshape(IMAGES, ROWS, COLUMNS, BLOCK_N))
    else:
        pixel = tl.arange(0, IMAGES * ROWS * COLUMNS)
        i = image + pixel // (ROWS * COLUMNS)
        r = row + pixel // COLUMNS % ROWS
        c = column + pixel % COLUMNS
        filter_ = first_filter + tl.arange(0, BLOCK_N)
        y_rows = (
            y_ptr + (((tl.program_id(1) * batch + i).to(tl.int64) * out_height + r) * out_width + c)[:, None] * filters
        )
        inside = (i < batch) & (r < out_height) & (c < out_width)
        tl.store(y_rows + filter_[None, :], y, mask=inside[:, None] & (filter_ < filters)[None, :])


@triton.jit
def add_splits_kernel(
    y_ptr, parts_ptr, bias_ptr, elements, filters,
    SPLITS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Add up SPLITS results of ``elements`` in a fixed order, then the bias, and apply ReLU."""
    if PDL:
        gdc_wait()
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < elements
    total = tl.load(parts_ptr + place, mask=mask, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts_ptr + tl.cast(elements, tl.int64) * split + place, mask=mask, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + place % filters, mask=mask, other=0.0).to(tl.float32)
    if RELU:
        total = tl.where(total < 0.0, 0.0, total)
    tl.store(y_ptr + place, total.to(y_ptr.dtype.element_ty), mask=mask)
