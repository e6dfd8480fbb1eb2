"""Large 16-bit matrix products on Hopper by pairs of SMs: a pair's tiles lie side by side, and what both need is loaded once.

L2 delivers operands more slowly than tensor cores multiply them where rows do not start at memory sectors, and no tile that fits
an SM needs fewer. A pair is a cluster of two programs. Each loads half of what they share, and TMA writes it to both (multicast).
Both have the same pieces with as many steps, so that neither waits for loads or arrivals of the other that never come: a tile
beyond the edge is multiplied too, of zeros, and TMA stores none of it.

Otherwise this is ``matmul_hopper`` without cut tiles: persistent, one warp loads and two or three warpgroups multiply. Tiles can
be split along K, for results that are too small for all SMs, or those of a last wave that would leave most SMs without a tile.
Parts are added up by a second launch, in the order of K.

In bf16 on an H200 (2026-11-27, torch 2.11, triton 3.6, cold L2; without pairs, cuBLAS): 2048x1000x2048 20.0 us (23.4, 17.1),
1800x1800x1800 28.5 (33.3, 25.4), 10000x1000x1000 44.5 (49.8, 36.3), 2200x3400x1704 46.7 (56.8, 41.8), 3000x3000x3000 83.4 (97.4,
79.1), 4008x4008x4008 191.9 (216.8, 194.3), 4096x4104x4096 186.4 (211.6, 184.2), 1000x1000x10000 in 4 parts with a column-major
42.0 (78.9, 47.1), with b column-major, so that rows start at sectors, 37.3 (49.9, 35.9; spans of kernels, driver 580.159, as the
next two), 5000x1000x5000 with a last wave in 4 parts 79.5 (86.8, 68.4), 256x1000x10000 in 6 parts 18.2 (20.6 as parts were added up
before, 18.0). Where rows start at sectors it is slower: 512x4096x4096 29.1 (27.9, 27.1), 8192x8192x8192 1552 (1468, 1418).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.hopper_pipeline import advance
from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products import hopper_pairs as pairs
from tilescope_kernels.matrix_products import matmul_hopper, matmul_hopper_tilings
from tilescope_kernels.matrix_products.aligned_rows import aligned, columns, is_aligned
from tilescope_kernels.matrix_products.hopper_pairs import load_code
from tilescope_kernels.matrix_products.hopper_store import PART, halves
from tilescope_kernels.matrix_products.matmul_pairs_tilings import Pairs, few_tiles, many_tiles
from tilescope_kernels.matrix_products.matmul_tilings import BLOCK_K, Product

_STEP = gl.constexpr(BLOCK_K)
#: Bytes of a row of a step, and of 64 of them.
_LINE, _BOX = gl.constexpr(2 * BLOCK_K), gl.constexpr(64 * 2 * BLOCK_K)
#: Rows of a group of tiles that are visited together, so that their operands stay in L2.
_TOGETHER = gl.constexpr(2048)
#: Registers per thread of two and of three multiplying warpgroups, and of the warps beside either.
_OF_TWO, _OF_THREE, _BESIDE_TWO, _BESIDE_THREE = (
    gl.constexpr(232),
    gl.constexpr(160),
    gl.constexpr(40),
    gl.constexpr(32),
)
#: Rows of a program that adds up parts.
_ROWS = 8


#: Of a, b and the side columns of b: a load for this program, and for both.
_A, _B, _SIDE = (load_code("matmul_pairs_kernel", each, False) for each in range(3))
_A_SHARED, _B_SHARED, _SIDE_SHARED = (load_code("matmul_pairs_kernel", each, True) for each in range(3))


@gluon.jit
def _span(piece, whole, splits, K):
    """Tile of a piece, and where along K it begins and ends: one of the ``whole`` tiles, or one of ``splits`` parts of a later tile."""
    part = gl.maximum(piece - whole, 0)
    each = gl.cdiv(gl.cdiv(K, _STEP), splits) * _STEP
    first = part % splits * each
    tile = gl.where(piece < whole, piece, whole + part // splits)
    # Of a whole tile `part` and `first` are 0.
    return tile, first, gl.where(piece < whole, K, gl.minimum(first + each, K))


@gluon.jit
def _place(tile, rank, M, N, ROWS: gl.constexpr, COLUMNS: gl.constexpr, STACKED: gl.constexpr):
    """First row and column of this program's tile of a pair's two."""
    DOWN: gl.constexpr = 2 * ROWS if STACKED else ROWS
    ACROSS: gl.constexpr = COLUMNS if STACKED else 2 * COLUMNS
    start_m, start_n = tile_origin(tile, M, N, DOWN, ACROSS, _TOGETHER // DOWN)
    if STACKED:
        start_m += rank * ROWS
    else:
        start_n += rank * COLUMNS
    return start_m, start_n


@gluon.jit
def _fetch(
    ALONE: gl.constexpr, SHARED: gl.constexpr, ring, across, k, arrived, rank, HALVED: gl.constexpr, EXTENT: gl.constexpr, ALONG_K: gl.constexpr,
):  # fmt: skip
    """Load ``EXTENT`` rows of a or columns of b of a step to address ``ring``; if ``HALVED``, this program's half, to both programs.

    ``ALONG_K``: the matrix is contiguous along K, as its boxes are. Others are ``EXTENT / 64`` boxes beside each other.
    """
    CODE: gl.constexpr = SHARED if HALVED else ALONE
    PARTS: gl.constexpr = 2 if HALVED else 1
    part = rank if HALVED else gl.to_tensor(0)
    if ALONG_K:
        HALF: gl.constexpr = EXTENT // PARTS
        pairs.load(CODE, ring + part * (HALF * _LINE), k, across + part * HALF, arrived)
    else:
        DEEP: gl.constexpr = _STEP // PARTS
        for i in gl.static_range(EXTENT // 64):
            pairs.load(CODE, ring + i * _BOX + part * (DEEP * _LINE), across + i * 64, k + part * DEEP, arrived)


@gluon.jit
def _load(
    barriers, M, N, K, whole, pieces, splits, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr,
    SIDE: gl.constexpr, STAGES: gl.constexpr, STACKED: gl.constexpr, BARRIERS: gl.constexpr,
):  # fmt: skip
    """Producer warp: load operands as far ahead as the rings of both programs allow, those of the next piece during an epilogue."""
    pairs.meet()
    rank = pairs.rank()
    b_ring = pairs.shared_memory()
    a_ring = b_ring + STAGES * WIDE * _LINE
    side_ring = a_ring + STAGES * GROUPS * ROWS * _LINE
    ready = b_ring + BARRIERS * 8
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    slot, phase = gl.to_tensor(0), gl.to_tensor(1)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        tile, first, end = _span(piece, whole, splits, K)
        start_m, start_n = _place(tile, rank, M, N, GROUPS * ROWS, WIDE + SIDE, STACKED)
        for k in range(first, end, _STEP):
            for i in gl.static_range(GROUPS):
                mbarrier.wait(barriers.index(BARRIERS + STAGES + slot * GROUPS + i), phase)
            mbarrier.expect(barriers.index(BARRIERS + slot), (GROUPS * ROWS + WIDE + SIDE) * _LINE)
            arrived = ready + slot * 8
            for i in gl.static_range(GROUPS):
                _fetch(
                    _A, _A_SHARED, a_ring + (slot * GROUPS + i) * (ROWS * _LINE), start_m + i * ROWS, k, arrived, rank,
                    not STACKED, ROWS, not A_COLUMNS,
                )  # fmt: skip
            _fetch(_B, _B_SHARED, b_ring + slot * (WIDE * _LINE), start_n, k, arrived, rank, STACKED, WIDE, B_COLUMNS)
            if SIDE > 0:
                _fetch(
                    _SIDE, _SIDE_SHARED, side_ring + slot * (SIDE * _LINE), start_n + WIDE, k, arrived, rank, STACKED, SIDE, B_COLUMNS
                )  # fmt: skip
            slot, phase = advance(slot, phase, STAGES)
    # The other program may still arrive at this one's mbarriers.
    pairs.meet()


@gluon.jit
def _ring(rings, tiles, EXTENT: gl.constexpr, ALONG_K: gl.constexpr):
    """Shared memory from its start as ``tiles`` tiles of ``EXTENT`` x 64 elements."""
    if ALONG_K:
        return rings._reinterpret(rings.dtype, [tiles, EXTENT, _STEP], pairs.SHARED)
    else:
        return rings._reinterpret(rings.dtype, [tiles, _STEP, EXTENT], pairs.SHARED)


@gluon.jit
def _tile(ring, index, TURNED: gl.constexpr):
    return ring.index(index).permute([1, 0]) if TURNED else ring.index(index)


@gluon.jit
def _store(x, c_tiles, buffers, turn, start_m, start_n, WHICH: gl.constexpr, BUFFERS: gl.constexpr):
    """Write a matrix in parts through this warpgroup's buffers in turn. Returns the index of the next buffer."""
    if x.shape[0] > PART:
        upper, lower = halves(x, True)
        turn = _store(upper, c_tiles, buffers, turn, start_m, start_n, WHICH, BUFFERS)
        turn = _store(lower, c_tiles, buffers, turn, start_m + x.shape[0] // 2, start_n, WHICH, BUFFERS)
    elif x.shape[1] > buffers.shape[2]:
        left, right = halves(x, False)
        turn = _store(left, c_tiles, buffers, turn, start_m, start_n, WHICH, BUFFERS)
        turn = _store(right, c_tiles, buffers, turn, start_m, start_n + x.shape[1] // 2, WHICH, BUFFERS)
    else:
        LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, x.shape[1], 16], [[0, 0]])
        buffer = buffers.index(turn)
        # Wait until the buffer has been stored. TMA clips at the edges.
        tma.store_wait(BUFFERS - 1)
        buffer.store(gl.convert_layout(x, LAYOUT))
        fence_async_shared()
        tma.async_copy_shared_to_global(c_tiles, [start_m, start_n], buffer)
        turn = gl.where(turn + 1 == (WHICH + 1) * BUFFERS, WHICH * BUFFERS, turn + 1)
    return turn


@gluon.jit
def _write(
    x, c_tiles, part_tiles, buffers, turn, start_m, start_n, part, row, column: gl.constexpr, WHICH: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    """Write a matrix to c, or if it is a ``part`` of sums to ``part_tiles`` from ``row`` and ``column`` on."""
    if part_tiles is None:
        turn = _store(x.to(c_tiles.dtype), c_tiles, buffers, turn, start_m, start_n, WHICH, BUFFERS)
    elif part:
        sums = buffers._reinterpret(gl.float32, [buffers.shape[0], PART, PART // 2], pairs.SHARED_WIDE)
        turn = _store(x, part_tiles, sums, turn, row, gl.to_tensor(column), WHICH, BUFFERS)
    else:
        turn = _store(x.to(c_tiles.dtype), c_tiles, buffers, turn, start_m, start_n, WHICH, BUFFERS)
    return turn


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_tiles, part_tiles, rings, buffers, barriers, M, N, K, whole, pieces, splits, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, SIDE: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
    STACKED: gl.constexpr, BARRIERS: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its rows of this program's tiles."""
    pairs.meet()
    rank = pairs.rank()
    free = pairs.shared_memory() + (BARRIERS + STAGES) * 8
    A_FIRST: gl.constexpr = STAGES * WIDE // ROWS
    SIDE_FIRST: gl.constexpr = STAGES * (WIDE + GROUPS * ROWS) // SIDE if SIDE > 0 else 0
    a_ring = _ring(rings, A_FIRST + STAGES * GROUPS, ROWS, not A_COLUMNS)
    b_ring = _ring(rings, STAGES, WIDE, B_COLUMNS)
    side_ring = _ring(rings, SIDE_FIRST + STAGES, SIDE, B_COLUMNS) if SIDE > 0 else b_ring
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16], [[0, 0]])
    SIDES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE if SIDE > 0 else 8, 16], [[0, 0]])
    if WHICH > 0:
        # Wait for the previous warpgroup's first use of a stage: two warpgroups are two steps apart, three are one step apart.
        LAG: gl.constexpr = 4 - GROUPS
        _, first, end = _span(gl.program_id(0), whole, splits, K)
        mbarrier.wait(
            barriers.index(BARRIERS + STAGES + (LAG - 1) * GROUPS + WHICH - 1), 0, pred=end - first > (LAG - 1) * _STEP
        )
    slot, phase, turn = gl.to_tensor(0), gl.to_tensor(0), gl.to_tensor(WHICH * BUFFERS)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        tile, first, end = _span(piece, whole, splits, K)
        total = gl.zeros([ROWS, WIDE], gl.float32, LAYOUT)
        if SIDE > 0:
            beside = gl.zeros([ROWS, SIDE], gl.float32, SIDES)
        # Not `slot`: Triton does not carry a variable from step to step that enters the loop as an alias of another.
        used = gl.to_tensor(0)
        for k in range(first, end, _STEP):
            mbarrier.wait(barriers.index(BARRIERS + slot), phase)
            a = _tile(a_ring, A_FIRST + slot * GROUPS + WHICH, A_COLUMNS)
            b = _tile(b_ring, slot, B_COLUMNS)
            total = warpgroup_mma(a, b, total, is_async=True)
            # Once only this step's products are in flight, the previous step's have ended and its stage is free.
            if SIDE > 0:
                b = _tile(side_ring, SIDE_FIRST + slot, B_COLUMNS)
                beside = warpgroup_mma(a, b, beside, is_async=True)
                total, beside = warpgroup_mma_wait(2, deps=[total, beside])
            else:
                total = warpgroup_mma_wait(1, deps=[total])
            pairs.arrive_at_both(free + (used * GROUPS + WHICH) * 8, rank, k - first)
            used = slot
            slot, phase = advance(slot, phase, STAGES)
        if SIDE > 0:
            total, beside = warpgroup_mma_wait(0, deps=[total, beside])
        else:
            total = warpgroup_mma_wait(0, deps=[total])
        pairs.arrive_at_both(free + (used * GROUPS + WHICH) * 8, rank, gl.to_tensor(1))
        start_m, start_n = _place(tile, rank, M, N, GROUPS * ROWS, WIDE + SIDE, STACKED)
        start_m += WHICH * ROWS
        part, row = piece >= whole, (((piece - whole) * 2 + rank) * GROUPS + WHICH) * ROWS
        turn = _write(total, c_tiles, part_tiles, buffers, turn, start_m, start_n, part, row, 0, WHICH, BUFFERS)
        if SIDE > 0:
            start_n += WIDE
            turn = _write(beside, c_tiles, part_tiles, buffers, turn, start_m, start_n, part, row, WIDE, WHICH, BUFFERS)
    tma.store_wait(0)
    pairs.meet()


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "whole", "pieces", "splits"])
def matmul_pairs_kernel(
    a_tiles, b_tiles, side_tiles, c_tiles, part_tiles, M, N, K, whole, pieces, splits,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, SIDE: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr, STACKED: gl.constexpr,
):  # fmt: skip
    """Compute pieces ``pair, pair + pairs, ...`` of two tiles each, ``STACKED`` one above the other or beside each other.

    A tile has ``ROWS`` rows for each of ``GROUPS`` warpgroups and ``WIDE + SIDE`` columns. The first ``whole`` pieces are whole along
    K and go to c, the others are one of ``splits`` parts and go to ``part_tiles`` in fp32: piece by piece, one tile below the other.
    ``part_tiles`` is None if there are none. Launch with 4 warps and ``num_ctas`` 2. Descriptors of a, b and the ``SIDE`` columns
    have boxes as ``_fetch`` loads them.
    """
    BARRIERS: gl.constexpr = STAGES * (WIDE + GROUPS * ROWS + SIDE) * _LINE // 8
    # The rings of b, a and the side columns, then mbarriers. It is the largest, so that it lies at the start of shared memory.
    rings = gl.allocate_shared_memory(a_tiles.dtype, [BARRIERS // 128 + 1, 8, 64], pairs.SHARED)
    buffers = gl.allocate_shared_memory(c_tiles.dtype, [GROUPS * BUFFERS, PART, PART], pairs.SHARED)
    # First those of stages that have arrived, then those of stages that a warpgroup of each program has used: 4 warps each.
    barriers = rings._reinterpret(gl.int64, [BARRIERS + STAGES * (GROUPS + 1), 1], pairs.BARRIERS)
    for i in gl.static_range(STAGES):
        mbarrier.init(barriers.index(BARRIERS + i), count=1)
    for i in gl.static_range(STAGES * GROUPS):
        mbarrier.init(barriers.index(BARRIERS + STAGES + i), count=8)
    fence_async_shared()
    pairs.publish_barriers()
    # Written out, because constants in a tuple that a variable holds are no longer constexpr. Idle warps fill the loading warp's
    # warpgroup, as Triton would: a meeting needs every warp that there is.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (0, c_tiles, part_tiles, rings, buffers, barriers, M, N, K, whole, pieces, splits, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE,
                             STAGES, BUFFERS, STACKED, BARRIERS)),
                (_multiply, (1, c_tiles, part_tiles, rings, buffers, barriers, M, N, K, whole, pieces, splits, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE,
                             STAGES, BUFFERS, STACKED, BARRIERS)),
                (_load, (barriers, M, N, K, whole, pieces, splits, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, STAGES, STACKED, BARRIERS)),
                (pairs.idle, ()), (pairs.idle, ()),
            ],
            [4, 1, 1, 2],
            [_OF_TWO, _BESIDE_TWO, _BESIDE_TWO, _BESIDE_TWO],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (0, c_tiles, part_tiles, rings, buffers, barriers, M, N, K, whole, pieces, splits, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE,
                             STAGES, BUFFERS, STACKED, BARRIERS)),
                (_multiply, (1, c_tiles, part_tiles, rings, buffers, barriers, M, N, K, whole, pieces, splits, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE,
                             STAGES, BUFFERS, STACKED, BARRIERS)),
                (_multiply, (2, c_tiles, part_tiles, rings, buffers, barriers, M, N, K, whole, pieces, splits, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE,
                             STAGES, BUFFERS, STACKED, BARRIERS)),
                (_load, (barriers, M, N, K, whole, pieces, splits, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, STAGES, STACKED, BARRIERS)),
                (pairs.idle, ()), (pairs.idle, ()),
            ],
            [4, 4, 1, 1, 2],
            [_OF_THREE, _OF_THREE, _BESIDE_THREE, _BESIDE_THREE, _BESIDE_THREE],
        )  # fmt: skip


@triton.jit
def add_splits_kernel(
    c_ptr, parts_ptr, M, N, stride_c, whole, TILE_M: tl.constexpr, TILE_N: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    SPLITS: tl.constexpr, STACKED: tl.constexpr,
):  # fmt: skip
    """Add up the ``SPLITS`` parts of ROWS rows of a TILE_M x TILE_N tile per program, in a fixed order.

    Pairs of tiles come from ``whole`` on. ``COLUMNS``: TILE_N rounded up to a power of two.
    """
    gdc_wait()
    # Rounding shows the compiler that rows of c are 16-byte aligned.
    stride_c = stride_c // 8 * 8
    N = N // 8 * 8
    DOWN: tl.constexpr = 2 * TILE_M if STACKED else TILE_M
    ACROSS: tl.constexpr = TILE_N if STACKED else 2 * TILE_N
    tile = tl.program_id(0) // (TILE_M // ROWS)
    row = tl.program_id(0) % (TILE_M // ROWS) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    start_m, start_n = tile_origin(whole + tile // 2, M, N, DOWN, ACROSS, 2048 // DOWN)
    m = start_m + row + (tile % 2 * TILE_M if STACKED else 0)
    n = start_n + column + (0 if STACKED else tile % 2 * TILE_N)
    mask = (m < M) & (n < N) & (column < TILE_N)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for part in tl.static_range(SPLITS):
        place = ((tile // 2 * SPLITS + part) * 2 + tile % 2) * TILE_M + row
        total += tl.load(parts_ptr + place.to(tl.int64) * TILE_N + column, mask=mask, other=0.0)
    tl.store(c_ptr + m.to(tl.int64) * stride_c + n, total.to(c_ptr.dtype.element_ty), mask=mask)


def plan(a: torch.Tensor, b: torch.Tensor) -> Pairs | None:
    """The tiling of a product with a contiguous result; None where pairs do not serve it or others may be as quick."""
    if not pairs.serves(a, b):
        return None
    return (many_tiles if matmul_hopper.serves(a, b) else few_tiles)(Product.of(a, b))


def write_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, chosen: Pairs) -> None:
    """Write the product to 16-bit ``c`` with stride 1 along a row. Operands whose rows or columns are not 16-byte aligned are copied.

    A result that TMA cannot write has tiles of one SM.
    """
    if not is_aligned(c):
        other = matmul_hopper_tilings.tiling(Product.of(a, b), aligned_c=False)
        matmul_hopper.write_product(a, b, c, other)
        return
    (m, k), n = a.shape, b.shape[1]
    a, b = aligned(a, b)
    a_columns, b_columns, stacked = columns(a), columns(b), chosen.stacked
    steps = cdiv(k, BLOCK_K)
    # No part is empty.
    splits = cdiv(steps, cdiv(steps, chosen.splits))
    rows, width, (down, across) = chosen.height, chosen.width, chosen.extents
    tiles, programs = cdiv(m, down) * cdiv(n, across), multiprocessors(a) // 2
    whole = tiles if splits == 1 else tiles // programs * programs if chosen.tail else 0
    others = tiles - whole
    pieces = whole + others * splits
    parts = torch.empty((others * splits * 2 * rows, width), dtype=torch.float32, device=c.device) if others else None
    if a_columns:
        a_tiles = gluon_tiles(a, PART.value, BLOCK_K if stacked else BLOCK_K // 2, True, pairs.SHARED.value)
    else:
        a_tiles = gluon_tiles(a, chosen.rows if stacked else chosen.rows // 2, BLOCK_K, False, pairs.SHARED.value)

    def of_b(extent: int) -> object:
        if b_columns:
            return gluon_tiles(b, BLOCK_K, extent // 2 if stacked else extent, True, pairs.SHARED.value)
        return gluon_tiles(b, BLOCK_K // 2 if stacked else BLOCK_K, PART.value, False, pairs.SHARED.value)

    # Parts are in fp32: 32 columns are 128 bytes.
    half = PART.value // 2
    launch(
        matmul_pairs_kernel, (min(pieces, programs),),
        a_tiles, of_b(chosen.wide), of_b(chosen.side) if chosen.side else None,
        gluon_tiles(c, PART.value, PART.value, False, pairs.SHARED.value),
        None if parts is None else gluon_tiles(parts, PART.value, half, False, pairs.SHARED_WIDE.value), m, n, k, whole, pieces, splits,
        A_COLUMNS=a_columns, B_COLUMNS=b_columns, GROUPS=chosen.groups, ROWS=chosen.rows, WIDE=chosen.wide, SIDE=chosen.side,
        STAGES=chosen.stages, BUFFERS=chosen.buffers, STACKED=stacked, num_warps=4, num_ctas=2,
    )  # fmt: skip
    if parts is not None:
        launch(
            add_splits_kernel, (others * 2 * (rows // _ROWS),), c, parts, m, n, c.stride(0), whole, TILE_M=rows, TILE_N=width, ROWS=_ROWS,
            COLUMNS=triton.next_power_of_2(width), SPLITS=splits, STACKED=stacked, num_warps=4, launch_pdl=True,
        )  # fmt: skip
