"""GroupNorm, forward and backward: each group of an image's channels is normalized over its channels and all positions.

Wu and He, "Group Normalization", arXiv:1803.08494. A group that fits a tile is read once per pass. A larger one is split into
tiles that are read twice: first for the sums, then for the result, and tiles exchange their sums through memory.

In kernels ``x`` is (batch, channels, positions), contiguous, so that a group of an image is a row of ``channels * positions`` elements,
where ``channels`` are those of the group. A tile has ``CHANNELS`` channels of ``BLOCK`` positions. Each channel has one weight.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from tilescope_kernels._shared.checks import check_tensors, use_triton
from tilescope_kernels._shared.launching import BEYOND, cdiv, launch, multiprocessors, next_power_of_2
from tilescope_kernels._shared.operators import as_vector, operator, pack, shaped_as, unpack, wants_grad
from tilescope_kernels._shared.row_tiles import aligned
from tilescope_kernels._shared.weight_gradients import sum_partials, sums_dtype
from tilescope_kernels.spec import FORWARD, Config, Cost, Draw, Implementation, Workload, declare, drawn


@triton.jit
def _place(part, positions, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """First channel and first position of a tile in its group."""
    across = tl.cdiv(positions, BLOCK)
    return part // across * CHANNELS, part % across * BLOCK


@triton.jit
def _load_tile(ptr, channel, position, positions, channels, left, WHOLE: tl.constexpr):
    """Load a tile that begins at ``ptr``, in fp32. Only ``channels`` channels of ``left`` positions exist; the rest is zero."""
    if WHOLE:
        x = tl.load(ptr + channel * positions + position)
    else:
        x = tl.load(ptr + channel * positions + position, mask=(channel < channels) & (position < left), other=0.0)
    return x.to(tl.float32)


@triton.jit
def _store_tile(ptr, values, channel, position, positions, channels, left, WHOLE: tl.constexpr):
    mask = None if WHOLE else (channel < channels) & (position < left)
    tl.store(ptr + channel * positions + position, values.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _of_channels(ptr, channel, channels, other):
    """Load a tile's elements of a vector over channels, from ``ptr`` on."""
    return tl.load(ptr + channel, mask=channel < channels, other=other).to(tl.float32)


@triton.jit
def _total(x):
    return tl.sum(tl.sum(x, axis=1), axis=0)


@triton.jit
def _normalized(x, mean, rstd, weight_ptr, bias_ptr, first, channel, channels):
    """Normalize and scale a tile. ``first`` is its first channel in ``weight`` and ``bias``."""
    y = (x - mean) * rstd
    if weight_ptr is not None:
        y *= _of_channels(weight_ptr + first, channel, channels, 1.0)
    if bias_ptr is not None:
        y += _of_channels(bias_ptr + first, channel, channels, 0.0)
    return y


@triton.jit
def _deviation(x, mean, channel, position, channels, left, WHOLE: tl.constexpr):
    """Sum of squared deviations from the mean."""
    centred = x - mean
    if not WHOLE:
        centred = tl.where((channel < channels) & (position < left), centred, 0.0)
    return _total(centred * centred)


@triton.jit
def _store_statistics(stats_ptr, row, mean, rstd):
    tl.store(stats_ptr + 2 * row, mean)
    tl.store(stats_ptr + 2 * row + 1, rstd)


@triton.jit
def group_norm_kernel(
    y_ptr, stats_ptr, x_ptr, weight_ptr, bias_ptr, groups, channels, positions, eps,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """One group per program. ``stats``, ``weight`` and ``bias`` may be None."""
    positions = aligned(positions, VECTOR)
    # Only the tile's start needs 64 bits.
    row = tl.program_id(0).to(tl.int64)
    start = row * channels * positions
    channel, position = tl.arange(0, CHANNELS)[:, None], tl.arange(0, BLOCK)[None, :]
    x = _load_tile(x_ptr + start, channel, position, positions, channels, positions, WHOLE)
    count = channels * positions * 1.0
    mean = _total(x) / count
    rstd = tl.rsqrt(_deviation(x, mean, channel, position, channels, positions, WHOLE) / count + eps)
    y = _normalized(x, mean, rstd, weight_ptr, bias_ptr, row % groups * channels, channel, channels)
    _store_tile(y_ptr + start, y, channel, position, positions, channels, positions, WHOLE)
    if stats_ptr is not None:
        _store_statistics(stats_ptr, row, mean, rstd)


@triton.jit
def group_norm_sums_kernel(
    sums_ptr, x_ptr, channels, positions, parts, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Mean and sum of squared deviations of each tile, to (rows, parts, 2)."""
    positions = aligned(positions, VECTOR)
    program = tl.program_id(0).to(tl.int64)
    first, place = _place(tl.program_id(0) % parts, positions, CHANNELS, BLOCK)
    start = (program // parts * channels + first) * positions + place
    deep, left = tl.minimum(channels - first, CHANNELS), tl.minimum(positions - place, BLOCK)
    channel, position = tl.arange(0, CHANNELS)[:, None], tl.arange(0, BLOCK)[None, :]
    x = _load_tile(x_ptr + start, channel, position, positions, deep, left, WHOLE)
    mean = _total(x) / (deep * left).to(tl.float32)
    tl.store(sums_ptr + 2 * program, mean)
    tl.store(sums_ptr + 2 * program + 1, _deviation(x, mean, channel, position, deep, left, WHOLE))


@triton.jit
def _count(channels, positions, HUGE: tl.constexpr):
    """Elements of a group, in fp32. ``HUGE`` groups have more than int32 can count."""
    if HUGE:
        channels = channels + tl.full((), 0, tl.int64)
    return channels * positions * 1.0


@triton.jit
def _merged(
    sums_ptr, channels, positions, parts, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, HUGE: tl.constexpr,
):  # fmt: skip
    """Merge the tiles' means and sums of squared deviations, in a fixed order (Chan, Golub and LeVeque, 1979)."""
    total = tl.zeros((PARTS,), tl.float32)
    for begin in range(0, parts, PARTS):
        part = begin + tl.arange(0, PARTS)
        first, place = _place(part, positions, CHANNELS, BLOCK)
        count = tl.minimum(channels - first, CHANNELS) * tl.minimum(positions - place, BLOCK)
        mean = tl.load(sums_ptr + 2 * part, mask=part < parts, other=0.0)
        total += mean * tl.where(part < parts, count, 0).to(tl.float32)
    whole = tl.sum(total, axis=0) / _count(channels, positions, HUGE)
    total = tl.zeros((PARTS,), tl.float32)
    for begin in range(0, parts, PARTS):
        part = begin + tl.arange(0, PARTS)
        first, place = _place(part, positions, CHANNELS, BLOCK)
        count = tl.minimum(channels - first, CHANNELS) * tl.minimum(positions - place, BLOCK)
        apart = tl.load(sums_ptr + 2 * part, mask=part < parts, other=0.0) - whole
        squares = tl.load(sums_ptr + 2 * part + 1, mask=part < parts, other=0.0)
        total += squares + apart * apart * tl.where(part < parts, count, 0).to(tl.float32)
    return whole, tl.sum(total, axis=0)


@triton.jit
def group_norm_parts_kernel(
    y_ptr, stats_ptr, x_ptr, weight_ptr, bias_ptr, sums_ptr, groups, channels, positions, parts, eps,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr, PARTS: tl.constexpr, HUGE: tl.constexpr,
):  # fmt: skip
    """Normalize one tile per program with the merged statistics of its row. The last rows go first: they are still in L2."""
    positions = aligned(positions, VECTOR)
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row = (program // parts).to(tl.int64)
    first, place = _place(program % parts, positions, CHANNELS, BLOCK)
    start = (row * channels + first) * positions + place
    deep, left = channels - first, positions - place
    channel, position = tl.arange(0, CHANNELS)[:, None], tl.arange(0, BLOCK)[None, :]
    # Loaded before the statistics, so that both loads are in flight together.
    x = _load_tile(x_ptr + start, channel, position, positions, deep, left, WHOLE)
    mean, squares = _merged(sums_ptr + 2 * row * parts, channels, positions, parts, CHANNELS, BLOCK, PARTS, HUGE)
    rstd = tl.rsqrt(squares / _count(channels, positions, HUGE) + eps)
    y = _normalized(x, mean, rstd, weight_ptr, bias_ptr, row % groups * channels + first, channel, deep)
    _store_tile(y_ptr + start, y, channel, position, positions, deep, left, WHOLE)
    if stats_ptr is not None and program % parts == 0:
        _store_statistics(stats_ptr, row, mean, rstd)


@triton.jit
def _store_sums(sums_ptr, by_n, of_dy, every, channel, channels):
    """Store a tile's sums per channel to (slots, 2, channels of all groups), from ``sums_ptr`` on."""
    tl.store(sums_ptr + channel, by_n, mask=channel < channels)
    tl.store(sums_ptr + every + channel, of_dy, mask=channel < channels)


@triton.jit
def group_norm_backward_kernel(
    dx_ptr, sums_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, groups, channels, positions,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """One group per program. With n = (x - mean) * rstd and g = dy * weight: dx = rstd * (g - mean(g) - n * mean(g * n)).

    ``sums`` (batch, 2, channels of all groups) gets the sums of dy * n and of dy. ``sums`` and ``weight`` may be None.
    """
    positions = aligned(positions, VECTOR)
    row = tl.program_id(0).to(tl.int64)
    start = row * channels * positions
    channel, position = tl.arange(0, CHANNELS)[:, None], tl.arange(0, BLOCK)[None, :]
    x = _load_tile(x_ptr + start, channel, position, positions, channels, positions, WHOLE)
    dy = _load_tile(dy_ptr + start, channel, position, positions, channels, positions, WHOLE)
    mean, rstd = tl.load(stats_ptr + 2 * row), tl.load(stats_ptr + 2 * row + 1)
    n = (x - mean) * rstd
    by_n = tl.sum(dy * n, axis=1, keep_dims=True)
    of_dy = tl.sum(dy, axis=1, keep_dims=True)
    if sums_ptr is not None:
        at = sums_ptr + (row // groups * 2 * groups + row % groups) * channels
        _store_sums(at, by_n, of_dy, groups * channels, channel, channels)
    g = dy
    if weight_ptr is not None:
        weight = _of_channels(weight_ptr + row % groups * channels, channel, channels, 0.0)
        g, by_n, of_dy = dy * weight, by_n * weight, of_dy * weight
    count = channels * positions * 1.0
    dx = rstd * (g - _total(of_dy) / count - n * (_total(by_n) / count))
    _store_tile(dx_ptr + start, dx, channel, position, positions, channels, positions, WHOLE)


@triton.jit
def group_norm_backward_sums_kernel(
    sums_ptr, dy_ptr, x_ptr, stats_ptr, groups, channels, positions, parts,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Sums of dy * n and of dy per channel and tile, to (batch * tiles along positions, 2, channels of all groups)."""
    positions = aligned(positions, VECTOR)
    row = (tl.program_id(0) // parts).to(tl.int64)
    first, place = _place(tl.program_id(0) % parts, positions, CHANNELS, BLOCK)
    start = (row * channels + first) * positions + place
    deep, left = channels - first, positions - place
    channel, position = tl.arange(0, CHANNELS)[:, None], tl.arange(0, BLOCK)[None, :]
    x = _load_tile(x_ptr + start, channel, position, positions, deep, left, WHOLE)
    dy = _load_tile(dy_ptr + start, channel, position, positions, deep, left, WHOLE)
    mean, rstd = tl.load(stats_ptr + 2 * row), tl.load(stats_ptr + 2 * row + 1)
    by_n = tl.sum(dy * ((x - mean) * rstd), axis=1, keep_dims=True)
    of_dy = tl.sum(dy, axis=1, keep_dims=True)
    slot = row // groups * tl.cdiv(positions, BLOCK) + place // BLOCK
    at = sums_ptr + (slot * 2 * groups + row % groups) * channels + first
    _store_sums(at, by_n, of_dy, groups * channels, channel, deep)


@triton.jit
def group_norm_backward_parts_kernel(
    dx_ptr, dy_ptr, x_ptr, weight_ptr, stats_ptr, sums_ptr, groups, channels, positions, parts,
    CHANNELS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, VECTOR: tl.constexpr, PARTS: tl.constexpr, HUGE: tl.constexpr,
):  # fmt: skip
    """``dx`` of one tile per program, from the sums of all tiles of its row. The last rows go first: they are still in L2."""
    positions = aligned(positions, VECTOR)
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    row = (program // parts).to(tl.int64)
    first, place = _place(program % parts, positions, CHANNELS, BLOCK)
    start = (row * channels + first) * positions + place
    deep, left = channels - first, positions - place
    channel, position = tl.arange(0, CHANNELS)[:, None], tl.arange(0, BLOCK)[None, :]
    x = _load_tile(x_ptr + start, channel, position, positions, deep, left, WHOLE)
    g = _load_tile(dy_ptr + start, channel, position, positions, deep, left, WHOLE)
    across, every = tl.cdiv(positions, BLOCK), groups * channels
    of_group = row % groups * channels
    sums_ptr += row // groups * across * 2 * every + of_group
    by_n, of_dy = tl.zeros((PARTS,), tl.float32), tl.zeros((PARTS,), tl.float32)
    for begin in range(0, across * channels, PARTS):
        one = begin + tl.arange(0, PARTS)
        inside = one < across * channels
        at = sums_ptr + one // channels * 2 * every + one % channels
        some, others = tl.load(at, mask=inside, other=0.0), tl.load(at + every, mask=inside, other=0.0)
        if weight_ptr is not None:
            weight = _of_channels(weight_ptr + of_group, one % channels, channels, 0.0)
            some, others = some * weight, others * weight
        by_n += some
        of_dy += others
    if weight_ptr is not None:
        g *= _of_channels(weight_ptr + of_group + first, channel, deep, 0.0)
    count = _count(channels, positions, HUGE)
    mean, rstd = tl.load(stats_ptr + 2 * row), tl.load(stats_ptr + 2 * row + 1)
    dx = rstd * (g - tl.sum(of_dy, axis=0) / count - (x - mean) * rstd * (tl.sum(by_n, axis=0) / count))
    _store_tile(dx_ptr + start, dx, channel, position, positions, deep, left, WHOLE)


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
        launch(group_norm_kernel, (rows,), *given, **tiles.constants)
        return y, stats
    sums = x.new_empty((rows, tiles.parts, 2), dtype=torch.float32)
    grid = (rows * tiles.parts,)
    launch(group_norm_sums_kernel, grid, sums, x, channels, positions, tiles.parts, **tiles.constants)
    launch(
        group_norm_parts_kernel, grid, y, saved, x, weight, bias, sums, groups, channels, positions, tiles.parts, eps,
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
            group_norm_backward_kernel, (rows,), dx, partial, dy, x, weight, stats, groups, channels, positions, **tiles.constants,
        )  # fmt: skip
    else:
        grid = (rows * tiles.parts,)
        launch(
            group_norm_backward_sums_kernel, grid, partial, dy, x, stats, groups, channels, positions, tiles.parts,
            **tiles.constants,
        )  # fmt: skip
        launch(
            group_norm_backward_parts_kernel, grid, dx, dy, x, weight, stats, partial, groups, channels, positions, tiles.parts,
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
