"""Large 16-bit matrix products on Hopper by pairs of SMs: a pair's tiles lie side by side, and what both need is loaded once.

L2 delivers operands more slowly than tensor cores multiply them where rows do not start at memory sectors, and no tile that fits
an SM needs fewer. A pair is a cluster of two programs. Each loads half of what they share, and TMA writes it to both (multicast).
Both have the same pieces with as many steps, so that neither waits for loads or arrivals of the other that never come: a tile
beyond the edge is multiplied too, of zeros, and TMA stores none of it.

Otherwise this is ``matmul_hopper`` without cut tiles: persistent, one warp loads and two warpgroups multiply. Tiles have any
width that is a multiple of 16, and lie along the product or its transpose (``matmul_tilings``).

Pairs are faster where tiles of one SM fill the last wave badly: sizes of a thousand to a few thousand that are no powers of two.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.launching import cdiv, launch, multiprocessors
from tilescope_kernels._shared.plans import Form, Write
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products import hopper_pairs as pairs
from tilescope_kernels.matrix_products import hopper_wgmma as wgmma
from tilescope_kernels.matrix_products.aligned_rows import aligned, columns, is_aligned, rooms
from tilescope_kernels.matrix_products.hopper_pairs import LINE, STEP, load_code
from tilescope_kernels.matrix_products.hopper_store import advance
from tilescope_kernels.matrix_products.matmul_tilings import BLOCK_K, Pairs, Product, along_k, tiling

#: Rows of a group of tiles that are visited together, so that their operands stay in L2.
TOGETHER = gl.constexpr(2048)
#: Registers per thread of the multiplying warpgroups, and of the warps beside them.
_MULTIPLYING, _BESIDE = gl.constexpr(232), gl.constexpr(40)
#: Warpgroups that multiply.
GROUPS = gl.constexpr(2)


#: Of a and b: a load for this program, and for both.
_A, _B = (load_code("matmul_pairs_kernel", each, False) for each in range(2))
_A_SHARED, _B_SHARED = (load_code("matmul_pairs_kernel", each, True) for each in range(2))


@gluon.jit
def _place(tile, rank, M, N, ROWS: gl.constexpr, COLUMNS: gl.constexpr, STACKED: gl.constexpr):
    """First row and column of this program's tile of a pair's two."""
    DOWN: gl.constexpr = 2 * ROWS if STACKED else ROWS
    ACROSS: gl.constexpr = COLUMNS if STACKED else 2 * COLUMNS
    start_m, start_n = tile_origin(tile, M, N, DOWN, ACROSS, TOGETHER // DOWN)
    if STACKED:
        start_m += rank * ROWS
    else:
        start_n += rank * COLUMNS
    return start_m, start_n


@gluon.jit
def _load(
    barriers, M, N, K, pieces, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, ROWS: gl.constexpr,
    WIDTH: gl.constexpr, STAGES: gl.constexpr, STACKED: gl.constexpr, BARRIERS: gl.constexpr,
):  # fmt: skip
    """Producer warp: load operands as far ahead as the rings of both programs allow, those of the next piece during an epilogue."""
    LOADED: gl.constexpr = pairs.loaded(WIDTH, B_COLUMNS)
    rank = pairs.rank()
    b_ring = pairs.shared_memory()
    a_ring = b_ring + STAGES * LOADED * LINE
    ready = b_ring + BARRIERS * 8
    # Where the first piece lies is known before the programs have met, so that its loads start at once.
    start_m, start_n = _place(gl.program_id(0), rank, M, N, GROUPS * ROWS, WIDTH, STACKED)
    pairs.meet()
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    slot, phase = gl.to_tensor(0), gl.to_tensor(1)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        for k in range(0, K, STEP):
            for i in gl.static_range(GROUPS):
                mbarrier.wait(barriers.index(BARRIERS + STAGES + slot * GROUPS + i), phase)
            mbarrier.expect(barriers.index(BARRIERS + slot), (GROUPS * ROWS + LOADED) * LINE)
            arrived = ready + slot * 8
            for i in gl.static_range(GROUPS):
                pairs.fetch(
                    _A, _A_SHARED, a_ring + (slot * GROUPS + i) * (ROWS * LINE), start_m + i * ROWS, k, arrived, rank,
                    not STACKED, ROWS, not A_COLUMNS,
                )  # fmt: skip
            pairs.fetch(
                _B, _B_SHARED, b_ring + slot * (LOADED * LINE), start_n, k, arrived, rank, STACKED, LOADED, B_COLUMNS
            )
            slot, phase = advance(slot, phase, STAGES)
        # After the last piece this is the place of none, and not used.
        start_m, start_n = _place(piece + gl.num_programs(0), rank, M, N, GROUPS * ROWS, WIDTH, STACKED)
    # The other program may still arrive at this one's mbarriers.
    pairs.meet()


@gluon.jit
def _store(x, tiles, buffers, turn, start_m, start_n, WHICH: gl.constexpr, BUFFERS: gl.constexpr, TURNED: gl.constexpr):
    """Write a matrix that has the size of a box, or its transpose, through this warpgroup's next buffer. Returns the next one's index."""
    buffer = buffers.index(turn)
    # Wait until the buffer has been stored. TMA clips at the edges.
    tma.store_wait(BUFFERS - 1)
    if TURNED:
        buffer.permute([1, 0]).store(x)
    else:
        buffer.store(x)
    fence_async_shared()
    if TURNED:
        tma.async_copy_shared_to_global(tiles, [start_n, start_m], buffer)
    else:
        tma.async_copy_shared_to_global(tiles, [start_m, start_n], buffer)
    return gl.where(turn + 1 == (WHICH + 1) * BUFFERS, WHICH * BUFFERS, turn + 1)


@gluon.jit
def _write(
    sums, c_tiles, buffers, turn, start_m, start_n, WHICH: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, BUFFERS: gl.constexpr,
    TURNED: gl.constexpr,
):  # fmt: skip
    """Write sums to c. Returns the index of the next buffer."""
    PIECE: gl.constexpr = wgmma.piece(WIDTH)
    for i in gl.static_range(ROWS // 64):
        for j in gl.static_range(WIDTH // PIECE):
            x, m, n = sums[i * (WIDTH // PIECE) + j], start_m + i * 64, start_n + j * PIECE
            turn = _store(x.to(c_tiles.dtype), c_tiles, buffers, turn, m, n, WHICH, BUFFERS, TURNED)
    return turn


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_tiles, buffers, barriers, M, N, K, pieces, DTYPE: gl.constexpr, A_COLUMNS: gl.constexpr,
    B_COLUMNS: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr, BUFFERS: gl.constexpr,
    STACKED: gl.constexpr, TURNED: gl.constexpr, BARRIERS: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its rows of this program's tiles."""
    pairs.meet()
    rank = pairs.rank()
    b_ring = pairs.shared_memory()
    LOADED: gl.constexpr = pairs.loaded(WIDTH, B_COLUMNS)
    a_ring = b_ring + (STAGES * LOADED + WHICH * ROWS) * LINE
    free = b_ring + (BARRIERS + STAGES) * 8
    if WHICH > 0:
        # Wait for the previous warpgroup's first use of the second stage: the two are two steps apart.
        mbarrier.wait(barriers.index(BARRIERS + STAGES + GROUPS + WHICH - 1), 0, pred=K > STEP)
    slot, phase, turn = gl.to_tensor(0), gl.to_tensor(0), gl.to_tensor(WHICH * BUFFERS)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        sums = wgmma.zeros(ROWS, WIDTH)
        # Not `slot`: Triton does not carry a variable from step to step that enters the loop as an alias of another.
        used = gl.to_tensor(0)
        for k in range(0, K, STEP):
            mbarrier.wait(barriers.index(BARRIERS + slot), phase)
            a, b = a_ring + slot * (GROUPS * ROWS * LINE), b_ring + slot * (LOADED * LINE)
            sums = wgmma.products(sums, a, b, ROWS, WIDTH, DTYPE, A_COLUMNS, not B_COLUMNS)
            # Once only this step's products are in flight, the previous step's have ended and its stage is free.
            sums = wgmma.wait(sums, ROWS, WIDTH, 1)
            pairs.arrive_at_both(free + (used * GROUPS + WHICH) * 8, rank, k)
            used = slot
            slot, phase = advance(slot, phase, STAGES)
        sums = wgmma.wait(sums, ROWS, WIDTH, 0)
        pairs.arrive_at_both(free + (used * GROUPS + WHICH) * 8, rank, gl.to_tensor(1))
        if piece + gl.num_programs(0) >= pieces:
            # This was the last arrival at the other's mbarriers.
            pairs.come()
        start_m, start_n = _place(piece, rank, M, N, GROUPS * ROWS, WIDTH, STACKED)
        start_m += WHICH * ROWS
        turn = _write(sums, c_tiles, buffers, turn, start_m, start_n, WHICH, ROWS, WIDTH, BUFFERS, TURNED)
    tma.store_wait(0)
    pairs.wait()


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "pieces"])
def matmul_pairs_kernel(
    a_tiles, b_tiles, c_tiles, M, N, K, pieces, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr,
    STAGES: gl.constexpr, BUFFERS: gl.constexpr, STACKED: gl.constexpr, TURNED: gl.constexpr,
):  # fmt: skip
    """Compute pieces ``pair, pair + pairs, ...`` of two tiles each, ``STACKED`` one above the other or beside each other.

    A tile has ``ROWS`` rows for each of ``GROUPS`` warpgroups and ``WIDTH`` columns. ``c_tiles`` describes the transpose of c if
    ``TURNED``. Launch with 4 warps and ``num_ctas`` 2. Descriptors of a and b have boxes as ``pairs.fetch`` loads them, that of c
    boxes of 64 x ``wgmma.piece(WIDTH)``.
    """
    BARRIERS: gl.constexpr = STAGES * (pairs.loaded(WIDTH, B_COLUMNS) + GROUPS * ROWS) * LINE // 8
    DTYPE: gl.constexpr = a_tiles.dtype
    PIECE: gl.constexpr = wgmma.piece(WIDTH)
    # The rings of b and a, then mbarriers. It is the largest, so that it lies at the start of shared memory.
    rings = gl.allocate_shared_memory(DTYPE, [BARRIERS // 128 + 1, 8, 64], pairs.SHARED)
    buffers = gl.allocate_shared_memory(
        c_tiles.dtype, [GROUPS * BUFFERS, PIECE if TURNED else 64, 64 if TURNED else PIECE], c_tiles.layout
    )
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
    gl.warp_specialize(
        [
            (_multiply, (0, c_tiles, buffers, barriers, M, N, K, pieces, DTYPE, A_COLUMNS, B_COLUMNS, ROWS, WIDTH, STAGES, BUFFERS,
                         STACKED, TURNED, BARRIERS)),
            (_multiply, (1, c_tiles, buffers, barriers, M, N, K, pieces, DTYPE, A_COLUMNS, B_COLUMNS, ROWS, WIDTH, STAGES, BUFFERS,
                         STACKED, TURNED, BARRIERS)),
            (_load, (barriers, M, N, K, pieces, A_COLUMNS, B_COLUMNS, ROWS, WIDTH, STAGES, STACKED, BARRIERS)),
            (pairs.idle, ()), (pairs.idle, ()),
        ],
        [4, 1, 1, 2],
        [_MULTIPLYING, _BESIDE, _BESIDE, _BESIDE],
    )  # fmt: skip


def _results(matrix: torch.Tensor, rows: int, columns: int) -> Form:
    """Descriptors of ``columns`` columns, of at most 128 bytes, which lie in shared memory as long as they are."""
    bits = 8 * matrix.element_size()
    layout = gl.NVMMASharedLayout(columns * bits // 8, bits, 2, False, False, pairs.BOTH)
    return gluon_tiles(matrix, rows, columns, False, layout)


def writer(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, chosen: Pairs) -> Write:
    """What writes products of matrices like these to 16-bit ``c`` with stride 1 along a row.

    Operands whose rows or columns are not 16-byte aligned are copied. A result that TMA cannot write has tiles of one SM.
    """
    if not is_aligned(c):
        from tilescope_kernels.matrix_products import matmul_hopper  # noqa: PLC0415 - few results are such

        return matmul_hopper.writer(a, b, c, tiling(Product.of(a, b), aligned_c=False))
    copies = not (is_aligned(a) and is_aligned(b))
    a, b = rooms(a, b)
    chosen, turned = chosen.ordered(along_k(a, b)), chosen.turned
    if turned:
        a, b = b.T, a.T
    (m, k), n = a.shape, b.shape[1]
    a_columns, b_columns, stacked = columns(a), columns(b), chosen.stacked
    width, (down, across) = chosen.wide, chosen.extents
    pieces, programs = cdiv(m, down) * cdiv(n, across), multiprocessors(a) // 2
    shared, deep, piece = pairs.SHARED.value, BLOCK_K // 2, chosen.piece
    if a_columns:
        a_tiles = gluon_tiles(a, 64, BLOCK_K if stacked else deep, True, shared)
    else:
        a_tiles = gluon_tiles(a, pairs.box(chosen.rows, not stacked), BLOCK_K, False, shared)
    if b_columns:
        b_tiles = gluon_tiles(b, BLOCK_K, pairs.box(width, stacked), True, shared)
    else:
        b_tiles = gluon_tiles(b, deep if stacked else BLOCK_K, 64, False, shared)
    c_tiles = _results(c, *((piece, 64) if turned else (64, piece)))
    grid, extents = (min(pieces, programs),), (m, n, k, pieces)
    constants = {
        "A_COLUMNS": a_columns, "B_COLUMNS": b_columns, "ROWS": chosen.rows, "WIDTH": width, "STAGES": chosen.stages,
        "BUFFERS": chosen.buffers, "STACKED": stacked, "TURNED": turned, "num_warps": 4, "num_ctas": 2,
    }  # fmt: skip

    def write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        a, b = aligned(a, b) if copies else (a, b)
        left, right = (b, a) if turned else (a, b)
        launch(matmul_pairs_kernel, grid, a_tiles.of(left), b_tiles.of(right), c_tiles.of(c), *extents, **constants)

    return write
