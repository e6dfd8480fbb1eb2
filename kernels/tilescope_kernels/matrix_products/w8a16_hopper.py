"""Products of 16-bit rows and INT8 weights on Hopper, warp-specialized: one warp loads, two warpgroups convert and multiply.

While one warpgroup converts weights, the other's products keep the tensor cores busy. Written in Gluon: in Triton's language
all warps wait for the same loads, so all convert at once and the tensor cores idle. Few tiles are split along K, and a second
launch adds the parts up in a fixed order.

In bf16 on an H200 (2026-11-26, torch 2.11, triton 3.6, cold L2; in brackets cuBLAS with 16-bit weights, and this kernel
without converting a step ahead): 64x4096x4096 15.5 us (13.8, 17.1), 128x4096x4096 19.4 us (16.4, 20.2), 256x4096x4096 24.1
(19.6, 25.0), 512x4096x4096 33.1 (26.8, 36.7), 256x8192x8192 57.0 (47.6, 57.3), 64x14336x4096 27.9 (35.2, 34.7),
128x14336x4096 34.8 (34.8, 43.3), 1024x4096x4096 49.7 (46.9, 62.0), 1024x14336x4096 165 (156; not cut 180), 4096x4096x4096 181 (178,
208), 8192x8192x8192 1451 (1444, 1516). In tiles of 80 and 192 rows (2026-11-27; tiles of 128 and 256 rows, cuBLAS): 320x4096x4096
31.4 us (34.2, 21.0), 300x4104x4112 33.6 (36.1, 27.5), 768x4096x4096 43.6 (48.7, 37.7), 320x14336x4096 79.1 (88.8, 57.0).

A step takes 0.2 us and 1.6 ns per row of x, which is neither the products' time nor the conversion's: four warpgroups that share
a tile's steps are as slow in 64 rows, and 4 % faster in 80. It would fit a row that TMA brings taking 1.6 ns whatever its width: weights
come in rows of 64 bytes, where 128 would do.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products.aligned_rows import copy_rows, is_aligned, room
from tilescope_kernels.matrix_products.scaled_matmul import tma_serves
from tilescope_kernels.matrix_products.w8a16_converted import BLOCK_K, GROUP_N, GROUPS, ROWS, converted, store_part
from tilescope_kernels.matrix_products.w8a16_split import add_parts

#: Rows of weights in a tile.
_BLOCK_N = gl.constexpr(GROUPS.value * ROWS.value)
#: Steps that the second warpgroup lags behind, so that one waits during the other's products.
_LAG = gl.constexpr(2)
#: Registers per thread of the multiplying warpgroups and of the loading warp.
_MULTIPLYING, _LOADING = gl.constexpr(232), gl.constexpr(24)


@gluon.jit
def _advance(slot, phase, STAGES: gl.constexpr):
    """Next stage of the ring and its phase, without dividing a running count."""
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _piece(
    piece, whole, M, N, K, BLOCK_M: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, TURN: gl.constexpr,
):  # fmt: skip
    """First row of weights and of x, first turn along K, and number of turns of a piece.

    A piece is a part along K if ``SPLIT`` > 1, else one of the ``whole`` tiles or a part of a later one's rows of x.
    Past K a turn loads zeros.
    """
    turns = (K + TURN * BLOCK_K - 1) // (TURN * BLOCK_K)
    if CUT == 1:
        start_n, start_m = tile_origin(piece // SPLIT, N, M, _BLOCK_N, BLOCK_M, GROUP_N)
        each = (turns + SPLIT - 1) // SPLIT
        first = piece % SPLIT * each
        turns = gl.minimum(each, turns - first)
    else:
        part = gl.maximum(piece - whole, 0)
        tile = gl.where(piece < whole, piece, whole + part // CUT)
        start_n, start_m = tile_origin(tile, N, M, _BLOCK_N, BLOCK_M, GROUP_N)
        start_m += part % CUT * (BLOCK_M // CUT)
        first = 0 * piece
    return start_n, start_m, first, turns


@gluon.jit
def _load_pieces(
    begin, end, slot, phase, x_tiles, side_tiles, weight_tiles, x_ring, side_ring, weight_ring, ready, free, M, N, K, whole,
    WIDE: gl.constexpr, SIDE: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, TURN: gl.constexpr, STAGES: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Load the operands of this program's pieces: whole tiles or parts along K if ``WHOLE``, else parts of rows of x."""
    BOX: gl.constexpr = WIDE // CUT
    BOXES: gl.constexpr = CUT if WHOLE else 1
    for piece in range(begin, end, gl.num_programs(0)):
        start_n, start_m, first, turns = _piece(piece, whole, M, N, K, WIDE + SIDE, SPLIT, CUT, TURN)
        for step in range(TURN * first, TURN * (first + turns)):
            k = step * BLOCK_K
            arrived = ready.index(slot)
            for i in gl.static_range(GROUPS):
                mbarrier.wait(free.index(slot * GROUPS + i), phase)
            mbarrier.expect(arrived, (2 * (BOXES * BOX + SIDE) + _BLOCK_N) * BLOCK_K)
            for i in gl.static_range(GROUPS):
                place = weight_ring.index(slot * GROUPS + i)
                tma.async_copy_global_to_shared(weight_tiles, [start_n + i * ROWS, k], arrived, place)
            for i in gl.static_range(BOXES):
                tma.async_copy_global_to_shared(x_tiles, [start_m + i * BOX, k], arrived, x_ring.index(slot * CUT + i))
            if SIDE > 0:
                tma.async_copy_global_to_shared(side_tiles, [start_m + WIDE, k], arrived, side_ring.index(slot))
            slot, phase = _advance(slot, phase, STAGES)
    return slot, phase


@gluon.jit
def _load(
    x_tiles, side_tiles, weight_tiles, x_ring, side_ring, weight_ring, ready, free, M, N, K, whole, pieces,
    WIDE: gl.constexpr, SIDE: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, TURN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer warp: load operands as far ahead as the ring allows, those of the next piece during an epilogue."""
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    slot, phase = _load_pieces(
        gl.program_id(0), whole, gl.to_tensor(0), gl.to_tensor(1), x_tiles, side_tiles, weight_tiles, x_ring, side_ring, weight_ring, ready, free,
        M, N, K, whole, WIDE, SIDE, SPLIT, CUT, TURN, STAGES, True,
    )  # fmt: skip
    if CUT > 1:
        _load_pieces(
            whole + gl.program_id(0), pieces, slot, phase, x_tiles, side_tiles, weight_tiles, x_ring, side_ring, weight_ring, ready, free,
            M, N, K, whole, WIDE, SIDE, SPLIT, CUT, TURN, STAGES, False,
        )  # fmt: skip


@gluon.jit
def _waited(total, beside, LATER: gl.constexpr, SIDE: gl.constexpr):
    """Both accumulators, once products of at most ``LATER`` later steps are in flight."""
    if SIDE > 0:
        total, beside = warpgroup_mma_wait(2 * LATER, deps=[total, beside])
    else:
        total = warpgroup_mma_wait(LATER, deps=[total])
    return total, beside


@gluon.jit
def _scales(scale_ptr, start_n, N, LAYOUT: gl.constexpr):
    """Scales of a warpgroup's rows of weights."""
    n = start_n + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))
    return gl.load(scale_ptr + n, mask=n < N, other=0.0)


@gluon.jit
def _write(total, scale, buffer):
    """Write the transpose of a warpgroup's sums, scaled, to its ``buffer``."""
    buffer.permute([1, 0]).store((total * scale[:, None]).to(buffer.dtype))


@gluon.jit
def _multiply_pieces(
    WHICH: gl.constexpr, begin, end, slot, phase, y_tiles, y_side_tiles, parts_ptr, scale_ptr, x_ring, side_ring, weight_ring,
    y_buffers, side_buffers, ready, free, M, N, K, whole,
    WIDE: gl.constexpr, SIDE: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, TURN: gl.constexpr, STAGES: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Multiply this warpgroup's rows of this program's pieces. Weights are converted during the previous step's products."""
    BOX: gl.constexpr = WIDE // CUT
    BOXES: gl.constexpr = CUT if WHOLE else 1
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BOXES * BOX, 16])
    SIDES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE if SIDE > 0 else 8, 16])
    CONVERTED: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    PAIRS: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 1)
    PAIR_TILE: gl.constexpr = gl.NVMMASharedLayout(BLOCK_K, 16)
    weight_ring = weight_ring._reinterpret(gl.int16, [STAGES * GROUPS, ROWS, BLOCK_K // 2], PAIR_TILE)
    tiles = x_ring._reinterpret(x_ring.dtype, [STAGES * (CUT // BOXES), BOXES * BOX, BLOCK_K], x_ring.layout)
    buffers = y_buffers._reinterpret(x_ring.dtype, [GROUPS * (CUT // BOXES), BOXES * BOX, ROWS], y_buffers.layout)
    for piece in range(begin, end, gl.num_programs(0)):
        start_n, start_m, _, turns = _piece(piece, whole, M, N, K, WIDE + SIDE, SPLIT, CUT, TURN)
        start_n += WHICH * ROWS
        if SPLIT == 1:
            scale = _scales(scale_ptr, start_n, N, LAYOUT)
            side_scale = _scales(scale_ptr, start_n, N, SIDES)
        total = gl.zeros([ROWS, BOXES * BOX], gl.float32, LAYOUT)
        beside = gl.zeros([ROWS, SIDE if SIDE > 0 else 8], gl.float32, SIDES)
        for _ in range(turns):
            used = slot
            for step in gl.static_range(TURN):
                mbarrier.wait(ready.index(slot), phase)
                weight = converted(weight_ring.index(slot * GROUPS + WHICH).load(PAIRS), x_ring.dtype, CONVERTED)
                x = tiles.index(slot * (CUT // BOXES)).permute([1, 0])
                total = warpgroup_mma(weight, x, total, is_async=True)
                if SIDE > 0:
                    weight = gl.convert_layout(weight, gl.DotOperandLayout(0, SIDES, 2), assert_trivial=True)
                    x = side_ring.index(slot).permute([1, 0])
                    beside = warpgroup_mma(weight, x, beside, is_async=True)
                if step > 0:
                    total, beside = _waited(total, beside, 1, SIDE)
                    mbarrier.arrive(free.index(used * GROUPS + WHICH), count=1)
                used = slot
                slot, phase = _advance(slot, phase, STAGES)
            total, beside = _waited(total, beside, 0, SIDE)
            mbarrier.arrive(free.index(used * GROUPS + WHICH), count=1)
        if SPLIT == 1:
            # Wait until the previous tile has left the buffers. TMA clips at the edges.
            tma.store_wait(0)
            _write(total, scale, buffers.index(WHICH * (CUT // BOXES)))
            if SIDE > 0:
                _write(beside, side_scale, side_buffers.index(WHICH))
            fence_async_shared()
            for i in gl.static_range(BOXES):
                tma.async_copy_shared_to_global(y_tiles, [start_m + i * BOX, start_n], y_buffers.index(WHICH * CUT + i))
            if SIDE > 0:
                tma.async_copy_shared_to_global(y_side_tiles, [start_m + WIDE, start_n], side_buffers.index(WHICH))
        else:
            row = (piece % SPLIT * M + start_m).to(gl.int64)
            store_part(total, parts_ptr + row * N + start_n, N, M - start_m, N - start_n)
    return slot, phase


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, y_tiles, y_side_tiles, parts_ptr, scale_ptr, x_ring, side_ring, weight_ring, y_buffers, side_buffers, ready, free, M, N, K, whole, pieces,
    WIDE: gl.constexpr, SIDE: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, TURN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its 64 rows of weights of this program's pieces, whole tiles first."""
    if WHICH == 1:
        # Wait for the first warpgroup's first use of that stage. Its second use cannot come before this one's first.
        mbarrier.wait(free.index((_LAG - 1) * GROUPS), 0)
    slot, phase = _multiply_pieces(
        WHICH, gl.program_id(0), whole, gl.to_tensor(0), gl.to_tensor(0), y_tiles, y_side_tiles, parts_ptr, scale_ptr, x_ring, side_ring, weight_ring,
        y_buffers, side_buffers, ready, free, M, N, K, whole, WIDE, SIDE, SPLIT, CUT, TURN, STAGES, True,
    )  # fmt: skip
    if CUT > 1:
        _multiply_pieces(
            WHICH, whole + gl.program_id(0), pieces, slot, phase, y_tiles, y_side_tiles, parts_ptr, scale_ptr, x_ring, side_ring, weight_ring,
            y_buffers, side_buffers, ready, free, M, N, K, whole, WIDE, SIDE, SPLIT, CUT, TURN, STAGES, False,
        )  # fmt: skip
    if SPLIT == 1:
        tma.store_wait(0)


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "whole", "pieces"])
def w8a16_matmul_hopper_kernel(
    x_tiles, side_tiles, weight_tiles, y_tiles, y_side_tiles, parts_ptr, scale_ptr, M, N, K, whole, pieces,
    WIDE: gl.constexpr, SIDE: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, TURN: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute pieces ``program, program + programs, ...`` of tiles of WIDE + SIDE rows of x and 128 of weights, 64 per warpgroup.

    A tile has ``SPLIT`` parts along K; several go to ``parts`` (SPLIT, M, N) in fp32, not scaled. With one part, tiles after
    the ``whole`` ones are cut into ``CUT`` parts of their rows of x. Descriptors have tiles of WIDE / CUT x 64 for x and y, SIDE x
    64 for their side, if any, and 64x64 for weights. A tile with a side has one part. Launch with 4 warps.
    """
    if SPLIT > 1:
        # Programmatic dependent launch: the kernel that adds up the parts may start and wait for them.
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )
    x_ring = gl.allocate_shared_memory(x_tiles.dtype, [STAGES * CUT, WIDE // CUT, BLOCK_K], x_tiles.layout)
    y_buffers = gl.allocate_shared_memory(x_tiles.dtype, [GROUPS * CUT, WIDE // CUT, ROWS], x_tiles.layout)
    side_ring = x_ring
    side_buffers = y_buffers
    if SIDE > 0:
        side_ring = gl.allocate_shared_memory(x_tiles.dtype, [STAGES, SIDE, BLOCK_K], side_tiles.layout)
        side_buffers = gl.allocate_shared_memory(x_tiles.dtype, [GROUPS, SIDE, ROWS], side_tiles.layout)
    weight_ring = gl.allocate_shared_memory(gl.int8, [STAGES * GROUPS, ROWS, BLOCK_K], weight_tiles.layout)
    # ``ready``: a stage has arrived. ``free``: a warpgroup has used it.
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES * GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(STAGES * GROUPS):
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (0, y_tiles, y_side_tiles, parts_ptr, scale_ptr, x_ring, side_ring, weight_ring, y_buffers, side_buffers, ready, free, M, N, K, whole,
                         pieces, WIDE, SIDE, SPLIT, CUT, TURN, STAGES)),
            (_multiply, (1, y_tiles, y_side_tiles, parts_ptr, scale_ptr, x_ring, side_ring, weight_ring, y_buffers, side_buffers, ready, free, M, N, K, whole,
                         pieces, WIDE, SIDE, SPLIT, CUT, TURN, STAGES)),
            (_load, (x_tiles, side_tiles, weight_tiles, x_ring, side_ring, weight_ring, ready, free, M, N, K, whole, pieces, WIDE, SIDE, SPLIT, CUT,
                     TURN, STAGES)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip


#: Rows of x in the largest tile: the largest N of a wgmma instruction, for the most uses of a converted weight.
_MOST = 256
#: Rows of x in tiles that take two instructions.
_FEWER, _BETWEEN = 80, 192
#: Steps of a turn, an unrolled part of the loop: weights of one step are converted during the products of the one before. ptxas
#: keeps no wgmma in flight across a loop's back edge, so the last products of a turn are waited for. K is split at whole turns.
_TURN = 4


@dataclass(frozen=True)
class Tiling:
    """A tile of ``block_m`` rows of x, with ``split`` parts along K or, in the last wave, ``cut`` parts of its rows.

    Rows beyond a power of two are the tile's side, with an accumulator of their own.
    """

    block_m: int
    split: int = 1
    cut: int = 1

    @property
    def wide(self) -> int:
        return 1 << self.block_m.bit_length() - 1

    @property
    def turn(self) -> int:
        return 2 if self.block_m == _BETWEEN else _TURN

    @property
    def stages(self) -> int:
        """Stages of the ring of operands: as many as shared memory holds, at most eight."""
        return {_BETWEEN: 5, _MOST: 4}.get(self.block_m, 8)


#: Up to this many rows smaller tiles are used.
_FEW = 32
#: Seconds of a step along K by a tile's rows of x; of a launch besides its steps, of the launch that adds up parts, and per byte of
#: parts. Fitted to 44 timings of 9 sizes (H200, 2026-11-26, torch 2.11, triton 3.6, cold L2). Where parts were estimated to gain
#: little they lost: 320x4096x4096 takes 34.4 us whole, 43.1 in two parts (2026-11-27).
_STEP = {64: 0.30e-6, _FEWER: 0.37e-6, 128: 0.40e-6, _BETWEEN: 0.56e-6, _MOST: 0.61e-6}
_LAUNCH, _ADDING, _PART_BYTE = 7.6e-6, 2e-6, 0.45e-12


def _time(m: int, n: int, k: int, programs: int, chosen: Tiling) -> float:
    """Estimated seconds: waves of tiles, and the cost of adding up parts."""
    tiles = _tiles_of(m, n, chosen.block_m)
    rounds = tiles // programs if chosen.cut > 1 else cdiv(tiles * chosen.split, programs)
    last = _STEP[chosen.block_m // chosen.cut] if chosen.cut > 1 else 0.0
    steps = cdiv(cdiv(k, _TURN * BLOCK_K.value), chosen.split) * _TURN
    adding = _ADDING + 4 * chosen.split * m * n * _PART_BYTE if chosen.split > 1 else 0.0
    return _LAUNCH + steps * (rounds * _STEP[chosen.block_m] + last) + adding


@functools.lru_cache(maxsize=4096)
def tiling(m: int, n: int, k: int, programs: int) -> Tiling | None:
    """The tiling with the least estimated time. None where more than half of the SMs would idle."""
    candidates = [
        Tiling(block_m, _whole_parts(k, split))
        for block_m in _STEP
        for split in range(1, 9)
        if split == 1 or (block_m not in (_FEWER, _BETWEEN) and _tiles_of(m, n, block_m) * split <= programs)
    ]
    candidates += [
        Tiling(block_m, 1, 2)
        for block_m in (128, _MOST)
        if _tiles_of(m, n, block_m) > programs and 0 < 2 * (_tiles_of(m, n, block_m) % programs) <= programs
    ]
    best = min(candidates, key=functools.partial(_time, m, n, k, programs))
    return best if 2 * _tiles_of(m, n, best.block_m) * best.split >= programs else None


def _whole_parts(k: int, split: int) -> int:
    """``split`` reduced so that every part has a turn: in a part without one the second warpgroup would wait forever."""
    turns = cdiv(k, _TURN * BLOCK_K.value)
    return cdiv(turns, cdiv(turns, split))


def _tiles_of(m: int, n: int, block_m: int) -> int:
    return cdiv(m, block_m) * cdiv(n, _BLOCK_N.value)


def plan(x: torch.Tensor, weight: torch.Tensor) -> Tiling | None:
    """The tiling for ``x`` (M, K) and ``weight`` (N, K); None where this kernel does not serve them or is slower."""
    (m, k), n = x.shape, weight.shape[0]
    if capability(x) != 90 or x.element_size() != 2 or m <= _FEW or 0 in (n, k) or not tma_serves(x, weight, x):
        return None
    return tiling(m, n, k, multiprocessors(x))


def write_product(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, chosen: Tiling) -> None:
    """Write the product of operands that ``plan`` accepts to contiguous ``y``, through aligned rows if its own are not."""
    (m, n), k, programs, cut = y.shape, x.shape[1], multiprocessors(x), chosen.cut
    split = _whole_parts(k, chosen.split)
    parts = torch.empty((split, m, n), dtype=torch.float32, device=x.device) if split > 1 else None
    depth = BLOCK_K.value
    out = y if split > 1 or is_aligned(y) else room(y)
    tiles = _tiles_of(m, n, chosen.block_m) * split
    whole = tiles // programs * programs if cut > 1 else tiles
    pieces, box, side = whole + (tiles - whole) * cut, chosen.wide // cut, chosen.block_m - chosen.wide

    def stored(rows: int) -> TensorDescriptor | None:
        return gluon_tiles(out, rows, ROWS.value) if split == 1 and rows else None

    launch(
        w8a16_matmul_hopper_kernel, (min(pieces, programs),),
        gluon_tiles(x, box, depth), gluon_tiles(x, side, depth) if side else None, gluon_tiles(weight, ROWS.value, depth),
        stored(box), stored(side), parts, scale, m, n, k, whole, pieces,
        WIDE=chosen.wide, SIDE=side, SPLIT=split, CUT=cut, TURN=chosen.turn, STAGES=chosen.stages, num_warps=4,
    )  # fmt: skip
    if parts is not None:
        add_parts(y, parts, scale)
    if out is not y:
        copy_rows(y, out)
