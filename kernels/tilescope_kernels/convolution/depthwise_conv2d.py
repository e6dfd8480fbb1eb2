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

from tilescope_kernels._shared.checks import use_triton
from tilescope_kernels._shared.launching import BEYOND, launch, multiprocessors
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.convolution.depthwise_conv2d_kernels import depthwise_conv2d_kernel, turned_taps_kernel
from tilescope_kernels.convolution.problems import _out_extent, checked, gradients, saved
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


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
