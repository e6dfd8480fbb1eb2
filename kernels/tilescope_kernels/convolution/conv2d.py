"""2-D convolution of channels-last images by implicit GEMM, with bias and ReLU in the epilogue.

Implicit GEMM (Chetlur et al., arXiv:1410.0759) is a matrix product whose left operand is never materialized: a row is an output
pixel, a column is a filter, and each step along K multiplies a block of channels under one tap of the filters.

The gradients are cuDNN's. At stride 1 the gradient of the images is a convolution too, but this kernel is no faster.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tilescope_kernels._shared.checks import use_triton
from tilescope_kernels._shared.launching import capability, launch, multiprocessors, shared_memory
from tilescope_kernels._shared.operators import operator, pack, unpack
from tilescope_kernels.convolution.conv2d_kernels import add_splits_kernel, conv2d_kernel, conv2d_rectangles_kernel
from tilescope_kernels.convolution.depthwise_conv2d import depthwise
from tilescope_kernels.convolution.grouped_conv2d import grouped_conv2d
from tilescope_kernels.convolution.problems import _out_extent, checked, differentiate, out_shape, saved, slabs
from tilescope_kernels.spec import Config, Cost, Draw, Implementation, Workload, declare, drawn


def _config(
    pixels: int, filters: int, channels: int, warps: int, stages: int, tma: int, splits: int = 1
) -> dict[str, int]:
    tile = {"PIXELS": pixels, "BLOCK_N": filters, "BLOCK_K": channels, "TMA": tma, "SPLITS": splits}
    return {**tile, "num_warps": warps, "num_stages": stages}


#: ``PIXELS`` of a tile are a rectangle of the image with ``TMA``, and consecutive in memory without. With ``TMA`` the sum over taps
#: and channels may have ``SPLITS`` parts, which a second launch adds up.
CONFIGS = tuple(
    _config(*parts)
    for parts in (
        (128, 128, 64, 4, 3, 1), (128, 128, 64, 8, 3, 1), (256, 128, 64, 8, 3, 1), (256, 128, 64, 8, 4, 1),
        (128, 128, 64, 8, 4, 1), (128, 128, 64, 4, 4, 1), (128, 64, 64, 4, 3, 1), (64, 128, 64, 4, 4, 1),
        (128, 128, 128, 8, 3, 1), (128, 128, 64, 8, 3, 0), (128, 128, 64, 4, 3, 0), (256, 128, 64, 8, 3, 0),
        (256, 64, 64, 8, 3, 0), (128, 128, 32, 8, 4, 0), (128, 64, 64, 4, 3, 0), (64, 64, 64, 4, 4, 0),
        (128, 256, 64, 8, 4, 1, 3), (64, 128, 128, 4, 4, 1), (64, 64, 128, 4, 5, 1), (64, 64, 128, 4, 5, 1, 4), (128, 128, 64, 4, 4, 1, 2),
    )
)  # fmt: skip

#: Tiles where every SM has at most one, the largest first: many stages hide latency, as no other tile of the SM does. They take
#: up to 196 KB of shared memory.
_SINGLE = ((128, 128, 64, 4, 4, 1), (64, 128, 128, 4, 4, 1), (64, 64, 128, 4, 5, 1))
#: Elements that a program of the second launch adds up.
_ADDED = 1024
#: Least steps along K of a split, whose second launch takes as long, and most splits.
_STEPS, _MOST_SPLITS = 8, 16

#: Elements of the sum over taps and channels from which four stages pay, and from which thirds of wide tiles do; by how much a wave
#: must be longer than two of halves.
_DEEP, _DEEPEST, _SPLIT_PAYS = 2880, 11520, 1.3

#: fp32 products run on the CUDA cores, where registers bound the tile.
_FULL_PRECISION = _config(64, 64, 16, 8, 2, 0)
#: For runs of taps (``RUN``), whose elements are read one at a time: short steps along K are faster.
_RUN = _config(128, 64, 16, 4, 4, 0)


#: Most tiles of a common shape over the fewest.
_SPARE = 1.08


@functools.cache
def _rectangle(pixels: int, batch: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Images, rows and columns of a tile of ``pixels``: powers of two that cover the result with few tiles.

    Two common shapes serve most sizes, so that a new size rarely compiles a new kernel. Others are chosen where they save tiles.
    """
    powers = [1 << i for i in range(pixels.bit_length())]
    shapes = [(pixels // (r * c), r, c) for c in powers for r in powers if r * c <= pixels]

    def tiles(shape: tuple[int, int, int]) -> int:
        return math.prod(triton.cdiv(extent, side) for extent, side in zip((batch, rows, columns), shape, strict=True))

    # Among equals the fewest images and the most square tile, whose pixels share most inputs.
    best = min(shapes, key=lambda shape: (tiles(shape), shape[0], shape[1] + shape[2]))
    common = ((1, pixels // 8, 8), (4, pixels // 16, 4))
    return next((shape for shape in common if tiles(shape) <= _SPARE * tiles(best)), best)


def _tma_serves(x: torch.Tensor, weight: torch.Tensor, stride: Sequence[int]) -> bool:
    """Whether TMA can load the operands: Hopper or later, 16 bits, channels in multiples of 16 bytes, and stride 1.

    Also stride 2, of images with even extents and of channels in whole steps.
    """
    halves = list(stride) == [2, 2] and (x.shape[1] | x.shape[2]) % 2 == x.shape[3] % 32 == 0
    if x.element_size() != 2 or (list(stride) != [1, 1] and not halves) or x.shape[3] % 8:
        return False
    if x.is_cuda and torch.cuda.get_device_capability(x.device)[0] < 9:
        return False
    return x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0


def _default(x: torch.Tensor, pixels: int, filters: int, taps: int, tma: bool) -> Mapping[str, int]:
    """The default config: large tiles, or smaller and deeper ones if not every SM would have one."""
    if x.dtype == torch.float32:
        return _FULL_PRECISION
    programs = multiprocessors(x)

    def tiles(high: int, wide: int) -> int:
        return triton.cdiv(pixels, high) * triton.cdiv(filters, wide)

    large = shared_memory(x) >= 227 * 1024
    if tiles(128, 128) > programs:
        # A second tile of 128 filters would be half empty.
        if 0 < filters % 128 <= 64:
            return _config(128, 64, 64, 4, 3, 1)
        if not tma or not large or taps * x.shape[3] < _DEEP:
            return CONFIGS[0]
        # Halves of tiles fill the last wave.
        whole, half = triton.cdiv(tiles(128, 128), programs), triton.cdiv(2 * tiles(128, 128), programs)
        splits = 2 if 2 * whole >= _SPLIT_PAYS * half else 1
        # So do thirds of tiles that are twice as wide.
        third, is_deep = triton.cdiv(3 * tiles(128, 256), programs), taps * x.shape[3] >= _DEEPEST
        if whole == 2 and is_deep and filters % 256 == 0 and 4 * third < 3 * (half if splits == 2 else 2 * whole):
            wide = (128, 256, 64, 8, 4, 1, 3)
        else:
            wide = (128, 128, 64, 4, 4, 1, splits)
        return _config(*wide)
    if not tma or not large:
        return _config(64, 64, 64, 4, 4, 1) if tiles(128, 128) < programs / 2 else CONFIGS[0]
    # Of 64 filters the second tile is the third with fewer stages.
    fitting = _SINGLE if filters > 64 else (_SINGLE[0], _SINGLE[-1])
    chosen = next((tile for tile in fitting if tiles(*tile[:2]) >= programs / 2), _SINGLE[-1])
    high, wide, deep = chosen[:3]
    steps = taps * triton.cdiv(x.shape[3], min(deep, max(16, triton.next_power_of_2(x.shape[3]))))
    return _config(*chosen, max(1, min(programs // tiles(high, wide), steps // _STEPS, _MOST_SPLITS)))


def _tiles(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """A TMA descriptor of a contiguous tensor, with computed strides: PyTorch may give a dimension of extent 1 any stride."""
    strides = [math.prod(tensor.shape[i + 1 :]) for i in range(tensor.dim())]
    return TensorDescriptor(tensor, list(tensor.shape), strides, block)


def _inputs(x: torch.Tensor, tile: tuple[int, int, int], k: int, stride: int) -> TensorDescriptor:
    """TMA descriptor of images (batch, rows, columns, channels) for ``conv2d_rectangles_kernel``."""
    if stride == 1:
        return _tiles(x, [*tile, k])
    batch, rows, columns, channels = x.shape
    return _tiles(x.view(batch, rows // 2, 2, columns // 2, 2 * channels), [tile[0], tile[1], 1, tile[2], k])


@operator("conv2d", autocast="lower", fake=lambda x, weight, _, *steps: x.new_empty(out_shape(x, weight, *steps[:3])))
def _conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], relu: bool, config: str,
) -> torch.Tensor:  # fmt: skip
    """Convolve contiguous (batch, rows, columns, channels) with (filters, rows, columns, channels), channels last."""
    batch, rows, columns, filters = shape = out_shape(x, weight, stride, padding, dilation)
    y = torch.empty(shape, dtype=x.dtype, device=x.device)
    if y.numel() == 0:
        return y
    (_, kernel_h, kernel_w, channels), pixels = weight.shape, batch * rows * columns
    serves = _tma_serves(x, weight, stride)
    chosen = unpack(config) or _default(x, pixels, filters, kernel_h * kernel_w, serves)
    tma = chosen["TMA"] and serves
    # So few channels that they would not fill the smallest step along K.
    run = not tma and channels < 16 and kernel_w > 1 and dilation[1] == 1
    if run and not config and x.element_size() == 2:
        chosen = _RUN
    n = min(chosen["BLOCK_N"], max(16, triton.next_power_of_2(filters)))
    together = channels * (kernel_w if run else 1)
    k = min(chosen["BLOCK_K"], max(16, triton.next_power_of_2(together)))
    if stride[0] > 1 and tma:
        # A step must not reach from an even column into the odd one.
        k = min(k, channels & -channels)
    options = {name: chosen[name] for name in ("num_warps", "num_stages")}
    fixed = {"KERNEL_H": kernel_h, "KERNEL_W": kernel_w, "RELU": relu, "BLOCK_N": n, "BLOCK_K": k}
    if config and chosen["TMA"] > tma:
        raise ValueError("config has TMA=1, which these operands or this GPU do not allow: use one with TMA=0")
    if tma:
        tile = _rectangle(chosen["PIXELS"], batch, rows, columns)
        tiles = [
            triton.cdiv(extent, side) for extent, side in zip((batch, rows, columns, filters), (*tile, n), strict=True)
        ]
        taps, splits = kernel_h * kernel_w, chosen["SPLITS"]
        # Parts are sums without bias and ReLU, in fp32.
        out, shifts = (y, bias) if splits == 1 else (x.new_empty((splits, *shape), dtype=torch.float32), None)
        fixed["RELU"] = relu and splits == 1
        # Programmatic dependent launch: the second launch starts early and waits for the parts.
        pdl = splits > 1 and capability(x) >= 90
        launch(
            conv2d_rectangles_kernel, (math.prod(tiles), splits),
            out, x, weight, shifts,
            _tiles(y, [*tile, n]) if splits == 1 and filters % 8 == 0 else None, _inputs(x, tile, k, stride[0]),
            TensorDescriptor(weight, [taps, filters, channels], [channels, taps * channels, 1], [1, n, k]),
            batch, channels, rows, columns, filters, *padding, *dilation, **fixed,
            STRIDE=stride[0], IMAGES=tile[0], ROWS=tile[1], COLUMNS=tile[2], PDL=pdl, **options,
        )  # fmt: skip
        if splits > 1:
            launch(
                add_splits_kernel, (triton.cdiv(y.numel(), _ADDED),), y, out, bias, y.numel(), filters,
                SPLITS=splits, RELU=relu, BLOCK=_ADDED, PDL=pdl, num_warps=4, **({"launch_pdl": True} if pdl else {}),
            )  # fmt: skip
    else:
        m = chosen["PIXELS"]
        for of_y, of_x in slabs(y, x):
            launch(
                conv2d_kernel, (triton.cdiv(len(of_y) * rows * columns, m) * triton.cdiv(filters, n),),
                of_y, of_x, weight, bias, *of_x.shape, rows, columns, filters, *stride, *padding, *dilation, **fixed,
                EVEN=together % k == 0, RUN=run, BLOCK_M=m, **options,
            )  # fmt: skip
    return y


_conv2d.gradient(saved)(differentiate)


def conv2d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, *, relu: bool = False,
    config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """The convolution of images (batch, channels, height, width) with filters (filters, channels, height, width).

    As ``torch.nn.functional.conv2d``, optionally followed by ReLU; differentiable. Both tensors should be in ``torch.channels_last`` memory
    format, as the result is; other formats cost a copy. A depthwise convolution reads images in any format and returns the same. Dtypes
    fp32, fp16 and bf16, accumulated in fp32 and never rounded to tf32. Gradients are cuDNN's, which in fp32 follow PyTorch's tf32 settings.

    ``config`` is one of ``CONFIGS`` of the module whose kernel runs: this one, ``grouped_conv2d`` or ``depthwise_conv2d``.
    ``TMA`` needs 16 bits, and a multiple of 8 channels at stride 1, or one of 32 channels and even extents at stride 2; other problems
    go through pointers. Raises ValueError, naming the argument, for other dtypes, shapes that do not fit, and devices without CUDA.
    """
    if not use_triton():
        return reference(input, weight, bias, stride, padding, dilation, groups, relu)
    steps = checked(input, weight, bias, stride, padding, dilation, groups)
    shifts = None if bias is None else bias.contiguous()
    if 1 < groups == input.shape[1]:
        return depthwise(input, weight.contiguous(), shifts, *steps, relu, pack(config))
    # Channels last: a step along K reads consecutive elements.
    x, w = (tensor.permute(0, 2, 3, 1).contiguous() for tensor in (input, weight))
    if groups > 1:
        y = grouped_conv2d(x, w, shifts, *steps, groups, relu, pack(config))
    else:
        y = _conv2d(x, w, shifts, *steps, relu, pack(config))
    return y.permute(0, 3, 1, 2)


def reference(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0, dilation: int | Sequence[int] = 1, groups: int = 1, relu: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Convolution (cuDNN's on a GPU), then ReLU, in plain PyTorch."""
    y = F.conv2d(input, weight, bias, stride, padding, dilation, groups)
    return F.relu(y) if relu else y


@drawn
def inputs(draw: Draw, batch: int, channels: int, height: int, width: int, filters: int, kernel: int) -> dict[str, Any]:
    """Standard normal images, filters that preserve the variance, a bias, and padding that preserves the extents for odd filters."""
    scale = max(1, channels * kernel * kernel) ** -0.5
    images = draw(batch, height, width, channels).permute(0, 3, 1, 2)
    taps = draw(filters, kernel, kernel, channels, scale=scale).permute(0, 3, 1, 2)
    return {"input": images, "weight": taps, "bias": draw(filters), "padding": kernel // 2, "relu": True}


def cost(workload: Workload, direction: str) -> Cost:
    """Two operations per pixel, filter, channel and tap, padding included, as is usual. Every tensor is moved once."""
    batch, channels, height, width, filters, kernel = workload.dims.values()
    pixels = batch * _out_extent(height, kernel, 1, kernel // 2, 1) * _out_extent(width, kernel, 1, kernel // 2, 1)
    weights = filters * kernel * kernel * channels
    read, size = batch * height * width * channels + weights + filters, workload.itemsize
    return Cost(2 * pixels * weights, read * size, pixels * filters * size, workload.pipe)


SPEC = declare(
    "conv2d", "relu(conv2d(x, w) + b), channels last", "batch channels height width filters kernel",
    "small 1x64x16x16x64x3-bf16, medium 8x256x28x28x256x3-bf16, large 32x128x56x56x128x3-bf16, "
    "ragged 3x72x37x29x95x3-fp16, pointwise 32x256x56x56x64x1-bf16, empty 0x64x16x16x64x3-bf16",
    triton=Implementation(conv2d, "implicit matrix product, bias and ReLU fused", CONFIGS),
    eager=Implementation(reference, "torch.nn.functional.conv2d (cuDNN), then ReLU"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6e-3},
)  # fmt: skip
