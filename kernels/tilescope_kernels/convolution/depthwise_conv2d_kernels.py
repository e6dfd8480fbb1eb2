"""The Triton kernel of ``depthwise_conv2d``: strips of outputs of one channel each, in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def depthwise_conv2d_kernel(
    y_ptr, x_ptr, w_ptr, bias_ptr, blocks, height, width, channels, out_height, out_width, multiplier, strips_down, strips_across,
    x_image, x_channel, x_row, x_column, w_channel, w_tap, pad_h, pad_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, RELU: tl.constexpr, LAST: tl.constexpr, UNIT: tl.constexpr,
    UNROLLED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, CHANNELS: tl.constexpr, ACROSS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """BLOCK strips of ROWS x COLUMNS outputs a program, of one image.

    ``channels`` are those of the result, ``multiplier`` of them to each of the images'. ``LAST``: channels lie side by side, and
    a program has CHANNELS of them at ACROSS strips in a row, so that neighbours find their common inputs in L1; otherwise
    columns do, and it has whatever follows in memory. ``channels`` and the images' strides but their channel's come
    in units of UNIT elements, from which Triton knows how many channels one access may have.
    """
    image = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    place = tl.arange(0, BLOCK)
    channels = channels * UNIT
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
    valid = channel < channels
    row = down * (ROWS * STRIDE_H) - pad_h
    column = across * (COLUMNS * STRIDE_W) - pad_w
    # Offsets in an image may take 64 bits; they are added up once.
    to_row = tl.cast(x_row * UNIT, tl.int64)
    to_column = tl.cast(x_column * UNIT, tl.int64)
    x_at = x_ptr + image * (x_image * UNIT) + row * to_row + column * to_column + channel // multiplier * x_channel
    w_at = w_ptr + channel * w_channel

    SPAN: tl.constexpr = (COLUMNS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1
    zero = tl.zeros((BLOCK,), tl.float32)
    if bias_ptr is not None:
        zero += tl.load(bias_ptr + channel, mask=valid, other=0.0).to(tl.float32)
    totals = ()
    for _ in tl.static_range(ROWS * COLUMNS):
        totals += (zero,)
    inside = ()
    for q in tl.static_range(SPAN):
        inside += (valid & (column + q >= 0) & (column + q < width),)
    if UNROLLED:
        # A row of inputs is read once for all outputs that it is under; a row of taps when the first of them needs it.
        taps = ()
        for r in tl.static_range((ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1):
            if r % DILATION_H == 0 and r // DILATION_H < KERNEL_H:
                for t in tl.static_range(KERNEL_W):
                    tap = tl.load(w_at + (r // DILATION_H * KERNEL_W + t) * w_tap, mask=valid, other=0.0)
                    taps += (tap.to(tl.float32),)
            there = (row + r >= 0) & (row + r < height)
            values = ()
            for q in tl.static_range(SPAN):
                value = tl.load(x_at + (r * to_row + q * to_column), mask=there & inside[q], other=0.0)
                values += (value.to(tl.float32),)
            sums = ()
            for i in tl.static_range(ROWS):
                for j in tl.static_range(COLUMNS):
                    total = totals[i * COLUMNS + j]
                    if (
                        r >= i * STRIDE_H
                        and (r - i * STRIDE_H) % DILATION_H == 0
                        and r - i * STRIDE_H < KERNEL_H * DILATION_H
                    ):
                        for t in tl.static_range(KERNEL_W):
                            tap = taps[(r - i * STRIDE_H) // DILATION_H * KERNEL_W + t]
                            total += values[j * STRIDE_W + t * DILATION_W] * tap
                    sums += (total,)
            totals = sums
    else:
        tl.static_assert(ROWS == 1)
        for r in range(KERNEL_H):
            below = r * DILATION_H
            there = (row + below >= 0) & (row + below < height)
            values = ()
            for q in tl.static_range(SPAN):
                value = tl.load(x_at + (below * to_row + q * to_column), mask=there & inside[q], other=0.0)
                values += (value.to(tl.float32),)
            taps = ()
            for t in tl.static_range(KERNEL_W):
                tap = tl.load(w_at + (r * KERNEL_W + t) * w_tap, mask=valid, other=0.0)
                taps += (tap.to(tl.float32),)
            sums = ()
            for j in tl.static_range(COLUMNS):
                total = totals[j]
                for t in tl.static_range(KERNEL_W):
                    total += values[j * STRIDE_W + t * DILATION_W] * taps[t]
                sums += (total,)
            totals = sums

    out_row = down * ROWS
    out_column = across * COLUMNS
    if LAST:
        y_column = tl.cast(channels, tl.int64)
        y_row = y_column * out_width
        y_at = y_ptr + channel
    else:
        y_column = 1
        y_row = tl.cast(out_width, tl.int64)
        y_at = y_ptr + channel * (y_row * out_height)
    y_at += image * (tl.cast(channels, tl.int64) * out_height * out_width) + out_row * y_row + out_column * y_column
    for i in tl.static_range(ROWS):
        for j in tl.static_range(COLUMNS):
            total = totals[i * COLUMNS + j]
            if RELU:
                total = tl.where(total < 0.0, 0.0, total)
            mask = valid & (out_row + i < out_height) & (out_column + j < out_width)
            tl.store(y_at + (i * y_row + j * y_column), total.to(y_ptr.dtype.element_ty), mask=mask)
