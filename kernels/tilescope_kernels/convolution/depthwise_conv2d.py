"""Depthwise 2-D convolution with bias and ReLU, in the images' memory format: channels-last or contiguous.

Instructions per output (addresses, masks, loads) cost more than its bytes. Each thread therefore computes a strip of outputs of one
channel, or of several adjacent ones, and loads each input and tap of the strip once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import use_triton
from tilescope_kernels._shared.launching import BEYOND, launch, multiprocessors
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.convolution.problems import _out_extent, checked, gradients, saved
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


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


def _config(rows: int, columns: int, channels: int, across: int, strips: int, turned: int) -> dict[str, int]:
    strip = {"ROWS": rows, "COLUMNS": columns, "CHANNELS": channels, "ACROSS": across}
    return {**strip, "BLOCK": strips, "TURNED": turned, "num_warps": 4}


#: ``BLOCK`` strips of ``ROWS`` x ``COLUMNS`` outputs per program. In channels-last memory they are of ``CHANNELS`` channels and
#: ``ACROSS`` strips in a row, and with ``TURNED`` the taps are transposed to channels last, too.
CONFIGS = tuple(
    _config(*parts)
    for parts in (
        (4, 4, 32, 8, 256, 0), (2, 4, 32, 8, 512, 0), (2, 2, 128, 4, 512, 1), (4, 4, 32, 8, 256, 1), (4, 4, 32, 8, 512, 1),
        (2, 4, 32, 8, 512, 1), (2, 2, 32, 8, 512, 1), (2, 2, 64, 8, 1024, 1), (2, 2, 32, 4, 128, 0),
        (8, 2, 32, 4, 128, 0), (4, 2, 32, 4, 128, 0),
    )
)  # fmt: skip
#: Outputs per SM up to which a strip per thread, with the taps as they are, is faster at 5x5: transposing taps is a launch, and
#: most SMs would have no program.
_FEW = 1024
#: Most taps of a filter that is unrolled. Larger ones are walked row by row.
_UNROLLED = 49


def _is_last(x: torch.Tensor) -> bool:
    """Whether ``x`` is channels-last."""
    return x.shape[1] > 1 and x.stride(1) == 1


def _result(
    x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> torch.Tensor:
    sides = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    shape = (x.shape[0], weight.shape[0], *(_out_extent(*side) for side in sides))
    order = torch.channels_last if _is_last(x) else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=order)


def _default(x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int], outputs: int) -> Mapping[str, int]:
    """The fastest configs at MobileNet's, EfficientNet's and ConvNeXt's sizes: two channels per thread at 3x3 and 7x7, else four."""
    taps, dense = weight.shape[2] * weight.shape[3], max(stride) == 1
    if not _is_last(x):
        return CONFIGS[-2] if taps <= 9 and dense else CONFIGS[-1]
    if taps <= 9:
        return CONFIGS[0] if dense else CONFIGS[1]
    if taps <= 25:
        return CONFIGS[-3] if outputs <= _FEW * multiprocessors(x) else CONFIGS[2]
    return CONFIGS[3]


@operator("depthwise_conv2d", autocast="lower", fake=lambda x, weight, _, *steps: _result(x, weight, *steps[:3]))
def depthwise(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], relu: bool, config: str,
) -> torch.Tensor:  # fmt: skip
    """Convolve (batch, channels, rows, columns) of any strides with contiguous (filters, 1, rows, columns)."""
    y = _result(x, weight, stride, padding, dilation)
    if y.numel() == 0:
        return y
    (batch, filters, rows, columns), (kernel_h, kernel_w) = y.shape, weight.shape[2:]
    chosen, last = unpack(config) or _default(x, weight, stride, y.numel()), _is_last(x)
    unrolled = kernel_h * kernel_w <= _UNROLLED
    strip = (chosen["ROWS"] if unrolled else 1), chosen["COLUMNS"]
    down, across = (triton.cdiv(extent, side) for extent, side in zip((rows, columns), strip, strict=True))
    block, unit, tile = chosen["BLOCK"], 1, (1, 1)
    if last:
        # Channels per access, up to 16 bytes at 16 bits: the most that divide the filters and all strides.
        apart = [x.stride(i) for i in (0, 2, 3)]
        # The kernel multiplies strides by the unit again, in 32 bits if they fit without it.
        unit = math.gcd(8, filters, *apart) if max(apart) < BEYOND else 1
        side = min(chosen["CHANNELS"], triton.next_power_of_2(filters))
        tile = (side, min(chosen["ACROSS"], block // side))
        tiles = (
            triton.cdiv(extent, side)
            for extent, side in zip((filters, across, down), (*tile, block // math.prod(tile)), strict=True)
        )
        blocks = math.prod(tiles)
    else:
        blocks = triton.cdiv(filters * down * across, block)
    turned = last and chosen["TURNED"]
    if turned:
        taps = kernel_h * kernel_w
        by_channel = torch.empty(taps * filters, dtype=x.dtype, device=x.device)
        launch(
            turned_taps_kernel, (triton.cdiv(taps * filters, 1024),), by_channel, weight, filters, TAPS=taps, BLOCK=1024
        )
        weight = by_channel
    launch(
        depthwise_conv2d_kernel, (blocks * batch,),
        y, x, weight, bias, blocks, *x.shape[2:], filters // unit, rows, columns, filters // x.shape[1], down, across,
        x.stride(0) // unit, x.stride(1), x.stride(2) // unit, x.stride(3) // unit, *padding,
        KERNEL_H=kernel_h, KERNEL_W=kernel_w, STRIDE_H=stride[0], STRIDE_W=stride[1], DILATION_H=dilation[0],
        DILATION_W=dilation[1], RELU=relu, LAST=last, UNIT=unit, TURNED=bool(turned), UNROLLED=unrolled, ROWS=strip[0],
        COLUMNS=strip[1], CHANNELS=tile[0], ACROSS=tile[1], BLOCK=block, num_warps=chosen["num_warps"],
    )  # fmt: skip
    return y


@depthwise.gradient(saved)
def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, y = ctx.saved_tensors
    return gradients(ctx, dy, x, weight, y, x.shape[1])


def depthwise_conv2d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, *, relu: bool = False,
    config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """Depthwise ``conv2d``: images (batch, channels, height, width), filters (multiple of channels, 1, height, width).

    The result has the images' memory format. Strided images are read without a copy. Otherwise as ``conv2d``.
    """
    if not use_triton():
        return reference(input, weight, bias, stride, padding, dilation, relu)
    steps = checked(input, weight, bias, stride, padding, dilation, input.shape[1] if input.dim() == 4 else 1)
    return depthwise(
        input, weight.contiguous(), None if bias is None else bias.contiguous(), *steps, relu, pack(config)
    )


def reference(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, relu: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Convolution (cuDNN's or PyTorch's own on a GPU), then ReLU, in plain PyTorch."""
    y = torch.nn.functional.conv2d(input, weight, bias, stride, padding, dilation, input.shape[1])
    return torch.nn.functional.relu(y) if relu else y


@drawn
def inputs(draw: Draw, batch: int, channels: int, height: int, width: int, kernel: int, stride: int) -> dict[str, Any]:
    """Standard normal images, filters that preserve the variance, a bias, and padding that preserves the extents for odd filters."""
    images = draw(batch, height, width, channels).permute(0, 3, 1, 2)
    tensors = {"input": images, "weight": draw(channels, 1, kernel, kernel, scale=1 / max(1, kernel))}
    return {**tensors, "bias": draw(channels), "stride": stride, "padding": kernel // 2, "relu": True}


def cost(workload: Workload, direction: str) -> Cost:
    """Two operations per output and tap, padding included, as is usual. Every tensor is moved once."""
    batch, channels, height, width, kernel, stride = workload.dims.values()
    sides = (_out_extent(extent, kernel, stride, kernel // 2, 1) for extent in (height, width))
    outputs = batch * channels * math.prod(sides)
    read = channels * (batch * height * width + kernel * kernel + 1) * workload.itemsize
    return Cost(2 * outputs * kernel * kernel, read, outputs * workload.itemsize)


SPEC = declare(
    "depthwise_conv2d", "relu(conv2d(x, w) + b) with a group a channel, channels last",
    "batch channels height width kernel stride",
    "small 1x64x16x16x3x1-bf16, medium 32x144x56x56x3x2-bf16, large 32x384x112x112x3x1-bf16, "
    "ragged 3x73x37x29x5x2-fp16, taps 32x384x56x56x7x1-bf16, empty 0x64x16x16x3x1-bf16",
    triton=Implementation(depthwise_conv2d, "strips of outputs in registers, bias and ReLU fused", CONFIGS),
    eager=Implementation(reference, "torch.nn.functional.conv2d, then ReLU"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6e-3},
)  # fmt: skip
