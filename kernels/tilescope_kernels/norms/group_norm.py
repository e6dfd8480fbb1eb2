"""GroupNorm, forward and backward: each group of an image's channels is normalized over its channels and all positions.

Wu and He, "Group Normalization", arXiv:1803.08494. A group that fits a tile is read once per pass. A larger one is split into
tiles that are read twice: first for the sums, then for the result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import BEYOND, cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import as_vector, operator, pack, shaped_as, unpack, wants_grad
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.norms import group_norm_kernels as kernels
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn

#: Elements of a tile. The first is the default for groups that are split.
CONFIGS = tuple(
    {"TILE": tile, "num_warps": warps}
    for tile, warps in ((8192, 8), (2048, 4), (4096, 4), (4096, 8), (16384, 16), (32768, 32))
)
#: Most elements of a group in one tile by default: with fewer groups than SMs, and with enough.
_FEW, _ENOUGH = 4096, 16384


class _Tiles(NamedTuple):
    """How groups are split: the kernels' constants and warps, tiles per group, and tiles along the positions.

    ``huge``: int32 does not hold the number of a group's elements.
    """

    constants: dict[str, Any]
    parts: int
    across: int
    huge: bool


def _tiles(x: torch.Tensor, groups: int, config: str) -> _Tiles:
    batch, every, positions = x.shape
    channels = every // groups
    across, along = next_power_of_2(positions), next_power_of_2(channels)
    chosen = unpack(config) or {}
    tile = chosen.get("TILE") or CONFIGS[0]["TILE"]
    if "TILE" not in chosen:
        most = _ENOUGH if batch * groups >= multiprocessors(x) else _FEW
        tile = max(32, across * along) if across * along <= most else tile
    block = min(across, tile)
    deep = min(along, tile // block)
    width = 16 // x.element_size()
    constants = {
        "CHANNELS": deep, "BLOCK": block, "WHOLE": channels % deep == positions % block == 0,
        "VECTOR": width if positions % width == 0 and positions % 16 else 1,
        "num_warps": chosen.get("num_warps", max(1, min(16, tile // 1024))),
    }  # fmt: skip
    slabs = cdiv(positions, block)
    return _Tiles(constants, cdiv(channels, deep) * slabs, slabs, channels * positions >= BEYOND)


def _results(
    x: torch.Tensor, groups: int, weight: Any, bias: Any, eps: float, save: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:
    return x.new_empty(x.shape), x.new_empty((x.shape[0] * groups if save else 0, 2), dtype=torch.float32)


@operator("group_norm", autocast="fp32", shards="rww rr", fake=_results)
def _group_norm(
    x: torch.Tensor, groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float, save: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """y and, if ``save``, each group's mean and 1 / standard deviation (batch * groups, 2); else an empty tensor."""
    (batch, every, positions), (y, stats) = x.shape, _results(x, groups, weight, bias, eps, save, config)
    rows, channels = batch * groups, every // groups
    if y.numel() == 0:
        return y, stats.fill_(float("nan"))
    tiles, saved = _tiles(x, groups, config), stats if save else None
    if tiles.parts == 1:
        given = (y, saved, x, weight, bias, groups, channels, positions, eps)
        launch(kernels.group_norm_kernel, (rows,), *given, **tiles.constants)
        return y, stats
    sums = x.new_empty((rows, tiles.parts, 2), dtype=torch.float32)
    grid = (rows * tiles.parts,)
    launch(kernels.group_norm_sums_kernel, grid, sums, x, channels, positions, tiles.parts, **tiles.constants)
    launch(
        kernels.group_norm_parts_kernel, grid, y, saved, x, weight, bias, sums, groups, channels, positions, tiles.parts, eps,
        PARTS=min(1024, next_power_of_2(tiles.parts)), HUGE=tiles.huge, **tiles.constants,
    )  # fmt: skip
    return y, stats


@operator(
    "group_norm_backward",
    shards="rrwr rp",
    fake=lambda dy, x, groups, weight, stats, sums, config: (
        torch.empty_like(x),
        x.new_empty((2, x.shape[1] if sums else 0), dtype=sums_dtype(x, weight)),
    ),
)
def _group_norm_backward(
    dy: torch.Tensor, x: torch.Tensor, groups: int, weight: torch.Tensor | None, stats: torch.Tensor, sums: bool, config: str
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """dx and, if ``sums``, dW and dB as (2, channels); else an empty tensor."""
    batch, every, positions = x.shape
    dx = x.new_empty(x.shape)
    rows, channels = batch * groups, every // groups
    kind = sums_dtype(x, weight)
    if x.numel() == 0:
        return dx, torch.zeros((2, every if sums else 0), dtype=kind, device=x.device)
    tiles = _tiles(x, groups, config)
    whole = tiles.parts == 1
    partial = x.new_empty((1, batch * tiles.across, 2 * every), dtype=torch.float32) if sums or not whole else None
    if whole:
        launch(
            kernels.group_norm_backward_kernel, (rows,), dx, partial, dy, x, weight, stats, groups, channels, positions, **tiles.constants,
        )  # fmt: skip
    else:
        grid = (rows * tiles.parts,)
        launch(
            kernels.group_norm_backward_sums_kernel, grid, partial, dy, x, stats, groups, channels, positions, tiles.parts,
            **tiles.constants,
        )  # fmt: skip
        launch(
            kernels.group_norm_backward_parts_kernel, grid, dx, dy, x, weight, stats, partial, groups, channels, positions, tiles.parts,
            PARTS=min(1024, next_power_of_2(tiles.across * channels)), HUGE=tiles.huge, **tiles.constants,
        )  # fmt: skip
    if not sums or partial is None:
        return dx, torch.empty((2, 0), dtype=kind, device=x.device)
    return dx, sum_partials(partial, kind).view(2, every)


@_group_norm.gradient(lambda x, groups, weight, bias, eps, save, config, y, stats: (x, weight, stats))
def _differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight, stats = ctx.saved_tensors
    groups, *_, config = ctx.rest
    wants_dw, wants_db = ctx.needs_input_grad[2:4]
    dx, sums = _group_norm_backward(dy.contiguous(), x, groups, weight, stats, wants_dw or wants_db, config)
    return dx, None, sums[0] if wants_dw else None, sums[1].to(ctx.dtypes[3]) if wants_db else None


def group_norm(
    x: torch.Tensor, num_groups: int, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    eps: float = 1e-5, *, config: Config | None = None,
) -> torch.Tensor:  # fmt: skip
    """GroupNorm of ``x`` (batch, channels, ...) in ``num_groups`` groups of channels, computed in fp32; once differentiable.

    As ``torch.nn.functional.group_norm``. ``weight`` and ``bias`` are (channels,), in the dtype of ``x`` (fp32, fp16, bf16) or
    fp32. The result has the dtype of ``x`` and is contiguous; a ``channels_last`` input is copied first. Gradients are
    deterministic. ``config`` is one of ``CONFIGS``. Raises ValueError, naming the argument, for channels that ``num_groups``
    does not divide, other dtypes, shapes that do not fit, and devices without CUDA.
    """
    if not use_triton():
        return F.group_norm(x, num_groups, weight, bias, eps)
    check_tensors(True, x=x, weight=weight, bias=bias)
    if x.dim() < 2:
        raise ValueError(f"x has shape {tuple(x.shape)}: give (batch, channels, ...)")
    channels = x.shape[1]
    if num_groups < 1 or channels % num_groups:
        raise ValueError(f"num_groups is {num_groups}: give a divisor of the {channels} channels of x")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tuple(tensor.shape) != (channels,):
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: give one element a channel, ({channels},)")
    flat = x.contiguous().flatten(2) if x.dim() > 2 else x.contiguous().unsqueeze(2)
    save = wants_grad(x, weight, bias)
    y, _ = _group_norm(flat, num_groups, as_vector(weight), as_vector(bias), eps, save, pack(config))
    return shaped_as(y, x)


class GroupNorm(torch.nn.GroupNorm):
    """``torch.nn.GroupNorm``, with the same arguments, parameters and state, computed by ``group_norm``."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalize ``input`` (batch, channels, ...). Raises ValueError as ``group_norm`` does."""
        return group_norm(input, self.num_groups, self.weight, self.bias, self.eps)


def reference(
    x: torch.Tensor, num_groups: int, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """GroupNorm in plain PyTorch."""
    return F.group_norm(x, num_groups, weight, bias, eps)


def eager(x: torch.Tensor, num_groups: int, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
    """The formula one operation at a time, in fp32, as model code often writes it."""
    batch, channels, positions = x.shape
    rows = x.float().reshape(batch, num_groups, -1)
    centred = rows - rows.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (normed.view(batch, channels, positions) * weight[:, None] + bias[:, None]).to(x.dtype)


@drawn
def inputs(draw: Draw, batch: int, groups: int, channels: int, positions: int) -> dict[str, Any]:
    """``x`` of batch x (groups * channels) x positions around 0.5, ``weight`` around 1 and ``bias`` around 0."""
    channels *= groups
    x = draw(batch, channels, positions, shift=0.5, grad=True)
    weight, bias = draw(channels, scale=0.2, shift=1.0, grad=True), draw(channels, scale=0.2, grad=True)
    return {"x": x, "num_groups": groups, "weight": weight, "bias": bias, "eps": 1e-5}


def cost(workload: Workload, direction: str) -> Cost:
    """Forward reads x, weight and bias and writes y; backward reads dy, x and weight and writes dx, dW and dB.

    Saved statistics, which can be recomputed, and the second read of groups that no tile holds are not counted.

    Operations per element: forward, one for the mean, three for the variance, three for the scaling. Backward: two for n, one
    for g, three for the two sums, four for dx, three for dW and dB.
    """
    batch, groups, channels, _ = workload.dims.values()
    elements = workload.elements
    size, vector = elements * workload.itemsize, groups * channels * workload.itemsize
    if direction == FORWARD:
        return Cost(flops=7 * elements + 4 * batch * groups, bytes_read=size + 2 * vector, bytes_written=size)
    return Cost(flops=13 * elements + 2 * batch * groups, bytes_read=2 * size + vector, bytes_written=size + 2 * vector)


SPEC = declare(
    "group_norm", "GroupNorm of each image", "batch groups channels positions",
    "small 2x32x40x64-bf16, medium 2x32x10x4096-bf16, large 8x32x16x16384-bf16, ragged 13x7x6x781-fp32, "
    "wide 1x32x4x1048576-bf16",
    triton=Implementation(group_norm, "a tile a group, or tiles that are read twice", CONFIGS),
    eager=Implementation(eager, "the formula one operation at a time in fp32"),
    aten=Implementation(reference, "torch.nn.functional.group_norm"),
    reference=reference, inputs=inputs, cost=cost, tolerance={"fp32": 1e-5, "fp16": 8e-4, "bf16": 6.5e-3},
    passes="forward backward",
)  # fmt: skip
