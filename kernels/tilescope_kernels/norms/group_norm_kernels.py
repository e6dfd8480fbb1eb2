"""Triton kernels of ``group_norm``: a group in one tile, or in several that exchange their sums through memory.

``x`` is (batch, channels, positions), contiguous, so that a group of an image is a row of ``channels * positions`` elements,
where ``channels`` are those of the group. A tile has ``CHANNELS`` channels of ``BLOCK`` positions. Each channel has one weight.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.row_tiles import aligned


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
