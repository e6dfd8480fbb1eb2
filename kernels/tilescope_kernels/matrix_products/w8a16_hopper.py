"""Products of 16-bit rows and INT8 weights on Hopper, warp-specialized: one warp loads, two warpgroups convert and multiply.

While one warpgroup converts weights, the other's products keep the tensor cores busy. Written in Gluon: in Triton's language
all warps wait for the same loads, so all convert at once and the tensor cores idle. Few tiles are split along K, and a second
launch adds the parts up in a fixed order.

Two weights are converted in three instructions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

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
from tilescope_kernels._shared.launching import capability, cdiv, gluon_capability, launch, multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products.aligned_rows import copy_rows, is_aligned, room
from tilescope_kernels.matrix_products.hopper_store import advance
from tilescope_kernels.matrix_products.scaled_matmul import tma_serves

#: Multiplying warpgroups, and rows of weights of each, the M of a wgmma instruction.
_GROUPS, _ROWS = gl.constexpr(2), gl.constexpr(64)
_BLOCK_N = gl.constexpr(_GROUPS.value * _ROWS.value)
#: Elements of a step along K: 128 bytes of x.
_BLOCK_K = gl.constexpr(64)
#: Steps of a turn, an unrolled part of the loop: weights of one step are converted during the products of the one before. ptxas
#: keeps no wgmma in flight across a loop's back edge, so the last products of a turn are waited for.
_TURN = gl.constexpr(4)
#: Steps that the second warpgroup lags behind, so that one waits during the other's products.
_LAG = gl.constexpr(2)
#: Rows of tiles that are visited together, so that their operands stay in L2.
_GROUP_N = gl.constexpr(16)
#: Registers per thread of the multiplying warpgroups and of the loading warp.
_MULTIPLYING, _LOADING = gl.constexpr(232), gl.constexpr(24)


@gluon.constexpr_function
def unit(dtype):
    """What weights are divided by when they are converted to ``dtype``: what a product is to be multiplied by."""
    return 512.0 if dtype == gl.float16 else 64.0


@gluon.constexpr_function
def _conversion(dtype):
    """PTX that converts two INT8 numbers.

    A byte that a zero byte precedes is, as fp16 or bf16, that many times the least subnormal number: in bf16 the upper half of bytes
    lies in the first binade of normal numbers, which are as far apart. So one fused multiply-add turns bytes, their sign bit
    inverted, into numbers: times the largest power of two, less that of byte 128. It is exact.
    """
    kind, power, less = ("f16", 0x7800, 0xB400) if dtype == gl.float16 else ("bf16", 0x7F00, 0xC000)
    return (
        "{ .reg .b32 both, wide, power, less; cvt.u32.u16 both, $1; prmt.b32 wide, both, 0, 0x4140;"
        f" xor.b32 wide, wide, 0x00800080; mov.b32 power, {power << 16 | power}; mov.b32 less, {less << 16 | less};"
        f" fma.rn.{kind}x2 $0, wide, power, less; }}"
    )


@triton.jit
def w8a16_sum_kernel(
    y_ptr, partial_ptr, scale_ptr, size, N, SPLIT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Add up the parts of y in a fixed order, which is deterministic, and scale the sum."""
    if PDL:
        gdc_wait()
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(partial_ptr + part * size + offsets, mask=mask, other=0.0)
    total *= tl.load(scale_ptr + offsets % N, mask=mask, other=0.0)
    tl.store(y_ptr + offsets, total.to(y_ptr.dtype.element_ty), mask=mask)


#: Elements of y per program of ``w8a16_sum_kernel``.
_SUMMED = 512


def add_parts(y: torch.Tensor, parts: torch.Tensor, scale: torch.Tensor) -> None:
    """Write the sum of ``parts`` (SPLIT, M, N), scaled, to y (M, N)."""
    size, n = y.numel(), y.shape[1]
    # Programmatic dependent launch: the kernel starts early and waits for the parts.
    pdl = capability(y) >= 90
    launch(
        w8a16_sum_kernel, (cdiv(size, _SUMMED),), y, parts, scale, size, n,
        SPLIT=parts.shape[0], BLOCK=_SUMMED, PDL=pdl, **({"launch_pdl": True} if pdl else {}),
    )  # fmt: skip


@gluon.jit
def converted(codes, dtype: gl.constexpr):
    """Convert int16, each two INT8 numbers adjacent along K, to two of ``dtype`` in int32, divided by ``unit``."""
    CODE: gl.constexpr = _conversion(dtype)
    return gl.inline_asm_elementwise(CODE, "=r,h", [codes], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _piece(piece, whole, M, N, K, BLOCK_M: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr):
    """First row of weights and of x, first turn along K, and number of turns of a piece.

    A piece is a part along K if ``SPLIT`` > 1, else one of the ``whole`` tiles or a part of a later one's rows of x.
    Past K a turn loads zeros.
    """
    turns = (K + _TURN * _BLOCK_K - 1) // (_TURN * _BLOCK_K)
    if CUT == 1:
        start_n, start_m = tile_origin(piece // SPLIT, N, M, _BLOCK_N, BLOCK_M, _GROUP_N)
        each = (turns + SPLIT - 1) // SPLIT
        first = piece % SPLIT * each
        turns = gl.minimum(each, turns - first)
    else:
        part = gl.maximum(piece - whole, 0)
        tile = gl.where(piece < whole, piece, whole + part // CUT)
        start_n, start_m = tile_origin(tile, N, M, _BLOCK_N, BLOCK_M, _GROUP_N)
        start_m += part % CUT * (BLOCK_M // CUT)
        first = 0 * piece
    return start_n, start_m, first, turns


@gluon.jit
def _load_pieces(
    begin, end, slot, phase, x_tiles, weight_tiles, x_ring, weight_ring, ready, free, M, N, K, whole,
    BLOCK_M: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, STAGES: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Load the operands of this program's pieces: whole tiles or parts along K if ``WHOLE``, else parts of rows of x."""
    BOX: gl.constexpr = BLOCK_M // CUT
    BOXES: gl.constexpr = CUT if WHOLE else 1
    for piece in range(begin, end, gl.num_programs(0)):
        start_n, start_m, first, turns = _piece(piece, whole, M, N, K, BLOCK_M, SPLIT, CUT)
        for step in range(_TURN * first, _TURN * (first + turns)):
            k = step * _BLOCK_K
            arrived = ready.index(slot)
            for i in gl.static_range(_GROUPS):
                mbarrier.wait(free.index(slot * _GROUPS + i), phase)
            mbarrier.expect(arrived, (2 * BOXES * BOX + _BLOCK_N) * _BLOCK_K)
            for i in gl.static_range(_GROUPS):
                place = weight_ring.index(slot * _GROUPS + i)
                tma.async_copy_global_to_shared(weight_tiles, [start_n + i * _ROWS, k], arrived, place)
            for i in gl.static_range(BOXES):
                tma.async_copy_global_to_shared(x_tiles, [start_m + i * BOX, k], arrived, x_ring.index(slot * CUT + i))
            slot, phase = advance(slot, phase, STAGES)
    return slot, phase


@gluon.jit
def _load(
    x_tiles, weight_tiles, x_ring, weight_ring, ready, free, M, N, K, whole, pieces,
    BLOCK_M: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Producer warp: load operands as far ahead as the ring allows, those of the next piece during an epilogue."""
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    slot, phase = _load_pieces(
        gl.program_id(0), whole, gl.to_tensor(0), gl.to_tensor(1), x_tiles, weight_tiles, x_ring, weight_ring, ready, free,
        M, N, K, whole, BLOCK_M, SPLIT, CUT, STAGES, True,
    )  # fmt: skip
    if CUT > 1:
        _load_pieces(
            whole + gl.program_id(0), pieces, slot, phase, x_tiles, weight_tiles, x_ring, weight_ring, ready, free,
            M, N, K, whole, BLOCK_M, SPLIT, CUT, STAGES, False,
        )  # fmt: skip


@gluon.jit
def _converted(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """Convert ``pairs`` (_ROWS, _BLOCK_K / 2) int16, each two INT8 numbers adjacent along K, to (_ROWS, _BLOCK_K) of ``dtype``."""
    both = converted(pairs, dtype)
    first = both.to(gl.int16).to(dtype, bitcast=True)
    second = (both >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(first, second).reshape(_ROWS, _BLOCK_K), LAYOUT, assert_trivial=True)


@gluon.jit
def _store_part(total, part_ptr, N, rows, columns):
    """Store a part of a tile, transposed, 32 rows at a time: addresses of all rows at once do not fit in registers."""
    WIDE: gl.constexpr = total.shape[1]
    if WIDE > 32:
        first, second = total.reshape(_ROWS, 2, WIDE // 2).permute(0, 2, 1).split()
        _store_part(first, part_ptr, N, rows, columns)
        _store_part(second, part_ptr + WIDE // 2 * N, N, rows - WIDE // 2, columns)
    else:
        LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDE, 16])
        n = gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LAYOUT))[:, None]
        m = gl.arange(0, WIDE, layout=gl.SliceLayout(0, LAYOUT))[None, :]
        gl.store(part_ptr + m * N + n, gl.convert_layout(total, LAYOUT), mask=(m < rows) & (n < columns))


@gluon.jit
def _multiply_pieces(
    WHICH: gl.constexpr, begin, end, slot, phase, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring, y_buffers, ready, free,
    M, N, K, whole, BLOCK_M: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, STAGES: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """Multiply this warpgroup's rows of this program's pieces. Weights are converted during the previous step's products."""
    BOX: gl.constexpr = BLOCK_M // CUT
    BOXES: gl.constexpr = CUT if WHOLE else 1
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BOXES * BOX, 16])
    CONVERTED: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    PAIRS: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 1)
    PAIR_TILE: gl.constexpr = gl.NVMMASharedLayout(_BLOCK_K, 16)
    weight_ring = weight_ring._reinterpret(gl.int16, [STAGES * _GROUPS, _ROWS, _BLOCK_K // 2], PAIR_TILE)
    tiles = x_ring._reinterpret(x_ring.dtype, [STAGES * (CUT // BOXES), BOXES * BOX, _BLOCK_K], x_ring.layout)
    buffers = y_buffers._reinterpret(x_ring.dtype, [_GROUPS * (CUT // BOXES), BOXES * BOX, _ROWS], y_buffers.layout)
    n = WHICH * _ROWS + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LAYOUT))
    for piece in range(begin, end, gl.num_programs(0)):
        start_n, start_m, _, turns = _piece(piece, whole, M, N, K, BLOCK_M, SPLIT, CUT)
        if SPLIT == 1:
            scale = gl.load(scale_ptr + start_n + n, mask=start_n + n < N, other=0.0)
        total = gl.zeros([_ROWS, BOXES * BOX], gl.float32, LAYOUT)
        for _ in range(turns):
            for step in gl.static_range(_TURN):
                mbarrier.wait(ready.index(slot + step), phase)
                weight = _converted(
                    weight_ring.index((slot + step) * _GROUPS + WHICH).load(PAIRS), x_ring.dtype, CONVERTED
                )
                x = tiles.index((slot + step) * (CUT // BOXES)).permute([1, 0])
                total = warpgroup_mma(weight, x, total, is_async=True)
                if step > 0:
                    total = warpgroup_mma_wait(1, deps=[total])
                    mbarrier.arrive(free.index((slot + step - 1) * _GROUPS + WHICH), count=1)
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.arrive(free.index((slot + _TURN - 1) * _GROUPS + WHICH), count=1)
            slot, phase = advance(slot, phase, STAGES, _TURN)
        total *= unit(x_ring.dtype)
        if SPLIT == 1:
            # Wait until the previous tile has left the buffer. TMA clips at the edges.
            tma.store_wait(0)
            buffers.index(WHICH * (CUT // BOXES)).permute([1, 0]).store((total * scale[:, None]).to(y_tiles.dtype))
            fence_async_shared()
            for i in gl.static_range(BOXES):
                place = [start_m + i * BOX, start_n + WHICH * _ROWS]
                tma.async_copy_shared_to_global(y_tiles, place, y_buffers.index(WHICH * CUT + i))
        else:
            row = (piece % SPLIT * M + start_m).to(gl.int64)
            _store_part(
                total, parts_ptr + row * N + start_n + WHICH * _ROWS, N, M - start_m, N - start_n - WHICH * _ROWS
            )
    return slot, phase


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, whole, pieces,
    BLOCK_M: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its 64 rows of weights of this program's pieces, whole tiles first."""
    if WHICH == 1:
        # Wait for the first warpgroup's first use of that stage. Its second use cannot come before this one's first.
        mbarrier.wait(free.index((_LAG - 1) * _GROUPS), 0)
    slot, phase = _multiply_pieces(
        WHICH, gl.program_id(0), whole, gl.to_tensor(0), gl.to_tensor(0), y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring,
        y_buffers, ready, free, M, N, K, whole, BLOCK_M, SPLIT, CUT, STAGES, True,
    )  # fmt: skip
    if CUT > 1:
        _multiply_pieces(
            WHICH, whole + gl.program_id(0), pieces, slot, phase, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring,
            y_buffers, ready, free, M, N, K, whole, BLOCK_M, SPLIT, CUT, STAGES, False,
        )  # fmt: skip
    if SPLIT == 1:
        tma.store_wait(0)


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "whole", "pieces"])
def w8a16_matmul_hopper_kernel(
    x_tiles, weight_tiles, y_tiles, parts_ptr, scale_ptr, M, N, K, whole, pieces,
    BLOCK_M: gl.constexpr, SPLIT: gl.constexpr, CUT: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute pieces ``program, program + programs, ...`` of tiles of BLOCK_M rows of x and 128 of weights, 64 per warpgroup.

    A tile has ``SPLIT`` parts along K; several go to ``parts`` (SPLIT, M, N) in fp32, not scaled. With one part, tiles after
    the ``whole`` ones are cut into ``CUT`` parts of their rows of x. Descriptors have tiles of BLOCK_M / CUT x 64 for x and y
    and 64x64 for weights. Launch with 4 warps.
    """
    if SPLIT > 1:
        # Programmatic dependent launch: the kernel that adds up the parts may start and wait for them.
        gl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
        )
    x_ring = gl.allocate_shared_memory(x_tiles.dtype, [STAGES * CUT, BLOCK_M // CUT, _BLOCK_K], x_tiles.layout)
    weight_ring = gl.allocate_shared_memory(gl.int8, [STAGES * _GROUPS, _ROWS, _BLOCK_K], weight_tiles.layout)
    y_buffers = gl.allocate_shared_memory(x_tiles.dtype, [_GROUPS * CUT, BLOCK_M // CUT, _ROWS], x_tiles.layout)
    # ``ready``: a stage has arrived. ``free``: a warpgroup has used it.
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES * _GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(STAGES * _GROUPS):
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (0, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, whole,
                         pieces, BLOCK_M, SPLIT, CUT, STAGES)),
            (_multiply, (1, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, whole,
                         pieces, BLOCK_M, SPLIT, CUT, STAGES)),
            (_load, (x_tiles, weight_tiles, x_ring, weight_ring, ready, free, M, N, K, whole, pieces, BLOCK_M, SPLIT, CUT,
                     STAGES)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip


#: Rows of x in the largest tile: the largest N of a wgmma instruction, for the most uses of a converted weight.
_MOST = 256


@dataclass(frozen=True)
class Tiling:
    """A tile of ``block_m`` rows of x, with ``split`` parts along K or, in the last wave, ``cut`` parts of its rows."""

    block_m: int
    split: int = 1
    cut: int = 1

    @property
    def stages(self) -> int:
        return _TURN.value * (1 if self.block_m > 128 else 2)


#: Up to this many rows smaller tiles are used.
_FEW = 32
#: Seconds of a step along K by a tile's rows of x; of a launch besides its steps, of the launch that adds up parts, and per byte of
#: parts. Fitted to timings of 9 sizes on an H200.
_STEP = {64: 0.30e-6, 128: 0.40e-6, _MOST: 0.61e-6}
_LAUNCH, _ADDING, _PART_BYTE = 7.6e-6, 2e-6, 0.45e-12


def seconds(m: int, n: int, k: int, programs: int, chosen: Tiling) -> float:
    """Estimated seconds: waves of tiles, and the cost of adding up parts."""
    tiles = _tiles_of(m, n, chosen.block_m)
    rounds = tiles // programs if chosen.cut > 1 else cdiv(tiles * chosen.split, programs)
    last = _STEP[chosen.block_m // chosen.cut] if chosen.cut > 1 else 0.0
    steps = cdiv(cdiv(k, _TURN.value * _BLOCK_K.value), chosen.split) * _TURN.value
    adding = _ADDING + 4 * chosen.split * m * n * _PART_BYTE if chosen.split > 1 else 0.0
    return _LAUNCH + steps * (rounds * _STEP[chosen.block_m] + last) + adding


@functools.lru_cache(maxsize=4096)
def tiling(m: int, n: int, k: int, programs: int) -> Tiling | None:
    """The tiling with the least estimated time. None where more than half of the SMs would idle."""
    candidates = [
        Tiling(block_m, _whole_parts(k, split))
        for block_m in _STEP
        for split in range(1, 9)
        if split == 1 or _tiles_of(m, n, block_m) * split <= 2 * programs
    ]
    candidates += [
        Tiling(block_m, 1, 2)
        for block_m in (128, _MOST)
        if _tiles_of(m, n, block_m) > programs and 0 < 2 * (_tiles_of(m, n, block_m) % programs) <= programs
    ]
    best = min(candidates, key=functools.partial(seconds, m, n, k, programs))
    return best if 2 * _tiles_of(m, n, best.block_m) * best.split >= programs else None


def _whole_parts(k: int, split: int) -> int:
    """``split`` reduced so that every part has a turn: in a part without one the second warpgroup would wait forever."""
    turns = cdiv(k, _TURN.value * _BLOCK_K.value)
    return cdiv(turns, cdiv(turns, split))


def _tiles_of(m: int, n: int, block_m: int) -> int:
    return cdiv(m, block_m) * cdiv(n, _BLOCK_N.value)


def serves(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this is Hopper and TMA loads the operands, which have 16 bits and more than a few rows, and INT8."""
    m, k = x.shape
    several = m > _FEW and x.element_size() == 2 and 0 not in (k, weight.shape[0])
    return gluon_capability(x) == 90 and several and tma_serves(x, weight, x)


def plan(x: torch.Tensor, weight: torch.Tensor) -> Tiling | None:
    """The tiling for ``x`` (M, K) and ``weight`` (N, K); None where this kernel does not serve them or is slower."""
    return tiling(x.shape[0], weight.shape[0], x.shape[1], multiprocessors(x)) if serves(x, weight) else None


def write_product(x: torch.Tensor, weight: torch.Tensor, y: torch.Tensor, scale: torch.Tensor, chosen: Tiling) -> None:
    """Write the product of operands that ``plan`` accepts to contiguous ``y``, through aligned rows if its own are not."""
    (m, n), k, programs, cut = y.shape, x.shape[1], multiprocessors(x), chosen.cut
    split = _whole_parts(k, chosen.split)
    parts = torch.empty((split, m, n), dtype=torch.float32, device=x.device) if split > 1 else None
    depth = _BLOCK_K.value
    out = y if split > 1 or is_aligned(y) else room(y)
    tiles = _tiles_of(m, n, chosen.block_m) * split
    whole = tiles // programs * programs if cut > 1 else tiles
    pieces, box = whole + (tiles - whole) * cut, chosen.block_m // cut
    launch(
        w8a16_matmul_hopper_kernel, (min(pieces, programs),), gluon_tiles(x, box, depth).of(x), gluon_tiles(weight, _ROWS.value, depth).of(weight),
        gluon_tiles(out, box, _ROWS.value).of(out) if split == 1 else None, parts, scale, m, n, k, whole, pieces,
        BLOCK_M=chosen.block_m, SPLIT=split, CUT=cut, STAGES=chosen.stages, num_warps=4,
    )  # fmt: skip
    if parts is not None:
        add_parts(y, parts, scale)
    if out is not y:
        copy_rows(y, out)
