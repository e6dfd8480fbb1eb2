"""16-bit matrix products with few tiles and a long K on Hopper: a cluster of programs shares a tile along K.

A small result leaves SMs without a tile, and small tiles bring more operands to each SM than large ones do. Here a tile is large,
each of the 2 or 4 programs of a cluster multiplies a part of K, and their sums meet in shared memory: each program reads its
share of rows from all of them and writes it. There is no second launch, no sum in device memory and no atomic; parts are added in
the order of K, so the result is deterministic. The programs of a cluster run at the same time, so that they can wait for each other.
Triton knows of the shares: what all programs of a cluster have, it lets the first of them store.

One warp loads through TMA, one or two warpgroups multiply. Before warps are specialized, which takes about a microsecond, the first thread
fills the ring.

The plan chooses clusters where their model beats small tiles of ``split_k`` and pairs of SMs by its own error.
"""

from __future__ import annotations

import functools

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.hopper_pipeline import advance
from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products import hopper_pairs as pairs
from tilescope_kernels.matrix_products import matmul_hopper
from tilescope_kernels.matrix_products.aligned_rows import aligned, columns, is_aligned
from tilescope_kernels.matrix_products.hopper_pairs import LINE, STEP, load_code
from tilescope_kernels.matrix_products.matmul_clusters_tilings import Clusters, tiling
from tilescope_kernels.matrix_products.matmul_pairs import TOGETHER
from tilescope_kernels.matrix_products.matmul_tilings import BLOCK_K, Product

#: Registers per thread of the second multiplying warpgroup, and of the warps beside the first.
_OF_SECOND, _OTHERS = gl.constexpr(232), gl.constexpr(40)
#: Columns in fp32 that lie together in shared memory, and rows after which their order repeats: warps write without conflicts.
_CHUNK, _TURNS = gl.constexpr(8), gl.constexpr(8)

#: PTX of loads of a and b.
_A, _B = (load_code("matmul_clusters_kernel", each, False) for each in range(2))
#: The same by the kernel's first thread, instead of a warp's.
_A_EARLY, _B_EARLY = (load_code("matmul_clusters_kernel", each, False, "tid.x") for each in range(2))
#: PTX of a load of four sums from address $4 of any program of the cluster.
_READ = gl.constexpr("ld.shared::cluster.v4.f32 {$0, $1, $2, $3}, [$4];")
#: PTX of the address in program $2 that $1 is in this one.
_THERE = gl.constexpr("mapa.shared::cluster.u32 $0, $1, $2;")


# Layouts for clusters as large as that of ``ring``, the layout of a descriptor: every program has all of a matrix.
@gluon.constexpr_function
def _barrier_layout(ring):
    return mbarrier.MBarrierLayout([[0] for _ in ring.cga_layout])


@gluon.constexpr_function
def _product_layout(ring, columns):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16], ring.cga_layout)


@gluon.constexpr_function
def _sum_layout(ring):
    return gl.SwizzledSharedLayout(_CHUNK.value, 1, _TURNS.value, [1, 0], ring.cga_layout)


@gluon.constexpr_function
def _share_layout(ring, columns):
    """Four columns per thread, and rows of up to 128 columns per warp. Every program has rows of its own, in the order of ranks.

    Had all programs the same rows for Triton, only that of rank 0 would store.
    """
    lanes = min(32, columns // 4)
    programs = [[1 << bit, 0] for bit in range(len(ring.cga_layout))]
    return gl.BlockedLayout([1, 4], [32 // lanes, lanes], [4, 1], [1, 0], programs)


@gluon.jit
def _span(K, PARTS: gl.constexpr):
    """Steps along K of this program: the first, and the one after the last."""
    part, steps = pairs.rank(), gl.cdiv(K, STEP)
    return part * steps // PARTS, (part + 1) * steps // PARTS


@gluon.jit
def _load_step(
    A: gl.constexpr, B: gl.constexpr, slot, step, start_m, start_n, BARRIERS: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the operands of a step, by the PTX ``A`` and ``B``."""
    k, b_ring = step * STEP, pairs.shared_memory()
    arrived = b_ring + (BARRIERS + slot) * 8
    for i in gl.static_range(GROUPS):
        place = b_ring + (STAGES * WIDE + (slot * GROUPS + i) * ROWS) * LINE
        pairs.fetch(A, A, place, start_m + i * ROWS, k, arrived, 0, False, ROWS, not A_COLUMNS)
    pairs.fetch(B, B, b_ring + slot * (WIDE * LINE), start_n, k, arrived, 0, False, WIDE, B_COLUMNS)


@gluon.jit
def _load_early(
    M, N, K, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr,
    STAGES: gl.constexpr, PARTS: gl.constexpr, BARRIERS: gl.constexpr,
):  # fmt: skip
    """First thread: fill the ring while warps start."""
    start_m, start_n = tile_origin(gl.program_id(0), M, N, GROUPS * ROWS, WIDE, TOGETHER // (GROUPS * ROWS))
    first, end = _span(K, PARTS)
    for slot in range(gl.minimum(end - first, STAGES)):
        pairs.expect(pairs.shared_memory() + (BARRIERS + slot) * 8, (GROUPS * ROWS + WIDE) * LINE)
        _load_step(
            _A_EARLY, _B_EARLY, slot, first + slot, start_m, start_n, BARRIERS, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES
        )  # fmt: skip


@gluon.jit
def _load(
    barriers, M, N, K, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr,
    STAGES: gl.constexpr, PARTS: gl.constexpr, BARRIERS: gl.constexpr,
):  # fmt: skip
    """Producer warp: load this program's part of the operands as far ahead as the ring allows."""
    start_m, start_n = tile_origin(gl.program_id(0), M, N, GROUPS * ROWS, WIDE, TOGETHER // (GROUPS * ROWS))
    first, end = _span(K, PARTS)
    # Where the ring has not been filled, this program has no more steps.
    slot, phase = gl.to_tensor(0), gl.to_tensor(0)
    for step in range(first + STAGES, end):
        for i in gl.static_range(GROUPS):
            mbarrier.wait(barriers.index(BARRIERS + STAGES + slot * GROUPS + i), phase)
        mbarrier.expect(barriers.index(BARRIERS + slot), (GROUPS * ROWS + WIDE) * LINE)
        _load_step(_A, _B, slot, step, start_m, start_n, BARRIERS, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES)
        slot, phase = advance(slot, phase, STAGES)
    pairs.meet()
    pairs.idle()


@gluon.jit
def _idle():
    """What a warp does that fills a warpgroup: it takes part in the cluster's meetings."""
    pairs.meet()
    pairs.idle()


@gluon.jit
def _ring(rings, tiles, EXTENT: gl.constexpr, ALONG_K: gl.constexpr, LAYOUT: gl.constexpr):
    """Shared memory from its start as ``tiles`` tiles of ``EXTENT`` x 64 elements."""
    if ALONG_K:
        return rings._reinterpret(rings.dtype, [tiles, EXTENT, STEP], LAYOUT)
    else:
        return rings._reinterpret(rings.dtype, [tiles, STEP, EXTENT], LAYOUT)


@gluon.jit
def _tile(ring, index, TURNED: gl.constexpr):
    return ring.index(index).permute([1, 0]) if TURNED else ring.index(index)


@gluon.jit
def _collect(
    c_ptr, stride_c, start_m, start_n, rank, M, N, PLACE: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, PARTS: gl.constexpr,
    ALIGNED: gl.constexpr, RING: gl.constexpr,
):  # fmt: skip
    """Add up this program's share of the rows of the cluster's matrices number ``PLACE``, and write it to c."""
    HIGH: gl.constexpr = ROWS // PARTS
    LAYOUT: gl.constexpr = _share_layout(RING, WIDE)
    m = rank * HIGH + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None] % HIGH
    n = gl.arange(0, WIDE, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    turned = (n // _CHUNK ^ m % _TURNS) * _CHUNK + n % _CHUNK
    place = 4 * (PLACE * ROWS * WIDE + m * WIDE + turned)
    start = pairs.shared_memory()
    total = gl.zeros([ROWS, WIDE], gl.float32, LAYOUT)
    for part in gl.static_range(PARTS):
        there = gl.inline_asm_elementwise(
            _THERE, "=r,r,r", [start, gl.to_tensor(part)], dtype=gl.int32, is_pure=False, pack=1
        )
        total += gl.inline_asm_elementwise(
            _READ, "=f,=f,=f,=f,r,r,r,r", [there + place], dtype=gl.float32, is_pure=False, pack=4
        )  # fmt: skip
    if ALIGNED:
        # Rounding shows the compiler the alignment.
        stride_c = stride_c // 8 * 8
        N = N // 8 * 8
    m += start_m
    n += start_n
    gl.store(c_ptr + m.to(gl.int64) * stride_c + n, total.to(c_ptr.dtype.element_ty), mask=(m < M) & (n < N))


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_ptr, stride_c, rings, barriers, M, N, K, RING: gl.constexpr, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr,
    GROUPS: gl.constexpr, ROWS: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, ALIGNED: gl.constexpr,
    BARRIERS: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its rows of the tile along this program's part of K, then write its share of their sums."""
    part = pairs.rank()
    A_FIRST: gl.constexpr = STAGES * WIDE // ROWS
    a_ring = _ring(rings, A_FIRST + STAGES * GROUPS, ROWS, not A_COLUMNS, RING)
    b_ring = _ring(rings, STAGES, WIDE, B_COLUMNS, RING)
    total = gl.zeros([ROWS, WIDE], gl.float32, _product_layout(RING, WIDE))
    first, end = _span(K, PARTS)
    slot, phase = gl.to_tensor(0), gl.to_tensor(0)
    # Not `slot`: Triton does not carry a variable from step to step that enters the loop as an alias of another.
    used = gl.to_tensor(0)
    for step in range(first, end):
        mbarrier.wait(barriers.index(BARRIERS + slot), phase)
        a = _tile(a_ring, A_FIRST + slot * GROUPS + WHICH, A_COLUMNS)
        total = warpgroup_mma(a, _tile(b_ring, slot, B_COLUMNS), total, is_async=True)
        # Once only this step's product is in flight, the previous step's has ended and its stage is free.
        total = warpgroup_mma_wait(1, deps=[total])
        mbarrier.arrive(barriers.index(BARRIERS + STAGES + used * GROUPS + WHICH), count=1, pred=step > first)
        used = slot
        slot, phase = advance(slot, phase, STAGES)
    total = warpgroup_mma_wait(0, deps=[total])
    # The sums take the place of the operands, once all warpgroups have used those.
    pairs.meet()
    rings._reinterpret(gl.float32, [GROUPS, ROWS, WIDE], _sum_layout(RING)).index(WHICH).store(total)
    pairs.meet()
    start_m, start_n = tile_origin(gl.program_id(0), M, N, GROUPS * ROWS, WIDE, TOGETHER // (GROUPS * ROWS))
    start_m += WHICH * ROWS
    _collect(c_ptr, stride_c, start_m, start_n, part, M, N, WHICH, ROWS, WIDE, PARTS, ALIGNED, RING)
    # The others may still read this program's shared memory.
    pairs.meet()


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["stride_c", "M", "N", "K"])
def matmul_clusters_kernel(
    a_tiles, b_tiles, c_ptr, stride_c, M, N, K, A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, GROUPS: gl.constexpr,
    ROWS: gl.constexpr, WIDE: gl.constexpr, STAGES: gl.constexpr, PARTS: gl.constexpr, ALIGNED: gl.constexpr,
):  # fmt: skip
    """Compute a tile of c per cluster of ``PARTS`` programs. Launch with 4 warps and ``num_ctas`` for all.

    A tile has ``ROWS`` rows for each of ``GROUPS`` warpgroups, 1 or 2, and ``WIDE`` columns. Descriptors of a and b have boxes as
    ``pairs.fetch`` loads them. ``ALIGNED``: rows of c start at multiples of 16 bytes.
    """
    RING: gl.constexpr = a_tiles.layout
    BARRIERS: gl.constexpr = STAGES * (WIDE + GROUPS * ROWS) * LINE // 8
    # The rings of b and a, then mbarriers: of stages that have arrived, and that a warpgroup has used.
    rings = gl.allocate_shared_memory(a_tiles.dtype, [BARRIERS // 128 + 1, 8, 64], RING)
    barriers = rings._reinterpret(gl.int64, [BARRIERS + STAGES * (GROUPS + 1), 1], _barrier_layout(RING))
    pairs.initialize(pairs.barriers_code(STAGES, STAGES * GROUPS, 1), pairs.shared_memory() + BARRIERS * 8)
    _load_early(M, N, K, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES, PARTS, BARRIERS)
    # Written out, because constants in a tuple that a variable holds are no longer constexpr. Idle warps fill the loading warp's
    # warpgroup, as Triton would: a meeting needs every warp that there is.
    if GROUPS == 1:
        gl.warp_specialize(
            [
                (_multiply, (0, c_ptr, stride_c, rings, barriers, M, N, K, RING, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES, PARTS,
                             ALIGNED, BARRIERS)),
                (_load, (barriers, M, N, K, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES, PARTS, BARRIERS)),
                (_idle, ()), (_idle, ()),
            ],
            [1, 1, 2],
            [_OTHERS, _OTHERS, _OTHERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (0, c_ptr, stride_c, rings, barriers, M, N, K, RING, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES, PARTS,
                             ALIGNED, BARRIERS)),
                (_multiply, (1, c_ptr, stride_c, rings, barriers, M, N, K, RING, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES, PARTS,
                             ALIGNED, BARRIERS)),
                (_load, (barriers, M, N, K, A_COLUMNS, B_COLUMNS, GROUPS, ROWS, WIDE, STAGES, PARTS, BARRIERS)),
                (_idle, ()), (_idle, ()),
            ],
            [4, 1, 1, 2],
            [_OF_SECOND, _OTHERS, _OTHERS, _OTHERS],
        )  # fmt: skip


@functools.cache
def _layout(programs: int) -> gl.NVMMASharedLayout:
    """Layout of 16 bits in shared memory, of which every program of a cluster has all."""
    return gl.NVMMASharedLayout(128, 16, 2, False, False, [[0, 0]] * (programs.bit_length() - 1))


def plan(a: torch.Tensor, b: torch.Tensor) -> Clusters | None:
    """The tiling of a product with a contiguous result; None where clusters do not serve it or others may be as quick."""
    if not pairs.serves(a, b) or matmul_hopper.serves(a, b):
        return None
    # Operands that are copied were not timed.
    if min(a.shape[0], b.shape[1]) < 64 or not (is_aligned(a) and is_aligned(b)):
        return None
    return tiling(Product.of(a, b))


def write_product(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, chosen: Clusters) -> None:
    """Write the product to 16-bit ``c`` with stride 1 along a row. Operands whose rows or columns are not 16-byte aligned are copied."""
    (m, k), n = a.shape, b.shape[1]
    a, b = aligned(a, b)
    a_columns, b_columns, layout = columns(a), columns(b), _layout(chosen.parts)
    of_a = (64, BLOCK_K) if a_columns else (chosen.rows, BLOCK_K)
    of_b = (BLOCK_K, chosen.wide if b_columns else 64)
    launch(
        matmul_clusters_kernel, (cdiv(m, chosen.height) * cdiv(n, chosen.wide),),
        gluon_tiles(a, *of_a, a_columns, layout), gluon_tiles(b, *of_b, b_columns, layout), c, c.stride(0), m, n, k,
        A_COLUMNS=a_columns, B_COLUMNS=b_columns, GROUPS=chosen.groups, ROWS=chosen.rows, WIDE=chosen.wide, STAGES=chosen.stages,
        PARTS=chosen.parts, ALIGNED=is_aligned(c), num_warps=4, num_ctas=chosen.parts,
    )  # fmt: skip
