"""Large 16-bit and FP8 matrix products on Hopper, persistent and warp-specialized: one warp loads, two or three warpgroups multiply.

Each warpgroup has its share of a tile's rows, and runs steps behind the one before, so that one keeps the tensor cores busy
during the other's epilogue. Tiles of a partial last wave may be cut in rows or columns, in the same launch.
Written in Gluon, because Triton's language cannot assign work to warps.

Rows that do not start at 32-byte sectors load slowly, through TMA and more so through cp.async. Large tiles load least, so three
warpgroups and copies of operands pay there. Pairs of SMs (``matmul_pairs``) are faster for most such products.
"""

from __future__ import annotations

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

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors
from tilescope_kernels._shared.plans import Write
from tilescope_kernels._shared.tile_order import kind, tile_origin
from tilescope_kernels.matrix_products.aligned_rows import SECTOR, aligned, columns, is_aligned, rooms
from tilescope_kernels.matrix_products.hopper_store import PART, advance, store_parts
from tilescope_kernels.matrix_products.matmul_tilings import BLOCK_K, Alone

#: A step along K, in bytes.
_STEP = gl.constexpr(2 * BLOCK_K)
#: Rows of a group of tiles that are visited together, so that their operands stay in L2.
_TOGETHER = gl.constexpr(2048)
#: Registers per thread of two and of three multiplying warpgroups, and of the loading warp.
_OF_TWO, _OF_THREE, _LOADING = gl.constexpr(232), gl.constexpr(160), gl.constexpr(24)


@gluon.jit
def _piece(
    piece, whole, M, N, ROWS: gl.constexpr, COLUMNS: gl.constexpr, CUT_ROWS: gl.constexpr, CUT_COLUMNS: gl.constexpr,
):  # fmt: skip
    """First row and column of a piece: one of the ``whole`` tiles, or a part of a later tile."""
    CUT: gl.constexpr = CUT_ROWS * CUT_COLUMNS
    GROUP_M: gl.constexpr = _TOGETHER // ROWS
    if CUT == 1:
        start_m, start_n = tile_origin(piece, M, N, ROWS, COLUMNS, GROUP_M)
    else:
        part = gl.maximum(piece - whole, 0)
        tile = gl.where(piece < whole, piece, whole + part // CUT)
        start_m, start_n = tile_origin(tile, M, N, ROWS, COLUMNS, GROUP_M)
        start_m += part % CUT_ROWS * (ROWS // CUT_ROWS)
        start_n += part % CUT // CUT_ROWS * (COLUMNS // CUT_COLUMNS)
    return start_m, start_n


@gluon.jit
def _load_pieces(
    first, end, slot, phase, a_tiles, b_tiles, side_tiles, a_ring, b_ring, side_ring, ready, free, M, N, K, whole,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, SIDE: gl.constexpr,
    CUT_ROWS: gl.constexpr, CUT_COLUMNS: gl.constexpr, STAGES: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Load the operands of this program's pieces: whole tiles if ``WHOLE``, else parts."""
    BLOCK_K: gl.constexpr = _STEP * 8 // a_tiles.dtype.primitive_bitwidth
    BOX_M: gl.constexpr = ROWS // CUT_ROWS
    BOX_N: gl.constexpr = WIDE // CUT_COLUMNS
    BOXES_M: gl.constexpr = CUT_ROWS if WHOLE else 1
    BOXES_N: gl.constexpr = CUT_COLUMNS if WHOLE else 1
    for piece in range(first, end, gl.num_programs(0)):
        start_m, start_n = _piece(piece, whole, M, N, GROUPS * ROWS, WIDE + SIDE, CUT_ROWS, CUT_COLUMNS)
        for k in range(0, K, BLOCK_K):
            arrived = ready.index(slot)
            for i in gl.static_range(GROUPS):
                mbarrier.wait(free.index(slot * GROUPS + i), phase)
            mbarrier.expect(arrived, (GROUPS * BOXES_M * BOX_M + BOXES_N * BOX_N + SIDE) * _STEP)
            for i in gl.static_range(GROUPS * BOXES_M):
                place = a_ring.index((slot * GROUPS + i // BOXES_M) * CUT_ROWS + i % BOXES_M)
                m = start_m + i * BOX_M
                if A_COLUMNS:
                    tma.async_copy_global_to_shared(a_tiles, [k, m], arrived, place)
                else:
                    tma.async_copy_global_to_shared(a_tiles, [m, k], arrived, place)
            for i in gl.static_range(BOXES_N):
                place = b_ring.index(slot * CUT_COLUMNS + i)
                n = start_n + i * BOX_N
                if B_COLUMNS:
                    tma.async_copy_global_to_shared(b_tiles, [n, k], arrived, place)
                else:
                    tma.async_copy_global_to_shared(b_tiles, [k, n], arrived, place)
            if SIDE > 0:
                if B_COLUMNS:
                    tma.async_copy_global_to_shared(side_tiles, [start_n + WIDE, k], arrived, side_ring.index(slot))
                else:
                    tma.async_copy_global_to_shared(side_tiles, [k, start_n + WIDE], arrived, side_ring.index(slot))
            slot, phase = advance(slot, phase, STAGES)
    return slot, phase


@gluon.jit
def _load(
    a_tiles, b_tiles, side_tiles, a_ring, b_ring, side_ring, ready, free, M, N, K, whole, pieces,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, SIDE: gl.constexpr,
    CUT_ROWS: gl.constexpr, CUT_COLUMNS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer warp: load operands as far ahead as the ring allows, those of the next piece during an epilogue."""
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    slot, phase = _load_pieces(
        gl.program_id(0), whole, gl.to_tensor(0), gl.to_tensor(1), a_tiles, b_tiles, side_tiles, a_ring, b_ring,
        side_ring, ready, free, M, N, K, whole, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, True,
    )  # fmt: skip
    if CUT_ROWS * CUT_COLUMNS > 1:
        _load_pieces(
            whole + gl.program_id(0), pieces, slot, phase, a_tiles, b_tiles, side_tiles, a_ring, b_ring,
            side_ring, ready, free, M, N, K, whole, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, False,
        )  # fmt: skip


@gluon.jit
def _scaled(x, scale_a_ptr, scale_b_ptr, start_m, start_n, M, N, LAYOUT: gl.constexpr, SCALES: gl.constexpr):
    """Scale a tile: by a scale per operand (``SCALES`` 1), by scales per row and column (2), or not (0)."""
    if SCALES == 1:
        x *= gl.load(scale_a_ptr) * gl.load(scale_b_ptr)
    elif SCALES == 2:
        m = start_m + gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, LAYOUT))
        n = start_n + gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, LAYOUT))
        x *= gl.load(scale_a_ptr + m, mask=m < M, other=0.0)[:, None]
        x *= gl.load(scale_b_ptr + n, mask=n < N, other=0.0)[None, :]
    return x


@gluon.jit
def _multiply_pieces(
    WHICH: gl.constexpr, first, end, slot, phase, turn, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, a_ring, b_ring,
    side_ring, buffers, ready, free, M, N, K, whole, SCALES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, SIDE: gl.constexpr, CUT_ROWS: gl.constexpr, CUT_COLUMNS: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr, TMA: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Multiply this warpgroup's rows of this program's pieces: whole tiles if ``WHOLE``, else parts."""
    HIGH: gl.constexpr = ROWS if WHOLE else ROWS // CUT_ROWS
    ACROSS: gl.constexpr = WIDE if WHOLE else WIDE // CUT_COLUMNS
    A_STEP: gl.constexpr = 1 if WHOLE else CUT_ROWS
    B_STEP: gl.constexpr = 1 if WHOLE else CUT_COLUMNS
    BLOCK_K: gl.constexpr = _STEP * 8 // a_ring.dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ACROSS, BLOCK_K // 4])
    SIDES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIDE if SIDE > 0 else 8, BLOCK_K // 4])
    for piece in range(first, end, gl.num_programs(0)):
        start_m, start_n = _piece(piece, whole, M, N, GROUPS * ROWS, WIDE + SIDE, CUT_ROWS, CUT_COLUMNS)
        start_m += WHICH * HIGH
        total = gl.zeros([HIGH, ACROSS], gl.float32, LAYOUT)
        if SIDE > 0:
            beside = gl.zeros([HIGH, SIDE], gl.float32, SIDES)
        # Not `slot`: Triton does not carry a variable from step to step that enters the loop as an alias of another.
        used = gl.to_tensor(0)
        for k in range(0, K, BLOCK_K):
            mbarrier.wait(ready.index(slot), phase)
            a = a_ring.index((slot * GROUPS + WHICH) * A_STEP)
            b = b_ring.index(slot * B_STEP)
            if A_COLUMNS:
                a = a.permute([1, 0])
            if B_COLUMNS:
                b = b.permute([1, 0])
            total = warpgroup_mma(a, b, total, is_async=True)
            # Once only this step's products are in flight, the previous step's have ended and its stage is free.
            if SIDE > 0:
                b = side_ring.index(slot)
                if B_COLUMNS:
                    b = b.permute([1, 0])
                beside = warpgroup_mma(a, b, beside, is_async=True)
                total, beside = warpgroup_mma_wait(2, deps=[total, beside])
            else:
                total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(free.index(used * GROUPS + WHICH), count=1, pred=k > 0)
            used = slot
            slot, phase = advance(slot, phase, STAGES)
        if SIDE > 0:
            total, beside = warpgroup_mma_wait(0, deps=[total, beside])
        else:
            total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index(used * GROUPS + WHICH), count=1)
        dtype: gl.constexpr = c_ptr.dtype.element_ty
        total = _scaled(total, scale_a_ptr, scale_b_ptr, start_m, start_n, M, N, LAYOUT, SCALES)
        turn = store_parts(
            WHICH, total.to(dtype), c_tiles, c_ptr, stride_cm, buffers, turn, start_m, start_n, M, N, BUFFERS, TMA
        )
        if SIDE > 0:
            beside = _scaled(beside, scale_a_ptr, scale_b_ptr, start_m, start_n + WIDE, M, N, SIDES, SCALES)
            turn = store_parts(
                WHICH, beside.to(dtype), c_tiles, c_ptr, stride_cm, buffers, turn, start_m, start_n + WIDE, M, N, BUFFERS, TMA
            )  # fmt: skip
    return slot, phase, turn


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, a_ring, b_ring, side_ring, buffers, ready, free,
    M, N, K, whole, pieces, SCALES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, SIDE: gl.constexpr,
    CUT_ROWS: gl.constexpr, CUT_COLUMNS: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, TMA: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its rows of this program's pieces, whole tiles first."""
    BLOCK_K: gl.constexpr = _STEP * 8 // a_ring.dtype.primitive_bitwidth
    if WHICH > 0:
        # Two warpgroups are two steps apart: one keeps the tensor cores busy during the other's epilogue. Three are one step apart.
        LAG: gl.constexpr = 4 - GROUPS
        # Wait for the previous warpgroup's first use of that stage. Its second use cannot come before this one's first.
        mbarrier.wait(free.index((LAG - 1) * GROUPS + WHICH - 1), 0, pred=K > (LAG - 1) * BLOCK_K)
    if A_COLUMNS:
        a_tiles = a_ring._reinterpret(a_ring.dtype, [STAGES * GROUPS, BLOCK_K, ROWS], a_ring.layout)
    else:
        a_tiles = a_ring._reinterpret(a_ring.dtype, [STAGES * GROUPS, ROWS, BLOCK_K], a_ring.layout)
    if B_COLUMNS:
        b_tiles = b_ring._reinterpret(b_ring.dtype, [STAGES, WIDE, BLOCK_K], b_ring.layout)
    else:
        b_tiles = b_ring._reinterpret(b_ring.dtype, [STAGES, BLOCK_K, WIDE], b_ring.layout)
    slot, phase, turn = _multiply_pieces(
        WHICH, gl.program_id(0), whole, gl.to_tensor(0), gl.to_tensor(0), gl.to_tensor(WHICH * BUFFERS), c_tiles, c_ptr, stride_cm,
        scale_a_ptr, scale_b_ptr, a_tiles, b_tiles, side_ring, buffers, ready, free, M, N, K, whole,
        SCALES, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, BUFFERS, TMA, True,
    )  # fmt: skip
    if CUT_ROWS * CUT_COLUMNS > 1:
        _multiply_pieces(
            WHICH, whole + gl.program_id(0), pieces, slot, phase, turn, c_tiles, c_ptr, stride_cm,
            scale_a_ptr, scale_b_ptr, a_ring, b_ring, side_ring, buffers, ready, free, M, N, K, whole,
            SCALES, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, BUFFERS, TMA, False,
        )  # fmt: skip
    if TMA:
        tma.store_wait(0)


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "stride_cm", "whole", "pieces"])
def matmul_hopper_kernel(
    a_tiles, b_tiles, side_tiles, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, M, N, K, whole, pieces,
    SCALES: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, SIDE: gl.constexpr,
    CUT_ROWS: gl.constexpr, CUT_COLUMNS: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr, TMA: gl.constexpr,
):  # fmt: skip
    """Compute pieces ``program, program + programs, ...``: ``whole`` tiles, then parts of the other tiles. Launch with 4 warps.

    A tile has ``ROWS`` rows for each of ``GROUPS`` warpgroups and ``WIDE + SIDE`` columns. A cut tile has ``CUT_ROWS`` x ``CUT_COLUMNS`` parts.
    Results go to c through ``c_tiles``, or through pointers if it is None because c's rows are not aligned. Descriptors have
    tiles of 128 bytes along K: ``a_tiles`` of a warpgroup's rows of a part, ``b_tiles`` of a part's columns, ``side_tiles`` of
    the ``SIDE`` columns. ``c_tiles`` has 64x64. ``A_COLUMNS`` and ``B_COLUMNS``: the matrix and its descriptors are
    column-major. ``SCALES`` is as in ``scaled_matmul_kernel``.
    """
    BLOCK_K: gl.constexpr = _STEP * 8 // a_tiles.dtype.primitive_bitwidth
    BOX_M: gl.constexpr = ROWS // CUT_ROWS
    BOX_N: gl.constexpr = WIDE // CUT_COLUMNS
    if A_COLUMNS:
        a_ring = gl.allocate_shared_memory(a_tiles.dtype, [STAGES * GROUPS * CUT_ROWS, BLOCK_K, BOX_M], a_tiles.layout)
    else:
        a_ring = gl.allocate_shared_memory(a_tiles.dtype, [STAGES * GROUPS * CUT_ROWS, BOX_M, BLOCK_K], a_tiles.layout)
    if B_COLUMNS:
        b_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES * CUT_COLUMNS, BOX_N, BLOCK_K], b_tiles.layout)
    else:
        b_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES * CUT_COLUMNS, BLOCK_K, BOX_N], b_tiles.layout)
    side_ring = b_ring
    if SIDE > 0:
        if B_COLUMNS:
            side_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES, SIDE, BLOCK_K], side_tiles.layout)
        else:
            side_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES, BLOCK_K, SIDE], side_tiles.layout)
    buffers = gl.allocate_shared_memory(
        c_ptr.dtype.element_ty, [GROUPS * BUFFERS, PART, PART], gl.NVMMASharedLayout(128, 16)
    )
    # ``ready``: a stage has arrived. ``free``: a warpgroup has used it.
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES * GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(STAGES * GROUPS):
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    # Written out, because constants in a tuple that a variable holds are no longer constexpr.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_multiply, (0, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, a_ring, b_ring, side_ring, buffers, ready, free,
                             M, N, K, whole, pieces, SCALES, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, BUFFERS, TMA)),
                (_multiply, (1, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, a_ring, b_ring, side_ring, buffers, ready, free,
                             M, N, K, whole, pieces, SCALES, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, BUFFERS, TMA)),
                (_load, (a_tiles, b_tiles, side_tiles, a_ring, b_ring, side_ring, ready, free, M, N, K, whole, pieces,
                         A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES)),
            ],
            [4, 1],
            [_OF_TWO, _LOADING],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (0, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, a_ring, b_ring, side_ring, buffers, ready, free,
                             M, N, K, whole, pieces, SCALES, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, BUFFERS, TMA)),
                (_multiply, (1, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, a_ring, b_ring, side_ring, buffers, ready, free,
                             M, N, K, whole, pieces, SCALES, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, BUFFERS, TMA)),
                (_multiply, (2, c_tiles, c_ptr, stride_cm, scale_a_ptr, scale_b_ptr, a_ring, b_ring, side_ring, buffers, ready, free,
                             M, N, K, whole, pieces, SCALES, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES, BUFFERS, TMA)),
                (_load, (a_tiles, b_tiles, side_tiles, a_ring, b_ring, side_ring, ready, free, M, N, K, whole, pieces,
                         A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, SIDE, CUT_ROWS, CUT_COLUMNS, STAGES)),
            ],
            [4, 4, 1],
            [_OF_THREE, _OF_THREE, _LOADING],
        )  # fmt: skip


def writer(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, chosen: Alone,
    scales: tuple[torch.Tensor, torch.Tensor] | tuple[None, None] = (None, None),
) -> Write:  # fmt: skip
    """What writes products of matrices like these to 16-bit ``c`` with stride 1 along a row, times ``scales`` of operands or of rows and columns.

    Operands whose rows are not 16-byte aligned are copied.
    """
    (m, k), n, programs = a.shape, b.shape[1], multiprocessors(a)
    to = SECTOR if chosen.copies else 16
    copies = not (is_aligned(a, to) and is_aligned(b, to))
    a, b = rooms(a, b, to=to)
    a_columns, b_columns = columns(a), columns(b)
    high, wide = chosen.rows // chosen.cut_rows, chosen.wide // chosen.cut_columns
    depth = _STEP.value // a.element_size()
    tiles = cdiv(m, chosen.height) * cdiv(n, chosen.width)
    whole = tiles if chosen.cut == 1 else tiles // programs * programs
    pieces = whole + (tiles - whole) * chosen.cut
    a_tiles, b_tiles = gluon_tiles(a, high, depth, a_columns), gluon_tiles(b, depth, wide, b_columns)
    side_tiles = gluon_tiles(b, depth, chosen.side, b_columns) if chosen.side else None
    c_tiles = gluon_tiles(c, PART.value, PART.value) if is_aligned(c) else None
    grid, numbers = (min(pieces, programs),), (c.stride(0), *scales, m, n, k, whole, pieces)
    constants = {
        "SCALES": kind(scales), "A_COLUMNS": a_columns, "B_COLUMNS": b_columns, "GROUPS": chosen.groups, "ROWS": chosen.rows,
        "WIDE": chosen.wide, "SIDE": chosen.side, "CUT_ROWS": chosen.cut_rows, "CUT_COLUMNS": chosen.cut_columns,
        "STAGES": chosen.stages, "BUFFERS": chosen.buffers, "TMA": c_tiles is not None, "num_warps": 4,
    }  # fmt: skip

    def write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        a, b = aligned(a, b, to=to) if copies else (a, b)
        side, stored = side_tiles and side_tiles.of(b), c_tiles and c_tiles.of(c)
        launch(matmul_hopper_kernel, grid, a_tiles.of(a), b_tiles.of(b), side, stored, c, *numbers, **constants)

    return write
