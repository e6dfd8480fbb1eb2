"""Triton kernel of ``conv2d`` with groups: tiles of pixels by the filters of one group, or of several small ones."""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels.convolution.conv2d_kernels import _finished


@triton.jit
def _origins(pixel, height, width, out_height, out_width, stride_h, stride_w, pad_h, pad_w):
    """Each pixel's image, and the row and column of the input under its first tap."""
    column = pixel % out_width * stride_w - pad_w
    row = pixel // out_width % out_height * stride_h - pad_h
    return pixel // (out_width * out_height), row, column


@triton.jit
def _apart(
    y_ptr, x_ptr, w_ptr, bias_ptr, batch, height, width, channels, out_height, out_width, filters, group_channels, group_filters,
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, pixel, filter_, is_filter,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Compute and store the outputs of some pixels and filters, reading only the channels of each filter's own group."""
    image, row, column = _origins(pixel, height, width, out_height, out_width, stride_h, stride_w, pad_h, pad_w)
    origin = ((image.to(tl.int64) * height + row) * width + column) * channels
    x_rows = x_ptr + origin[:, None] + (filter_ // group_filters * group_channels)[None, :]
    w_rows = w_ptr + filter_.to(tl.int64) * (KERNEL_H * KERNEL_W * group_channels)
    total = tl.zeros((pixel.shape[0], filter_.shape[0]), tl.float32)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + filter_, mask=is_filter, other=0.0).to(tl.float32)[None, :]
    for step in range(0, KERNEL_H * KERNEL_W * group_channels):
        tap = step // group_channels
        down = tap // KERNEL_W * dilation_h
        right = tap % KERNEL_W * dilation_w
        inside = (row + down >= 0) & (row + down < height) & (column + right >= 0) & (column + right < width)
        mask = (inside & (image < batch))[:, None] & is_filter[None, :]
        x = tl.load(x_rows + ((down * width + right) * channels + step % group_channels), mask=mask, other=0.0)
        w = tl.load(w_rows + step, mask=is_filter, other=0.0)
        total += x.to(tl.float32) * w.to(tl.float32)[None, :]
    if RELU:
        total = tl.where(total < 0.0, 0.0, total)
    y_rows = y_ptr + pixel.to(tl.int64)[:, None] * filters + filter_[None, :]
    tl.store(y_rows, total.to(y_ptr.dtype.element_ty), mask=(image < batch)[:, None] & is_filter[None, :])


@triton.jit
def grouped_conv2d_kernel(
    y_ptr, x_ptr, w_ptr, bias_ptr, batch, height, width, channels, out_height, out_width, filters, group_channels, group_filters,
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
    KERNEL_H: tl.constexpr, KERNEL_W: tl.constexpr, RELU: tl.constexpr, EVEN: tl.constexpr, TOGETHER: tl.constexpr,
    UNIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """BLOCK_M pixels by BLOCK_N filters per program, of TOGETHER consecutive groups.

    Filters of several groups are multiplied with the channels of all of them as one block-diagonal matrix: tensor cores take as
    long for 16 channels as for one, and a pixel's channels are read consecutively. ``EVEN``: these groups' channels are a
    multiple of BLOCK_K. ``channels`` and ``group_channels`` are in units of UNIT.
    """
    channels *= UNIT
    group_channels *= UNIT
    some_channels = group_channels * TOGETHER
    some_filters = group_filters * TOGETHER
    tiles_n = tl.cdiv(some_filters, BLOCK_N)
    bundles = tl.cdiv(filters, some_filters)
    # Consecutive programs have tiles of the same pixels, which they share in L2.
    first_pixel = tl.program_id(0) // (tiles_n * bundles) * BLOCK_M
    bundle = tl.program_id(0) // tiles_n % bundles
    first = tl.program_id(0) % tiles_n * BLOCK_N
    own = first + tl.arange(0, BLOCK_N)
    first_channel = bundle * some_channels
    first_filter = bundle * some_filters
    is_filter = (own < some_filters) & (first_filter + own < filters)

    pixel = first_pixel + tl.arange(0, BLOCK_M)
    image, row, column = _origins(pixel, height, width, out_height, out_width, stride_h, stride_w, pad_h, pad_w)
    channel = tl.arange(0, BLOCK_K)
    # Only a pixel's origin needs 64 bits.
    origin = ((image.to(tl.int64) * height + row) * width + column) * channels + first_channel
    x_rows = x_ptr + origin[:, None] + channel[None, :]
    w_rows = w_ptr + (first_filter + own).to(tl.int64)[None, :] * (KERNEL_H * KERNEL_W * group_channels)
    blocks = tl.cdiv(some_channels, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, KERNEL_H * KERNEL_W * blocks):
        tap = step // blocks
        start = step % blocks * BLOCK_K
        at = start + channel
        down = tap // KERNEL_W * dilation_h
        right = tap % KERNEL_W * dilation_w
        # Elements outside the image are padding, as are pixels past the last image.
        inside = (row + down >= 0) & (row + down < height) & (image < batch)
        x_mask = (inside & (column + right >= 0) & (column + right < width))[:, None]
        w_mask = is_filter[None, :]
        if not EVEN:
            # The last bundle may have fewer groups.
            known = (at < some_channels) & (first_channel + at < channels)
            x_mask = x_mask & known[None, :]
            w_mask = w_mask & known[:, None]
        if TOGETHER > 1:
            w_mask = w_mask & ((at // group_channels)[:, None] == (own // group_filters)[None, :])
            at = at % group_channels
        x = tl.load(x_rows + ((down * width + right) * channels + start), mask=x_mask, other=0.0)
        w = tl.load(w_rows + (tap * group_channels + at)[:, None], mask=w_mask, other=0.0)
        # "ieee": fp32 operands are multiplied as fp32, not rounded to tf32.
        total = tl.dot(x, w, total, input_precision="ieee")
    not_numbers = total != total  # noqa: PLR0124 (only NaN differs from itself)
    total = _finished(total, bias_ptr, first_filter + first, filters, BLOCK_N, RELU)
    y_rows = y_ptr + pixel.to(tl.int64)[:, None] * filters + first_filter + own[None, :]
    tl.store(y_rows, total.to(y_ptr.dtype.element_ty), mask=(image < batch)[:, None] & is_filter[None, :])
    if TOGETHER > 1:  # noqa: SIM102 - a constant
        # Infinity or NaN in one group times the zeros of the others is NaN there. Recompute such tiles by group; they are rare.
        if tl.max(tl.max(not_numbers.to(tl.int32), 1), 0) > 0:
            tl.debug_barrier()
            for part in range(0, BLOCK_M, 16):
                _apart(
                    y_ptr, x_ptr, w_ptr, bias_ptr, batch, height, width, channels, out_height, out_width, filters,
                    group_channels, group_filters, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w,
                    first_pixel + part + tl.arange(0, 16), first_filter + own, is_filter, KERNEL_H, KERNEL_W, RELU,
                )  # fmt: skip
