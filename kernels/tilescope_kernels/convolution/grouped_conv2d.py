"""Grouped 2-D convolution: as ``conv2d``, with a grid that also runs over groups, or over bundles of small groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import launch
from tilescope_kernels._shared.operators import operator, unpack
from tilescope_kernels.convolution.conv2d_kernels import _finished
from tilescope_kernels.convolution.problems import differentiate, out_shape, saved, slabs


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


def _config(pixels: int, filters: int, channels: int, warps: int, stages: int) -> dict[str, int]:
    tile = {"PIXELS": pixels, "BLOCK_N": filters, "BLOCK_K": channels}
    return {**tile, "num_warps": warps, "num_stages": stages}


#: Pixels and filters of a tile, and channels of a step along K. Groups that fit a tile and a step together are bundled.
CONFIGS = tuple(
    _config(*parts) for parts in ((128, 32, 32, 4, 3), (128, 64, 64, 4, 3), (128, 128, 64, 8, 3), (64, 64, 64, 4, 4))
)

#: fp32 products run on the CUDA cores, where registers bound the tile.
_FULL_PRECISION = _config(64, 32, 16, 4, 2)


def _default(x: torch.Tensor, group_channels: int) -> Mapping[str, int]:
    if x.dtype == torch.float32:
        return _FULL_PRECISION
    return CONFIGS[0] if group_channels < 32 else CONFIGS[1]


@operator(
    "grouped_conv2d", autocast="lower", fake=lambda x, weight, _, *steps: x.new_empty(out_shape(x, weight, *steps[:3]))
)
def grouped_conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], groups: int, relu: bool, config: str,
) -> torch.Tensor:  # fmt: skip
    """Convolve contiguous (batch, rows, columns, channels) with (filters, rows, columns, channels of a group)."""
    _, rows, columns, filters = shape = out_shape(x, weight, stride, padding, dilation)
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    _, kernel_h, kernel_w, channels = weight.shape
    chosen, own = unpack(config) or _default(x, channels), filters // groups
    together = max(1, min(groups, chosen["BLOCK_K"] // channels, chosen["BLOCK_N"] // own))
    m = chosen["PIXELS"]
    n = min(chosen["BLOCK_N"], max(16, triton.next_power_of_2(own * together)))
    k = min(chosen["BLOCK_K"], max(16, triton.next_power_of_2(channels * together)))
    tiles = triton.cdiv(groups, together) * triton.cdiv(own * together, n)
    # Channels of a group are counted in units, from which Triton infers how many it can load at once.
    unit = math.gcd(8, channels)
    for of_y, of_x in slabs(y, x):
        launch(
            grouped_conv2d_kernel, (triton.cdiv(len(of_y) * rows * columns, m) * tiles,),
            of_y, of_x, weight, bias, *of_x.shape[:3], x.shape[3] // unit, rows, columns, filters, channels // unit, own,
            *stride, *padding, *dilation,
            KERNEL_H=kernel_h, KERNEL_W=kernel_w, RELU=relu, EVEN=channels * together % k == 0 and groups % together == 0,
            TOGETHER=together, UNIT=unit, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k,
            num_warps=chosen["num_warps"], num_stages=chosen["num_stages"],
        )  # fmt: skip
    return y


grouped_conv2d.gradient(saved)(differentiate)
