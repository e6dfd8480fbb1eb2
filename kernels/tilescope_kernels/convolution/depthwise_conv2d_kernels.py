"""Triton kernels of ``depthwise_conv2d``: strips of outputs of one channel, accumulated in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def _is_used(place, outputs, stride, taps, dilation):
    """Whether the input at offset ``place`` from a strip's first is under a tap of any of the strip's outputs."""
    return any((place - stride * output) in range(0, taps * dilation, dilation) for output in range(outputs))


@triton.jit
def turned_taps_kernel(turned_ptr, w_ptr, filters, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """Transpose (filters, TAPS) to (TAPS, filters), so that one access loads a tap of adjacent channels."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < filters * TAPS
    w = tl.load(w_ptr + place, mask=mask)
    tl.store(turned_ptr + place % TAPS * filters + place // TAPS, w, mask=mask)


@triton.jit
def _places(
    block, channels, strips_down, strips_across,
    LAST: tl.constexpr, CHANNELS: tl.constexpr, ACROSS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Channel, and position down and across the result, of each strip of a block."""
    place = tl.arange(0, BLOCK)
    if LAST:
        groups = tl.cdiv(channels, CHANNELS)
        tiles = tl.cdiv(strips_across, ACROSS)
        channel = block % groups * CHANNELS + place % CHANNELS
        across = block // groups % tiles * ACROSS + place // CHANNELS % ACROSS
        down = block // groups // tiles * (BLOCK // (CHANNELS * ACROSS)) + place // (CHANNELS * ACROSS)
    else:
        strip = block * BLOCK + place
        across = strip % strips_across
        down = strip // strips_across % strips_down
        channel = strip // (strips_across * strips_down)
    return channel, down, across


@triton.jit
def _loaded_inputs(
    x_at, to_column, there, inside,
    COLUMNS: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr,
):  # fmt: skip
    """Load the inputs under one row of taps for all of a strip's columns, in fp32. Padding is 0, and so are unused inputs."""
    values = ()
    for q in tl.static_range((COLUMNS - 1) * STRIDE + (TAPS - 1) * DILATION + 1):
        if _is_used(q, COLUMNS, STRIDE, TAPS, DILATION):
            values += (tl.load(x_at + q * to_column, mask=there & inside[q], other=0.0).to(tl.float32),)
        else:
            values += (0.0,)
    return values


@triton.jit
def _loaded_taps(w_at, to_tap, first, valid, TAPS: tl.constexpr):
    """Load a row of taps in fp32."""
    taps = ()
    for t in tl.static_range(TAPS):
        taps += (tl.load(w_at + (first + t) * to_tap, mask=valid, other=0.0).to(tl.float32),)
    return taps


@triton.jit
def _row_added(
    totals, values, taps,
    FIRST: tl.constexpr, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, TAPS: tl.constexpr, DILATION: tl.constexpr,
):  # fmt: skip
    """Add a row of inputs times a row of taps, from index FIRST on, to the totals of a row of outputs."""
    sums = ()
    for j in tl.static_range(COLUMNS):
        total = totals[j]
        for t in tl.static_range(TAPS):
            total += values[j * STRIDE + t * DILATION] * taps[FIRST + t]
        sums += (total,)
    return sums


@triton.jit
def _rows_added(
    totals, x_at, to_row, to_column, row, height, inside, w_at, to_tap, valid,
    ROWS: tl.constexpr, STRIDE_H: tl.constexpr, KERNEL_H: tl.constexpr, DILATION_H: tl.constexpr,
    COLUMNS: tl.constexpr, STRIDE_W: tl.constexpr, KERNEL_W: tl.constexpr, DILATION_W: tl.constexpr,
):  # fmt: skip
    """Add all rows of inputs to the totals. A row of inputs is loaded once for all outputs, a row of taps when first needed."""
    taps = ()
    for r in tl.static_range((ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1):
        if _is_used(r, 1, STRIDE_H, KERNEL_H, DILATION_H):
            taps += _loaded_taps(w_at, to_tap, r // DILATION_H * KERNEL_W, valid, KERNEL_W)
        if _is_used(r, ROWS, STRIDE_H, KERNEL_H, DILATION_H):
            there = (row + r >= 0) & (row + r < height)
            values = _loaded_inputs(
                x_at + r * to_row, to_column, there, inside, COLUMNS, STRIDE_W, KERNEL_W, DILATION_W
            )
            sums = ()
            for i in tl.static_range(ROWS):
                own = totals[i * COLUMNS : (i + 1) * COLUMNS]
                if _is_used(r - i * STRIDE_H, 1, STRIDE_H, KERNEL_H, DILATION_H):
                    own = _row_added(
                        own,
                        values,
                        taps,
                        (r - i * STRIDE_H) // DILATION_H * KERNEL_W,
                        COLUMNS,
                        STRIDE_W,
                        KERNEL_W,
                        DILATION_W,
                    )
                sums += own
            totals = sums
    return totals


@triton.jit
def depthwise_conv2d_kernel(
    y_ptr, x_ptr, w_ptr, bias_ptr, blocks, height, width, channels, out_height, out_width, multiplier, strips_down, strips_across,
    x_image, x_channel, x_row, x_column, pad_h, pad_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, RELU: tl.constexpr, LAST: tl.constexpr, UNIT: tl.constexpr,
    TURNED: tl.constexpr, UNROLLED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK strips of ROWS x COLUMNS outputs of one image per program.

    ``channels`` are those of the result, ``multiplier`` per channel of the images. ``LAST``: memory is channels-last, and a
    program has CHANNELS channels by ACROSS strips in a row, so that adjacent strips share inputs in L1. Otherwise it has
    consecutive strips. ``channels`` and all strides of the images except their channel's are in units of UNIT elements, from
    which Triton infers how many channels it can load at once. ``TURNED`` taps come from ``turned_taps_kernel``.
    """
    image = (tl.program_id(0) // blocks).to(tl.int64)
    channels = channels * UNIT
    channel, down, across = _places(
        tl.program_id(0) % blocks, channels, strips_down, strips_across, LAST, CHANNELS, ACROSS, BLOCK
    )
    valid = channel < channels
    row = down * (ROWS * STRIDE_H) - pad_h
    column = across * (COLUMNS * STRIDE_W) - pad_w
    # Offsets in an image may need 64 bits.
    to_row = tl.cast(x_row * UNIT, tl.int64)
    to_column = tl.cast(x_column * UNIT, tl.int64)
    to_channel = tl.cast(x_channel, tl.int64)
    x_at = x_ptr + image * (x_image * UNIT) + row * to_row + column * to_column + channel // multiplier * to_channel
    w_at = w_ptr + channel * (1 if TURNED else KERNEL_H * KERNEL_W)
    to_tap = channels if TURNED else 1

    total = tl.zeros((BLOCK,), tl.float32)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + channel, mask=valid, other=0.0).to(tl.float32)
    totals = (total,) * (ROWS * COLUMNS)
    inside = ()
    for q in tl.static_range((COLUMNS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1):
        inside += (valid & (column + q >= 0) & (column + q < width),)
    if UNROLLED:
        totals = _rows_added(
            totals, x_at, to_row, to_column, row, height, inside, w_at, to_tap, valid,
            ROWS, STRIDE_H, KERNEL_H, DILATION_H, COLUMNS, STRIDE_W, KERNEL_W, DILATION_W,
        )  # fmt: skip
    else:
        tl.static_assert(ROWS == 1)
        for r in range(KERNEL_H):
            below = r * DILATION_H
            there = (row + below >= 0) & (row + below < height)
            values = _loaded_inputs(
                x_at + below * to_row, to_column, there, inside, COLUMNS, STRIDE_W, KERNEL_W, DILATION_W
            )
            taps = _loaded_taps(w_at, to_tap, r * KERNEL_W, valid, KERNEL_W)
            totals = _row_added(totals, values, taps, 0, COLUMNS, STRIDE_W, KERNEL_W, DILATION_W)

    out_row = down * ROWS
    out_column = across * COLUMNS
    if LAST:
        to_column = tl.cast(channels, tl.int64)
        to_row = to_column * out_width
        y_at = y_ptr + channel
    else:
        to_column = tl.cast(1, tl.int64)
        to_row = tl.cast(out_width, tl.int64)
        y_at = y_ptr + channel * (to_row * out_height)
    y_at += image * (tl.cast(channels, tl.int64) * out_height * out_width) + out_row * to_row + out_column * to_column
    for i in tl.static_range(ROWS):
        for j in tl.static_range(COLUMNS):
            total = totals[i * COLUMNS + j]
            if RELU:  # keeps NaN
                total = tl.where(total < 0.0, 0.0, total)
            mask = valid & (out_row + i < out_height) & (out_column + j < out_width)
            tl.store(y_at + (i * to_row + j * to_column), total.to(y_ptr.dtype.element_ty), mask=mask)
