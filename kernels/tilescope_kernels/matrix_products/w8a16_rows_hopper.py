"""Products of some 130 to 1000 16-bit rows and INT8 weights on Hopper, in tiles of any multiple of 16 rows, so that a wave fills its SMs.

As ``w8a16_hopper``, but in tiles that Gluon has no instruction for (``w8a16_wgmma``), and with weights in rows of 128 bytes, for TMA brings
an SM a row of up to 128 bytes in the same time. Few tiles have two SMs each, a cluster of two programs with a part along K each, which
send each other sums through shared memory: no second launch. Pairs of SMs that load x for each other (multicast) gained nothing.

It is faster than ``w8a16_hopper`` from 160 to 768 rows of x.

Two weights are converted in three to three and a half instructions. Waits for mbarriers stay even where no warps meet.

The first thread fills the ring before warps are specialized, because Triton starts specialized warps late.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.hopper_pipeline import advance
from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products import hopper_pairs as pairs
from tilescope_kernels.matrix_products import w8a16_hopper
from tilescope_kernels.matrix_products.aligned_rows import copy_rows, is_aligned, room
from tilescope_kernels.matrix_products.hopper_pairs import load_code
from tilescope_kernels.matrix_products.w8a16_wgmma import (
    PART,
    ROWS,
    SENT,
    added,
    converted,
    halves,
    in_order,
    multiplied,
    no_products,
    pair_layout,
    result_layout,
    send,
    unit,
    waited,
)

#: Multiplying warpgroups, and rows of weights of all.
_GROUPS = gl.constexpr(2)
_BLOCK_N = gl.constexpr(_GROUPS.value * ROWS.value)
#: Elements of a stage along K: 128 bytes of weights, twice 128 bytes of x.
_BLOCK_K = gl.constexpr(128)
#: Stages of a turn, an unrolled part of the loop. One or four are as fast.
_TURN = gl.constexpr(2)
#: Rows of tiles that are visited together, so that their operands stay in L2.
_GROUP_N = gl.constexpr(16)
#: Registers per thread of the multiplying warpgroups and of the loading warp.
_MULTIPLYING, _LOADING = gl.constexpr(232), gl.constexpr(24)
#: PTX that loads a box of x or of weights.
_X, _WEIGHT = (load_code("w8a16_rows_hopper_kernel", each, False) for each in range(2))
#: The same by the kernel's first thread, instead of a warp's.
_X_EARLY, _WEIGHT_EARLY = (load_code("w8a16_rows_hopper_kernel", each, False, "tid.x") for each in range(2))


@gluon.constexpr_function
def _shared(bits, split):
    return gl.NVMMASharedLayout(128, bits, 2, False, False, pairs.BOTH if split else [])


@gluon.constexpr_function
def _barriers(split):
    return mbarrier.MBarrierLayout([[0]]) if split else mbarrier.MBarrierLayout()


@gluon.constexpr_function
def _barriers_at(block_m, stages):
    """Bytes of the rings over those of an mbarrier: the mbarriers follow."""
    return stages * (2 * block_m + 128) * 128 // 8


@gluon.jit
def _part(rank, K, SPLIT: gl.constexpr):
    """First column of x of this program's part along K, and its turns. Past K a turn loads zeros."""
    turns = gl.cdiv(K, _TURN * _BLOCK_K)
    first = 0 * turns
    if SPLIT:
        turns = gl.cdiv(turns, 2)
        first = rank * turns * (_TURN * _BLOCK_K)
    return first, turns


@gluon.jit
def _load_stage(
    X: gl.constexpr, WEIGHT: gl.constexpr, slot, k, start_m, start_n, BLOCK_M: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Load the operands of a stage, by the PTX ``X`` and ``WEIGHT``."""
    HALF: gl.constexpr = BLOCK_M * _BLOCK_K
    rings = pairs.shared_memory()
    arrived = rings + (_barriers_at(BLOCK_M, STAGES) + slot) * 8
    pairs.load(WEIGHT, rings + slot * (_BLOCK_N * _BLOCK_K), k, start_n, arrived)
    for half in gl.static_range(2):
        place = rings + STAGES * _BLOCK_N * _BLOCK_K + slot * (2 * HALF) + half * HALF
        for i in gl.static_range(BLOCK_M // BOX):
            pairs.load(X, place + i * (BOX * _BLOCK_K), k + half * (_BLOCK_K // 2), start_m + i * BOX, arrived)


@gluon.jit
def _rank(SPLIT: gl.constexpr):
    return pairs.rank() if SPLIT else gl.to_tensor(0)


@gluon.jit
def _load_early(
    M, N, K, BLOCK_M: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr
):  # fmt: skip
    """First thread: fill the ring while warps start."""
    ready = pairs.shared_memory() + _barriers_at(BLOCK_M, STAGES) * 8
    first, turns = _part(_rank(SPLIT), K, SPLIT)
    start_n, start_m = tile_origin(gl.program_id(0), N, M, _BLOCK_N, BLOCK_M, _GROUP_N)
    for slot in range(gl.minimum(turns * _TURN, STAGES)):
        pairs.expect(ready + slot * 8, (2 * BLOCK_M + _BLOCK_N) * _BLOCK_K)
        _load_stage(_X_EARLY, _WEIGHT_EARLY, slot, first + slot * _BLOCK_K, start_m, start_n, BLOCK_M, BOX, STAGES)


@gluon.jit
def _load(
    barriers, M, N, K, tiles, BLOCK_M: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr
):  # fmt: skip
    """Producer warp: load operands as far ahead as the ring allows, those of the next tile during an epilogue."""
    BARRIERS: gl.constexpr = _barriers_at(BLOCK_M, STAGES)
    first, turns = _part(_rank(SPLIT), K, SPLIT)
    filled = gl.minimum(turns * _TURN, STAGES)
    # Stages that have not been filled are free: on a fresh mbarrier a wait for the previous phase returns at once.
    slot, phase = filled % STAGES, 1 - filled // STAGES
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_n, start_m = tile_origin(tile, N, M, _BLOCK_N, BLOCK_M, _GROUP_N)
        # Not a variable that a first tile sets: Triton does not carry one from tile to tile that is only set to a constant.
        for stage in range(gl.where(tile == gl.program_id(0), filled, 0), turns * _TURN):
            for i in gl.static_range(_GROUPS):
                mbarrier.wait(barriers.index(BARRIERS + STAGES + slot * _GROUPS + i), phase)
            mbarrier.expect(barriers.index(BARRIERS + slot), (2 * BLOCK_M + _BLOCK_N) * _BLOCK_K)
            _load_stage(_X, _WEIGHT, slot, first + stage * _BLOCK_K, start_m, start_n, BLOCK_M, BOX, STAGES)
            slot, phase = advance(slot, phase, STAGES)
    if SPLIT:
        pairs.idle()


@gluon.jit
def _exchanged(WHICH: gl.constexpr, totals, rank):
    """The half of a tile's sums that this program stores: the sum of both programs' parts along K.

    Both have used their rings once they have met, and send through them.
    """
    STORED: gl.constexpr = len(totals) // 2
    place = pairs.shared_memory() + WHICH * (STORED * SENT)
    pairs.meet()
    for i in gl.static_range(STORED):
        send(gl.where(rank == 0, totals[STORED + i], totals[i]), place + i * SENT, rank ^ 1)
    pairs.meet()
    sums = ()
    for i in gl.static_range(STORED):
        own = gl.where(rank == 0, totals[i], totals[STORED + i])
        sums = sums + (added(own, place + i * SENT),)  # noqa: RUF005 - Triton does not unpack
    return sums


@gluon.jit
def _store(
    WHICH: gl.constexpr, totals, scale, y_tiles, y_buffers, start_m, start_n, RESULT: gl.constexpr, BUFFERS: gl.constexpr
):  # fmt: skip
    """Scale sums and write them, 16 rows of y at a time, through this warpgroup's buffers."""
    for i in gl.static_range(len(totals)):
        # Wait until the buffer has been stored. TMA clips at the edges.
        tma.store_wait(BUFFERS - 1 if i > 0 else 0)
        buffer = y_buffers.index(WHICH * BUFFERS + i % BUFFERS)
        part = (
            gl.convert_layout(in_order(totals[i]), RESULT, assert_trivial=True) * unit(y_tiles.dtype) * scale[:, None]
        )
        buffer.permute([1, 0]).store(part.to(y_tiles.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(y_tiles, [start_m + i * PART, start_n], buffer)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, y_tiles, scale_ptr, rings, y_buffers, barriers, M, N, K, tiles,
    BLOCK_M: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its 64 rows of weights of this program's tiles, converting half a stage during another's products."""
    rank = _rank(SPLIT)
    PARTS: gl.constexpr = BLOCK_M // PART
    HALF: gl.constexpr = BLOCK_M * _BLOCK_K
    BARRIERS: gl.constexpr = _barriers_at(BLOCK_M, STAGES)
    FREE: gl.constexpr = BARRIERS + STAGES
    RESULT: gl.constexpr = result_layout(SPLIT)
    WIDE: gl.constexpr = pair_layout(64, SPLIT)
    NARROW: gl.constexpr = pair_layout(32, SPLIT)
    weight_ring = rings._reinterpret(gl.int16, [STAGES * _GROUPS, ROWS, _BLOCK_K // 2], _shared(16, SPLIT))
    x_ring = pairs.shared_memory() + STAGES * _BLOCK_N * _BLOCK_K
    free = pairs.shared_memory() + FREE * 8
    n = WHICH * ROWS + gl.arange(0, ROWS, layout=gl.SliceLayout(1, RESULT))
    _, turns = _part(rank, K, SPLIT)
    if WHICH == 1:
        # Start when the first warpgroup has used a stage, so that one converts during the other's products.
        mbarrier.wait(barriers.index(FREE), 0)
    slot, phase = gl.to_tensor(0), gl.to_tensor(0)
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start_n, start_m = tile_origin(tile, N, M, _BLOCK_N, BLOCK_M, _GROUP_N)
        scale = gl.load(scale_ptr + start_n + n, mask=start_n + n < N, other=0.0)
        totals = no_products(PARTS, SPLIT)
        mbarrier.wait(barriers.index(BARRIERS + slot), phase)
        first, second = halves(weight_ring.index(slot * _GROUPS + WHICH).load(WIDE), NARROW)
        weights = converted(first, y_tiles.dtype)
        for turn in range(turns):
            # ptxas keeps no wgmma in flight across a loop's back edge: the last products of a turn are waited for, while the next
            # turn's first weights are converted.
            for stage in gl.static_range(_TURN):
                place = x_ring + slot * (2 * HALF)
                totals = multiplied(weights, place, totals, y_tiles.dtype, SPLIT)
                weights = converted(second, y_tiles.dtype)
                totals = waited(totals)
                totals = multiplied(weights, place + HALF, totals, y_tiles.dtype, SPLIT)
                used = slot
                slot, phase = advance(slot, phase, STAGES)
                # After a tile's last stage what is read is not used.
                mbarrier.wait(barriers.index(BARRIERS + slot), phase, pred=(stage + 1 < _TURN) | (turn + 1 < turns))
                first, second = halves(weight_ring.index(slot * _GROUPS + WHICH).load(WIDE), NARROW)
                weights = converted(first, y_tiles.dtype)
                totals = waited(totals)
                if SPLIT:
                    pairs.arrive(free + (used * _GROUPS + WHICH) * 8, rank)
                else:
                    mbarrier.arrive(barriers.index(FREE + used * _GROUPS + WHICH), count=1)
        if SPLIT:
            totals = _exchanged(WHICH, totals, rank)
            start_m += rank * (BLOCK_M // 2)
        _store(WHICH, totals, scale, y_tiles, y_buffers, start_m, start_n + WHICH * ROWS, RESULT, BUFFERS)
    tma.store_wait(0)


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "tiles"])
def w8a16_rows_hopper_kernel(
    x_tiles, weight_tiles, y_tiles, scale_ptr, M, N, K, tiles,
    BLOCK_M: gl.constexpr, BOX: gl.constexpr, STAGES: gl.constexpr, SPLIT: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Compute tiles ``program, program + programs, ...`` of BLOCK_M rows of x and 128 of weights, 64 per warpgroup.

    If ``SPLIT`` a tile has two programs, a cluster, each with a part along K: launch with ``num_ctas`` 2 and as many clusters as tiles.
    Descriptors have boxes of BOX x 64 of x, 128 x 128 of weights and 16 x 64 of y. Launch with 4 warps.
    """
    BARRIERS: gl.constexpr = _barriers_at(BLOCK_M, STAGES)
    # The rings of weights and of x, then mbarriers. It is the largest, so that it lies at the start of shared memory.
    rings = gl.allocate_shared_memory(gl.int8, [BARRIERS // 1024 + 1, ROWS, _BLOCK_K], _shared(8, SPLIT))
    y_buffers = gl.allocate_shared_memory(x_tiles.dtype, [_GROUPS * BUFFERS, PART, ROWS], _shared(16, SPLIT))
    # First those of stages that have arrived, then those of stages that a warpgroup has used.
    barriers = rings._reinterpret(gl.int64, [BARRIERS + STAGES * (1 + _GROUPS), 1], _barriers(SPLIT))
    # In a cluster each warp arrives by itself.
    pairs.initialize(
        pairs.barriers_code(STAGES, STAGES * _GROUPS, 4 if SPLIT else 1), pairs.shared_memory() + BARRIERS * 8
    )
    _load_early(M, N, K, BLOCK_M, BOX, STAGES, SPLIT)
    if SPLIT:
        # Idle warps fill the loading warp's warpgroup, as Triton would: a meeting needs every warp that there is.
        gl.warp_specialize(
            [
                (_multiply, (0, y_tiles, scale_ptr, rings, y_buffers, barriers, M, N, K, tiles, BLOCK_M, STAGES, SPLIT, BUFFERS)),
                (_multiply, (1, y_tiles, scale_ptr, rings, y_buffers, barriers, M, N, K, tiles, BLOCK_M, STAGES, SPLIT, BUFFERS)),
                (_load, (barriers, M, N, K, tiles, BLOCK_M, BOX, STAGES, SPLIT)),
                (pairs.idle, ()), (pairs.idle, ()),
            ],
            [4, 1, 1, 2],
            [_MULTIPLYING, _LOADING, _LOADING, _LOADING],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (0, y_tiles, scale_ptr, rings, y_buffers, barriers, M, N, K, tiles, BLOCK_M, STAGES, SPLIT, BUFFERS)),
                (_multiply, (1, y_tiles, scale_ptr, rings, y_buffers, barriers, M, N, K, tiles, BLOCK_M, STAGES, SPLIT, BUFFERS)),
                (_load, (barriers, M, N, K, tiles, BLOCK_M, BOX, STAGES, SPLIT)),
            ],
            [4, 1],
            [_MULTIPLYING, _LOADING],
        )  # fmt: skip


#: Bytes of shared memory of a program, less those of what is not in the rings, and most stages.
_SHARED, _MOST = 226 * 1024, 6


def stages(block_m: int) -> int:
    """Stages of the ring of operands: as many as shared memory holds beside the buffers of y, at most ``_MOST``."""

    def taken(count: int) -> int:
        return (_barriers_at(block_m, count) // 1024 + 1) * 8192 + buffers(block_m) * 4096

    return max(count for count in range(1, _MOST + 1) if taken(count) <= _SHARED)


def buffers(block_m: int) -> int:
    """Buffers of 16 rows of y of each warpgroup."""
    return min(4, block_m // PART.value)


@dataclass(frozen=True)
class Tiling:
    """A tile of ``block_m`` rows of x, of one program or, ``split``, of a cluster of two, which have a part along K each."""

    block_m: int
    split: bool = False


#: Seconds of a launch, of exchanging the sums of two parts, of a tile, of 64 columns of a tile, and of those per row of x. Fitted to
#: timings of 22 sizes on an H200.
_LAUNCH, _EXCHANGE, _TILE, _STEP, _ROW = 2.6e-6, 3.9e-6, 1.2e-6, 0.182e-6, 1.7e-9
#: ``w8a16_hopper`` estimates what events measure: its kernels take this many times as long, less these seconds.
_SLOWER, _LESS = 1.09, 5.3e-6
#: How much less time it must be estimated to take than ``w8a16_hopper``.
_GAIN = 0.98
_BLOCKS = range(32, 193, 16)
#: Products of fewer or more rows, where ``w8a16_hopper`` was faster, and of fewer columns of x, which were not measured, are left to it.
_FEWEST_ROWS, _MOST_ROWS, _SHORTEST = 129, 1023, 2048


def seconds(m: int, n: int, k: int, programs: int, chosen: Tiling) -> float:
    """Estimated seconds of the kernel: waves of tiles, and the exchange of sums."""
    parts = 2 if chosen.split else 1
    waves = cdiv(_tiles_of(m, n, chosen.block_m), programs // parts)
    steps = cdiv(cdiv(k, _TURN.value * _BLOCK_K.value), parts) * _TURN.value * (_BLOCK_K.value // 64)
    return _LAUNCH + _EXCHANGE * chosen.split + waves * (_TILE + steps * (_STEP + _ROW * chosen.block_m))


@functools.lru_cache(maxsize=4096)
def tiling(m: int, n: int, k: int, programs: int) -> Tiling | None:
    """The tiling with the least estimated time; None where ``w8a16_hopper`` is estimated to be as fast or leaves it to others."""
    other = w8a16_hopper.tiling(m, n, k, programs)
    if other is None or not _FEWEST_ROWS <= m <= _MOST_ROWS or k < _SHORTEST:
        return None
    candidates = [Tiling(block_m) for block_m in _BLOCKS]
    candidates += [
        Tiling(block_m, True) for block_m in _BLOCKS if block_m % 32 == 0 and 2 * _tiles_of(m, n, block_m) <= programs
    ]
    best = min(candidates, key=functools.partial(seconds, m, n, k, programs))
    bound = _SLOWER * w8a16_hopper.seconds(m, n, k, programs, other) - _LESS
    return best if seconds(m, n, k, programs, best) < _GAIN * bound else None


def _tiles_of(m: int, n: int, block_m: int) -> int:
    return cdiv(m, block_m) * cdiv(n, _BLOCK_N.value)


def plan(x: torch.Tensor, weight: torch.Tensor) -> Tiling | None:
    """The tiling for ``x`` (M, K) and ``weight`` (N, K); None where this kernel does not serve them or is slower."""
    if not pairs.KNOWN or not w8a16_hopper.serves(x, weight):
        return None
    return tiling(x.shape[0], weight.shape[0], x.shape[1], multiprocessors(x))


def write_product(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, chosen: Tiling) -> None:
    """Write the product of operands that ``plan`` accepts to contiguous ``y``, through aligned rows if its own are not."""
    (m, n), k, block_m, split = y.shape, x.shape[1], chosen.block_m, chosen.split
    out = y if is_aligned(y) else room(y)
    tiles = _tiles_of(m, n, block_m)
    box = min(block_m & -block_m, 128)
    shared = _shared(16, split)
    launch(
        w8a16_rows_hopper_kernel, (tiles if split else min(tiles, multiprocessors(x)),),
        gluon_tiles(x, box, _BLOCK_K.value // 2, layout=shared),
        gluon_tiles(weight, _BLOCK_N.value, _BLOCK_K.value, layout=_shared(8, split)),
        gluon_tiles(out, PART.value, ROWS.value, layout=shared), scale, m, n, k, tiles,
        BLOCK_M=block_m, BOX=box, STAGES=stages(block_m), SPLIT=split, BUFFERS=buffers(block_m), num_warps=4, num_ctas=1 + split,
    )  # fmt: skip
    if out is not y:
        copy_rows(y, out)
