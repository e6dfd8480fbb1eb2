"""Grouped 2-D convolution: as ``conv2d``, with a grid that also runs over groups, or over bundles of small groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import triton

from tilescope_kernels._shared.launching import launch
from tilescope_kernels._shared.operators import operator, unpack
from tilescope_kernels.convolution.grouped_conv2d_kernels import grouped_conv2d_kernel
from tilescope_kernels.convolution.problems import differentiate, out_shape, saved, slabs


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
