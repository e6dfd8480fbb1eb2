"""Large 16-bit matrix products on Hopper: one warp loads and two warpgroups multiply.

A warpgroup has half of a tile's rows. The second one runs two steps behind the first, so that one of them keeps the tensor
cores busy while the other writes its half. The kernel is in Gluon, because Triton's language does not assign work to warps.

In bf16 on an H200 (2026-11-26, torch 2.11, triton 3.6, cold L2, cuBLAS in brackets, then the best of ``matmul_kernel``):
4096x4096x4096 182 us (181, 186), 8192x8192x8192 1437 (1438, 1423), 16384x4096x14336 2608 (2675, 2629), 8192x8192x1024 207
(209, 213), 512x8192x8192 96 (97, 99). 4097x4099x4101 took 247, 37 of them for copies (torch.compile, which pads: 235).
Where tiles make a little more than whole waves, other tiles are better: 3000x3000x3000 110 (81), 1536x1536x1536 21 (15).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
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

from tilescope_kernels._shared.launching import capability, device_of, multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products.aligned_rows import aligned, columns
from tilescope_kernels.matrix_products.split_k import add_parts_kernel

#: Groups of warps that multiply, and the rows of each, a tensor core instruction's.
_GROUPS, _ROWS = gl.constexpr(2), gl.constexpr(64)
_BLOCK_M = gl.constexpr(_GROUPS.value * _ROWS.value)
#: Columns of a tile that leave at a time: 128 bytes.
_PART = gl.constexpr(64)
#: A step along K: 128 bytes.
_BLOCK_K = gl.constexpr(64)
#: Rows of tiles that are walked together: L2 still has their operands.
_GROUP_M = gl.constexpr(16)
#: Steps that the second group is behind: as long as it takes to write a tile. The ring has more.
_LAG = gl.constexpr(2)
#: Registers of a thread that multiplies and of one that loads.
_MULTIPLYING, _LOADING = gl.constexpr(232), gl.constexpr(24)


@gluon.jit
def _advance(slot, phase, STAGES: gl.constexpr):
    slot += 1
    wrapped = slot == STAGES
    return gl.where(wrapped, 0, slot), gl.where(wrapped, phase ^ 1, phase)


@gluon.jit
def _part(piece, whole, K, SPLITS: gl.constexpr):
    """A piece's tile, and its first step along K and their number. The first ``whole`` pieces are tiles."""
    steps = (K + _BLOCK_K - 1) // _BLOCK_K
    tile = piece
    first = piece * 0
    if SPLITS > 1:
        each = (steps + SPLITS - 1) // SPLITS
        part = gl.maximum(piece - whole, 0)
        cut = piece >= whole
        tile = gl.where(cut, whole + part // SPLITS, piece)
        first = gl.where(cut, gl.minimum(part % SPLITS * each, steps), 0)
        steps = gl.where(cut, gl.minimum(each, steps - first), steps)
    return tile, first, steps


@gluon.jit
def _load(
    a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, whole, pieces,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Load the operands of this program's tiles as far ahead as the ring allows, the next tile's during an epilogue."""
    slot = gl.to_tensor(0)
    # A barrier's first wait for what has not been used yet must not wait: it asks for the phase before.
    phase = gl.to_tensor(1)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        tile, first, steps = _part(piece, whole, K, SPLITS)
        start_m, start_n = tile_origin(tile, M, N, _BLOCK_M, BLOCK_N, _GROUP_M)
        for step in range(first, first + steps):
            k = step * _BLOCK_K
            arrived = ready.index(slot)
            for i in gl.static_range(_GROUPS):
                mbarrier.wait(free.index(slot * _GROUPS + i), phase)
            mbarrier.expect(arrived, 2 * (_BLOCK_M + BLOCK_N) * _BLOCK_K)
            for i in gl.static_range(_GROUPS):
                place = a_ring.index(slot * _GROUPS + i)
                if A_COLUMNS:
                    tma.async_copy_global_to_shared(a_tiles, [k, start_m + i * _ROWS], arrived, place)
                else:
                    tma.async_copy_global_to_shared(a_tiles, [start_m + i * _ROWS, k], arrived, place)
            if B_COLUMNS:
                tma.async_copy_global_to_shared(b_tiles, [start_n, k], arrived, b_ring.index(slot))
            else:
                tma.async_copy_global_to_shared(b_tiles, [k, start_n], arrived, b_ring.index(slot))
            slot, phase = _advance(slot, phase, STAGES)


@gluon.jit
def _store(
    WHICH: gl.constexpr, total, c_tiles, c_ptr, stride_cm, buffers, start_m, start_n, M, N, TMA: gl.constexpr
):  # fmt: skip
    """Write this warpgroup's rows by way of two buffers, each 64 columns wide, which it has for itself."""
    MULTIPLIED: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _PART, 16])
    ROWS: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    COLUMNS: gl.constexpr = total.shape[1]
    left, right = total.to(c_ptr.dtype.element_ty).reshape(_ROWS, 2, COLUMNS // 2).permute(0, 2, 1).split()
    parts = (left, right)
    if COLUMNS == 4 * _PART:
        first, second = left.reshape(_ROWS, 2, _PART).permute(0, 2, 1).split()
        third, fourth = right.reshape(_ROWS, 2, _PART).permute(0, 2, 1).split()
        parts = (first, second, third, fourth)
    m = start_m + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, ROWS))[:, None]
    for i in gl.static_range(COLUMNS // _PART):
        buffer = buffers.index(WHICH * 2 + i % 2)
        if TMA:
            # Once what was in the buffer has left. The descriptor leaves out what is past the edges.
            tma.store_wait(1)
            buffer.store(gl.convert_layout(parts[i], MULTIPLIED))
            fence_async_shared()
            tma.async_copy_shared_to_global(c_tiles, [start_m, start_n + i * _PART], buffer)
        else:
            buffer.store(gl.convert_layout(parts[i], MULTIPLIED))
            n = start_n + i * _PART + gl.arange(0, _PART, layout=gl.SliceLayout(0, ROWS))[None, :]
            gl.store(c_ptr + m.to(gl.int64) * stride_cm + n, buffer.load(ROWS), mask=(m < M) & (n < N))


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, c_tiles, c_ptr, parts_ptr, stride_cm, a_ring, b_ring, buffers, ready, free,
    M, N, K, whole, pieces,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
    TMA: gl.constexpr,
):  # fmt: skip
    """Multiply this warpgroup's 64 rows of this program's pieces."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    slot = gl.to_tensor(0)
    phase = gl.to_tensor(0)
    row = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
    column = gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    if WHICH == 1:
        # The other group's first use of that slot: it does not come to a second one before this group's first.
        _, _, steps = _part(gl.program_id(0), whole, K, SPLITS)
        mbarrier.wait(free.index((_LAG - 1) * _GROUPS), 0, pred=(steps >= _LAG) & (gl.program_id(0) < pieces))
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        tile, _, steps = _part(piece, whole, K, SPLITS)
        start_m, start_n = tile_origin(tile, M, N, _BLOCK_M, BLOCK_N, _GROUP_M)
        start_m += WHICH * _ROWS
        total = gl.zeros([_ROWS, BLOCK_N], gl.float32, LAYOUT)
        # Not `slot`: what has the value of another variable before a loop, Triton does not carry from step to step.
        used = gl.to_tensor(0)
        for step in range(steps):
            mbarrier.wait(ready.index(slot), phase)
            a = a_ring.index(slot * _GROUPS + WHICH)
            b = b_ring.index(slot)
            if A_COLUMNS:
                a = a.permute([1, 0])
            if B_COLUMNS:
                b = b.permute([1, 0])
            total = warpgroup_mma(a, b, total, is_async=True)
            # The product of the step before is finished once only this one is under way.
            total = warpgroup_mma_wait(1, deps=[total])
            mbarrier.arrive(free.index(used * _GROUPS + WHICH), count=1, pred=step > 0)
            used = slot
            slot, phase = _advance(slot, phase, STAGES)
        total = warpgroup_mma_wait(0, deps=[total])
        mbarrier.arrive(free.index(used * _GROUPS + WHICH), count=1, pred=steps > 0)
        if SPLITS > 1 and piece >= whole:
            part = parts_ptr + (piece - whole).to(gl.int64) * (_BLOCK_M * BLOCK_N)
            gl.store(part + (WHICH * _ROWS + row) * BLOCK_N + column, total, mask=start_m + row < M)
        else:
            _store(WHICH, total, c_tiles, c_ptr, stride_cm, buffers, start_m, start_n, M, N, TMA)
    if TMA:
        tma.store_wait(0)


# Extents of 1 for constants have made ptxas die of a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "stride_cm", "whole", "pieces"])
def matmul_hopper_kernel(
    a_tiles, b_tiles, c_tiles, c_ptr, parts_ptr, stride_cm, M, N, K, whole, pieces,
    A_COLUMNS: gl.constexpr, B_COLUMNS: gl.constexpr, BLOCK_N: gl.constexpr, SPLITS: gl.constexpr, STAGES: gl.constexpr,
    TMA: gl.constexpr,
):  # fmt: skip
    """Pieces ``program, program + programs, ...``: ``whole`` tiles of 128xBLOCK_N, then ``SPLITS`` parts of each other one.

    Parts go to ``parts`` (pieces, 128, BLOCK_N) in fp32, tiles to c: through ``c_tiles``, or by pointers where that is None
    because c's rows are not aligned. Descriptors are of 64x64 of a and c and 64xBLOCK_N of b, or of BLOCK_Nx64 where
    ``B_COLUMNS`` says that b is column-major. Launched with 4 warps.
    """
    a_ring = gl.allocate_shared_memory(a_tiles.dtype, [STAGES * _GROUPS, _ROWS, _BLOCK_K], a_tiles.layout)
    if B_COLUMNS:
        b_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES, BLOCK_N, _BLOCK_K], b_tiles.layout)
    else:
        b_ring = gl.allocate_shared_memory(b_tiles.dtype, [STAGES, _BLOCK_K, BLOCK_N], b_tiles.layout)
    buffers = gl.allocate_shared_memory(a_tiles.dtype, [_GROUPS * 2, _ROWS, _PART], a_tiles.layout)
    # That a stage has come, and that either group has used it.
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES * _GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(STAGES * _GROUPS):
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (0, c_tiles, c_ptr, parts_ptr, stride_cm, a_ring, b_ring, buffers, ready, free, M, N, K, whole,
                         pieces, A_COLUMNS, B_COLUMNS, BLOCK_N, SPLITS, STAGES, TMA)),
            (_multiply, (1, c_tiles, c_ptr, parts_ptr, stride_cm, a_ring, b_ring, buffers, ready, free, M, N, K, whole,
                         pieces, A_COLUMNS, B_COLUMNS, BLOCK_N, SPLITS, STAGES, TMA)),
            (_load, (a_tiles, b_tiles, a_ring, b_ring, ready, free, M, N, K, whole, pieces,
                     A_COLUMNS, B_COLUMNS, BLOCK_N, SPLITS, STAGES)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip


#: What cutting the last wave costs on an H200, in steps: another launch, and parts on their way through L2.
_CUT = 20


@dataclass(frozen=True)
class Tiling:
    """Columns of a tile, and the number of parts that tiles of the last wave are cut in."""

    block_n: int
    splits: int


def _whole(tiles: int, programs: int, splits: int) -> int:
    """Number of tiles that are not cut: those of whole waves."""
    return tiles if splits == 1 else tiles // programs * programs


def tiling(m: int, n: int, k: int, programs: int) -> Tiling:
    """The tiling that takes the least time, in steps of a 128x256 tile along K.

    A last wave of few tiles takes as long as a whole one unless its tiles are cut along K, which costs another launch.
    """
    steps = triton.cdiv(k, _BLOCK_K.value)
    every = []
    for block_n, step in ((256, 1.0), (128, 0.56)):
        tiles = triton.cdiv(m, _BLOCK_M.value) * triton.cdiv(n, block_n)
        last = tiles % programs
        for splits in {1, min(8, programs // last, max(1, steps // 4)) if last else 1}:
            part = triton.cdiv(steps, splits) * step + _CUT if splits > 1 else steps * step
            time = tiles // programs * steps * step + (part if last else 0)
            every.append((time, -block_n, splits))
    _, block_n, splits = min(every)
    return Tiling(-block_n, splits)


def serves(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether there is a GPU for the kernel and the product has work for all of it.

    Not where rows are few: half of a tile would be empty, and to copy b would take longer than the product.
    """
    (m, k), n = a.shape, b.shape[1]
    if capability(a) != 90 or a.element_size() != 2 or k < _BLOCK_K.value or n < _BLOCK_K.value:
        return False
    return m > 64 and triton.cdiv(m, 64) * triton.cdiv(n, 128) > multiprocessors(a)


def _tiles(matrix: torch.Tensor, rows: int, wide: int) -> TensorDescriptor:
    """A descriptor of (rows, wide) tiles. The column stride is taken to be 1: PyTorch gives a single column any stride."""
    dtype = gl.bfloat16 if matrix.dtype == torch.bfloat16 else gl.float16
    layout = gl.NVMMASharedLayout.get_default_for([rows, wide], dtype)
    return TensorDescriptor(matrix, list(matrix.shape), [matrix.stride(0), 1], [rows, wide], layout)


def launch(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, chosen: Tiling | None = None
) -> None:  # fmt: skip
    """Write the product to ``c``, whose columns are neighbours. Operands whose rows do not start at 16 bytes are copied."""
    (m, k), n = a.shape, b.shape[1]
    programs = multiprocessors(a)
    chosen = chosen or tiling(m, n, k, programs)
    block_n, splits = chosen.block_n, chosen.splits
    a, b = aligned(a, b)
    a_columns, b_columns = columns(a), columns(b)
    rows, depth = _ROWS.value, _BLOCK_K.value
    tiles = triton.cdiv(m, _BLOCK_M.value) * triton.cdiv(n, block_n)
    whole = _whole(tiles, programs, splits)
    others = tiles - whole
    pieces = whole + others * splits
    through = c.stride(0) * c.element_size() % 16 == 0 and c.data_ptr() % 16 == 0
    size = others * splits * _BLOCK_M.value * block_n if splits > 1 else 0
    parts = torch.empty(size, dtype=torch.float32, device=a.device) if size else None
    with device_of(a):
        matmul_hopper_kernel[(min(pieces, programs),)](
            _tiles(a.T if a_columns else a, rows, depth),
            _tiles(b.T, block_n, depth) if b_columns else _tiles(b, depth, block_n),
            _tiles(c, rows, _PART.value) if through else None,
            c, parts, c.stride(0), m, n, k, whole, pieces,
            A_COLUMNS=a_columns, B_COLUMNS=b_columns, BLOCK_N=block_n, SPLITS=1 if parts is None else splits,
            STAGES=4 if block_n == 256 else 6, TMA=through, num_warps=4,
        )  # fmt: skip
        if parts is not None:
            few = 2048 // block_n
            add_parts_kernel[(others * (_BLOCK_M.value // few),)](
                c, parts, None, None, m, n, c.stride(0), whole, BLOCK_M=_BLOCK_M.value, BLOCK_N=block_n,
                GROUP_M=_GROUP_M.value, SPLITS=splits, ROWS=few, SCALES=0, num_warps=4,
            )  # fmt: skip
