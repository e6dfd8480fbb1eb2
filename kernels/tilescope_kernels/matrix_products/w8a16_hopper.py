"""Products of 16-bit rows and INT8 weights on Hopper, warp-specialized: one warp loads, two warpgroups convert and multiply.

While one warpgroup converts weights, the other's products keep the tensor cores busy. Written in Gluon: in Triton's language
all warps wait for the same loads, so all convert at once and the tensor cores idle. The tiles of the last wave may be split
along K, and another launch adds the parts up in a fixed order.

Two weights are converted in three instructions.
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

from tilescope_kernels._shared.descriptors import gluon_tiles
from tilescope_kernels._shared.launching import cdiv, gluon_capability, launch, multiprocessors
from tilescope_kernels._shared.tile_order import tile_origin
from tilescope_kernels.matrix_products import split_k
from tilescope_kernels.matrix_products.aligned_rows import copy_rows, is_aligned, room
from tilescope_kernels.matrix_products.hopper_store import advance
from tilescope_kernels.matrix_products.scaled_matmul import tma_serves

#: Multiplying warpgroups, and rows of weights of each, the M of a wgmma instruction.
_GROUPS, _ROWS = gl.constexpr(2), gl.constexpr(64)
_BLOCK_N = gl.constexpr(_GROUPS.value * _ROWS.value)
#: Steps of a turn, an unrolled part of the loop, and stages of the ring: weights of one step are converted during the products of
#: the one before. ptxas keeps no wgmma in flight across a loop's back edge, so the last products of a turn are waited for.
_TURN = gl.constexpr(4)
#: Rows of tiles that are visited together, so that their operands stay in L2.
_GROUP_M = gl.constexpr(8)
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


@gluon.jit
def converted(codes, dtype: gl.constexpr):
    """Convert int16, each two INT8 numbers adjacent along K, to two of ``dtype`` in int32, divided by ``unit``."""
    CODE: gl.constexpr = _conversion(dtype)
    return gl.inline_asm_elementwise(CODE, "=r,h", [codes], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _piece(piece, first_tile, split, M, N, K, BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr):
    """First row of weights and of x, first turn along K, and number of turns of a piece. Past K a turn loads zeros."""
    start_m, start_n = tile_origin(first_tile + piece // split, M, N, BLOCK_M, _BLOCK_N, _GROUP_M)
    turns = (K + _TURN * BLOCK_K - 1) // (_TURN * BLOCK_K)
    each = (turns + split - 1) // split
    first = piece % split * each
    return start_n, start_m, first, gl.minimum(each, turns - first)


@gluon.jit
def _load(
    x_tiles, weight_tiles, x_ring, weight_ring, ready, free, M, N, K, first_tile, split, pieces,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Producer warp: load operands as far ahead as the ring allows, those of the next piece during an epilogue."""
    # Every stage starts free: on a fresh mbarrier a wait for the previous phase returns at once.
    slot, phase = gl.to_tensor(0), gl.to_tensor(1)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        start_n, start_m, first, turns = _piece(piece, first_tile, split, M, N, K, BLOCK_M, BLOCK_K)
        for step in range(_TURN * first, _TURN * (first + turns)):
            arrived = ready.index(slot)
            for i in gl.static_range(_GROUPS):
                mbarrier.wait(free.index(slot * _GROUPS + i), phase)
            mbarrier.expect(arrived, (2 * BLOCK_M + _BLOCK_N) * BLOCK_K)
            for i in gl.static_range(_GROUPS):
                place = weight_ring.index(slot * _GROUPS + i)
                tma.async_copy_global_to_shared(weight_tiles, [start_n + i * _ROWS, step * BLOCK_K], arrived, place)
            tma.async_copy_global_to_shared(x_tiles, [start_m, step * BLOCK_K], arrived, x_ring.index(slot))
            slot, phase = advance(slot, phase, _TURN)


@gluon.jit
def _converted(pairs, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """Convert ``pairs`` (_ROWS, K / 2) int16, each two INT8 numbers adjacent along K, to (_ROWS, K) of ``dtype``."""
    both = converted(pairs, dtype)
    first = both.to(gl.int16).to(dtype, bitcast=True)
    second = (both >> 16).to(gl.int16).to(dtype, bitcast=True)
    return gl.convert_layout(gl.join(first, second).reshape(_ROWS, 2 * pairs.shape[1]), LAYOUT, assert_trivial=True)


@gluon.jit
def _multiply(
    WHICH: gl.constexpr, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, first_tile, split, pieces,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Consumer warpgroup: multiply its 64 rows of weights of this program's pieces. Weights are converted during the previous step's products."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    CONVERTED: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    PAIRS: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 1)
    PAIR_TILE: gl.constexpr = gl.NVMMASharedLayout(BLOCK_K, 16)
    weight_ring = weight_ring._reinterpret(gl.int16, [_TURN * _GROUPS, _ROWS, BLOCK_K // 2], PAIR_TILE)
    n = WHICH * _ROWS + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, LAYOUT))
    if WHICH == 1:
        # Lag a step behind the first warpgroup, so that one waits during the other's products: wait for its first use of the first
        # stage. Its second use cannot come before this one's first.
        mbarrier.wait(free.index(0), 0)
    phase = gl.to_tensor(0)
    for piece in range(gl.program_id(0), pieces, gl.num_programs(0)):
        start_n, start_m, _, turns = _piece(piece, first_tile, split, M, N, K, BLOCK_M, BLOCK_K)
        scale = gl.load(scale_ptr + start_n + n, mask=start_n + n < N, other=0.0)
        total = gl.zeros([_ROWS, BLOCK_M], gl.float32, LAYOUT)
        for _ in range(turns):
            for step in gl.static_range(_TURN):
                mbarrier.wait(ready.index(step), phase)
                weight = _converted(weight_ring.index(step * _GROUPS + WHICH).load(PAIRS), x_ring.dtype, CONVERTED)
                total = warpgroup_mma(weight, x_ring.index(step).permute([1, 0]), total, is_async=True)
                if step > 0:
                    total = warpgroup_mma_wait(1, deps=[total])
                    mbarrier.arrive(free.index((step - 1) * _GROUPS + WHICH), count=1)
            total = warpgroup_mma_wait(0, deps=[total])
            mbarrier.arrive(free.index((_TURN - 1) * _GROUPS + WHICH), count=1)
            phase ^= 1
        total *= (unit(x_ring.dtype) * scale)[:, None]
        if parts_ptr is None:
            # Wait until the previous tile has left the buffer. TMA clips at the edges.
            tma.store_wait(0)
            y_buffers.index(WHICH).permute([1, 0]).store(total.to(y_tiles.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(y_tiles, [start_m, start_n + WHICH * _ROWS], y_buffers.index(WHICH))
        else:
            m = gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, LAYOUT))
            gl.store(parts_ptr + piece.to(gl.int64) * (BLOCK_M * _BLOCK_N) + m[None, :] * _BLOCK_N + n[:, None], total)
    if parts_ptr is None:
        tma.store_wait(0)


# Specialized on extents of 1, ptxas crashed with a segmentation fault in another kernel (sm_90, CUDA 12.8).
@gluon.jit(do_not_specialize=["M", "N", "K", "first_tile", "split", "pieces"])
def w8a16_matmul_hopper_kernel(
    x_tiles, weight_tiles, y_tiles, parts_ptr, scale_ptr, M, N, K, first_tile, split, pieces,
    BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr,
):  # fmt: skip
    """Compute pieces ``program, program + programs, ...`` of the tiles from ``first_tile`` on, ``split`` pieces a tile.

    A tile has BLOCK_M rows of x and 128 of weights, 64 per warpgroup. Several pieces, which are parts along K, go to ``parts``
    (pieces, BLOCK_M, 128) in fp32. Descriptors have tiles of BLOCK_M x BLOCK_K for x, 64 x BLOCK_K for weights and
    BLOCK_M x 64 for y. Launch with 4 warps.
    """
    # Programmatic dependent launch: the parts of the last tiles, and the kernel that adds them up, may start and wait.
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    x_ring = gl.allocate_shared_memory(x_tiles.dtype, [_TURN, BLOCK_M, BLOCK_K], x_tiles.layout)
    weight_ring = gl.allocate_shared_memory(gl.int8, [_TURN * _GROUPS, _ROWS, BLOCK_K], weight_tiles.layout)
    y_buffers = gl.allocate_shared_memory(x_tiles.dtype, [_GROUPS, BLOCK_M, _ROWS], x_tiles.layout)
    # ``ready``: a stage has arrived. ``free``: a warpgroup has used it.
    ready = gl.allocate_shared_memory(gl.int64, [_TURN, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [_TURN * _GROUPS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(_TURN):
        mbarrier.init(ready.index(i), count=1)
    for i in gl.static_range(_TURN * _GROUPS):
        mbarrier.init(free.index(i), count=1)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (0, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, first_tile,
                         split, pieces, BLOCK_M, BLOCK_K)),
            (_multiply, (1, y_tiles, parts_ptr, scale_ptr, x_ring, weight_ring, y_buffers, ready, free, M, N, K, first_tile,
                         split, pieces, BLOCK_M, BLOCK_K)),
            (_load, (x_tiles, weight_tiles, x_ring, weight_ring, ready, free, M, N, K, first_tile, split, pieces, BLOCK_M, BLOCK_K)),
        ],
        [4, 1],
        [_MULTIPLYING, _LOADING],
    )  # fmt: skip
    if parts_ptr is not None:
        # The kernel that adds up parts waits for this one alone, so this one must not end before the one of the whole tiles.
        gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


#: Rows of x in the largest tile: the largest N of a wgmma instruction, for the most uses of a converted weight.
_MOST = 256


@dataclass(frozen=True)
class Tiling:
    """A tile of ``block_m`` rows of x. The tiles of the last wave have ``split`` parts along K."""

    block_m: int
    split: int = 1

    @property
    def block_k(self) -> int:
        """Elements of a step along K: as many as the ring of ``_TURN`` steps has room for."""
        return 64 if self.block_m > 128 else 128

    def turns(self, k: int) -> int:
        return cdiv(k, _TURN.value * self.block_k)


#: Up to this many rows smaller tiles are used.
_FEW = 32
#: Seconds of 64 elements along K by a tile's rows of x; of a launch besides its steps, of a second one for parts, of the launch that
#: adds them up, of each part of a tile, and per byte of parts. Fitted to timings of 24 sizes on an H200.
_STEP = {64: 0.25e-6, 128: 0.40e-6, _MOST: 0.70e-6}
_LAUNCH, _SECOND, _ADDING, _PART, _PART_BYTE = 4e-6, 1.9e-6, 2.7e-6, 0.7e-6, 0.36e-12


def seconds(m: int, n: int, k: int, programs: int, chosen: Tiling) -> float:
    """Estimated seconds: waves of tiles, and the cost of adding up parts."""
    full, last = divmod(_tiles_of(m, n, chosen.block_m), programs)
    steps = chosen.turns(k) * _TURN.value * chosen.block_k / 64
    waves, adding = full + (last > 0), 0.0
    if chosen.split > 1:
        waves = full + cdiv(last * chosen.split, programs) / chosen.split
        part_bytes = 4 * chosen.split * last * min(m, chosen.block_m) * _BLOCK_N.value
        adding = _ADDING + chosen.split * _PART + part_bytes * _PART_BYTE + (_SECOND if full else 0)
    return _LAUNCH + steps * waves * _STEP[chosen.block_m] + adding


@functools.lru_cache(maxsize=4096)
def tiling(m: int, n: int, k: int, programs: int) -> Tiling | None:
    """The tiling with the least estimated time. None where more than half of the SMs would idle."""
    candidates = [
        _whole_parts(Tiling(block_m, split), k)
        for block_m in _STEP
        for split in range(1, 9)
        if split == 1 or 0 < _tiles_of(m, n, block_m) % programs * split <= 2 * programs
    ]
    best = min(candidates, key=functools.partial(seconds, m, n, k, programs))
    return best if 2 * _tiles_of(m, n, best.block_m) * best.split >= programs else None


def _whole_parts(tiling: Tiling, k: int) -> Tiling:
    """``split`` reduced so that every part has a turn: in a part without one the second warpgroup would wait forever."""
    turns = tiling.turns(k)
    return Tiling(tiling.block_m, cdiv(turns, cdiv(turns, tiling.split)))


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
    (m, n), k, programs = y.shape, x.shape[1], multiprocessors(x)
    split, block_m, block_k = _whole_parts(chosen, k).split, chosen.block_m, chosen.block_k
    tiles = _tiles_of(m, n, block_m)
    whole = tiles if split == 1 else tiles // programs * programs
    pieces = (tiles - whole) * split
    out = room(y) if whole and not is_aligned(y) else y
    loaded = gluon_tiles(x, block_m, block_k).of(x), gluon_tiles(weight, _ROWS.value, block_k).of(weight)
    constants = {"BLOCK_M": block_m, "BLOCK_K": block_k, "num_warps": 4}
    if whole:
        stored = gluon_tiles(out, block_m, _ROWS.value).of(out)
        given = *loaded, stored, None, scale, m, n, k, 0, 1, whole
        launch(w8a16_matmul_hopper_kernel, (min(whole, programs),), *given, **constants)
    if pieces:
        parts = torch.empty((pieces, block_m, _BLOCK_N.value), dtype=torch.float32, device=x.device)
        given = *loaded, None, parts, scale, m, n, k, whole, split, pieces
        pdl = {"launch_pdl": True} if whole else {}
        launch(w8a16_matmul_hopper_kernel, (min(pieces, programs),), *given, **constants, **pdl)
        tiles_of = {"BLOCK_M": block_m, "BLOCK_N": _BLOCK_N.value, "GROUP_M": _GROUP_M.value, "SPLITS": split}
        split_k.add_parts(out, parts, whole, {"C_COLUMNS": False, "SCALES": 0, **tiles_of}, pdl=True, elements=256)
    if out is not y:
        copy_rows(y, out)
