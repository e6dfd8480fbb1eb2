"""Cross-entropy and its gradient with one read of the logits: a row stays on chip between its sum and its gradient.

A row of 128256 logits in 16 bits takes 250 KB, which fits in shared memory and registers together. The kernel is in Gluon,
because Triton controls neither. The Triton kernel reads the row a second time, from L2.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.exponentials import LOG2_E
from tilescope_kernels._shared.launching import cdiv, gluon_capability, multiprocessors, shared_memory
from tilescope_kernels._shared.row_ends import begin_of, ends_of, whole_part

#: Initial maximum: finite, so that -inf minus it is not NaN, and below every 16-bit number.
_LOWEST = gl.constexpr(-3.4028234663852886e38)
#: An access of 16 bytes, in 16-bit elements and in 32-bit words.
_WIDTH, _WORDS = 8, gl.constexpr(4)
#: Fewest columns. Shorter rows go to the Triton kernel, whose programs do not prefetch a next row.
_LEAST = 16384
#: Most tiles in registers.
_TAIL = 10
#: Most programs per SM, of eight warps with 64 registers per thread, and of rows that are not 16-byte aligned.
_SHARING, _SHARING_SKEWED = 4, 2
#: Bytes of shared memory for reductions and for the system.
_OTHER = 2048


@gluon.jit
def _unpack(words, DTYPE: gl.constexpr):
    """The two 16-bit floats of each 32-bit word, in fp32."""
    if gl.bfloat16 == DTYPE:
        low = (words << 16).to(gl.float32, bitcast=True)
        high = (words & -65536).to(gl.float32, bitcast=True)
    else:
        low, high = gl.inline_asm_elementwise(
            "{.reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h;}", "=f,=f,r", [words],
            dtype=(gl.float32, gl.float32), is_pure=True, pack=1,
        )  # fmt: skip
    return low, high


@gluon.jit
def _pack(low, high, DTYPE: gl.constexpr):
    ASM: gl.constexpr = "cvt.rn.bf16x2.f32 $0, $2, $1;" if gl.bfloat16 == DTYPE else "cvt.rn.f16x2.f32 $0, $2, $1;"
    return gl.inline_asm_elementwise(ASM, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def _merge(largest, total, other_largest, other_total):
    larger = gl.maximum(largest, other_largest)
    mine = gl.exp2((largest - larger) * LOG2_E)
    return larger, total * mine + other_total * gl.exp2((other_largest - larger) * LOG2_E)


@gluon.jit
def _add(words, largest, total, plain, here, DTYPE: gl.constexpr, SMOOTH: gl.constexpr):
    """Update each thread's maximum, sum of exponentials and plain sum with a tile. ``here`` is the mask.

    The sum is rescaled once for all of a thread's elements of the tile, so an element costs one exponential.
    """
    low, high = _unpack(words, DTYPE)
    larger = gl.maximum(largest, gl.max(gl.maximum(low, high), 1))
    less = larger[:, None]
    exponentials = gl.exp2((low - less) * LOG2_E) + gl.exp2((high - less) * LOG2_E)
    total = total * gl.exp2((largest - larger) * LOG2_E) + gl.sum(exponentials, 1)
    if SMOOTH:
        plain += gl.sum(gl.where(here, low + high, 0.0), 1)
    return larger, total, plain


@gluon.jit
def _grade(ptr, words, largest, factor, bias, here, DTYPE: gl.constexpr, SMOOTH: gl.constexpr):
    """Store ``factor * exp(x - largest) + bias`` of one tile."""
    low, high = _unpack(words, DTYPE)
    low = gl.exp2((low - largest) * LOG2_E) * factor
    high = gl.exp2((high - largest) * LOG2_E) * factor
    if SMOOTH:
        low += bias
        high += bias
    gl.store(ptr, _pack(low, high, DTYPE), mask=here, cache_modifier=".cs")


@gluon.jit
def _fetch(place, ptr, wanted):
    """Start an asynchronous copy to shared memory, as its own group."""
    async_copy.async_copy_global_to_shared(place, ptr, mask=wanted)
    async_copy.commit_group()


@gluon.jit
def _tail_of(x_words, here, wanted, first, TILE: gl.constexpr, TAIL: gl.constexpr, DTYPE: gl.constexpr):
    """Load a row's last tiles to registers. Masked words hold two -inf, which add nothing to the sums."""
    NOTHING: gl.constexpr = -8323200 if gl.bfloat16 == DTYPE else -67044352
    tail = ()
    for t in gl.static_range(TAIL):
        mask = (here if t == TAIL - 1 else wanted) & wanted
        tail += (gl.load(x_words + (first + t) * TILE, mask=mask, other=NOTHING),)
    return tail


@gluon.jit
def _loss(
    loss_ptr, parts_ptr, row, largest, total, plain, ends, at_end, target, chosen, scale, counts, smoothing, columns,
    SMOOTH: gl.constexpr,
):  # fmt: skip
    """Reduce over threads and store the row's loss. Returns maximum, factor, bias and the gradient at the target.

    ``ends`` are logits that the sums do not have yet, beside -inf; or None.
    """
    largest, total = gl.reduce((largest, total), 0, _merge)
    plain = gl.sum(plain, 0)
    if ends is not None:
        less = gl.maximum(largest, gl.max(ends, 0))
        total = total * gl.exp2((largest - less) * LOG2_E) + gl.sum(gl.exp2((ends - less) * LOG2_E), 0)
        if SMOOTH:
            plain += gl.sum(gl.where(at_end & counts, ends, 0.0), 0)
        largest = less
    # The total is 0 if all logits are -inf, NaN if one is +inf or NaN: softmax is undefined.
    defined = (total > 0.0) & (total < float("inf"))
    log = gl.where(defined, gl.log(total), float("nan"))
    loss = log + (largest - chosen)
    if SMOOTH:
        loss = (1.0 - smoothing) * loss + smoothing * (log + (largest - plain / columns))
    gl.store(loss_ptr + row, gl.where(counts, loss, 0.0))
    if parts_ptr is not None:
        shift = gl.where(total == 0.0, 0.0, largest)
        gl.store(parts_ptr + 2 * row, gl.where(counts, shift, 0.0))
        gl.store(parts_ptr + 2 * row + 1, gl.where(counts, log, 0.0))
    factor = gl.where(counts, gl.where(defined, scale / total, float("nan")), 0.0)
    bias = gl.where(counts, smoothing / columns * -scale, 0.0)
    value = gl.exp2((chosen - largest) * LOG2_E) * factor - (1.0 - smoothing) * scale
    if SMOOTH:
        value += bias
    return largest, factor, bias, value


@gluon.jit
def _add_tail(tail, largest, total, plain, here, everywhere, DTYPE: gl.constexpr, SMOOTH: gl.constexpr):
    for t in gl.static_range(len(tail)):
        mask = here if t == len(tail) - 1 else everywhere
        largest, total, plain = _add(tail[t], largest, total, plain, mask, DTYPE, SMOOTH)
    return largest, total, plain


@gluon.jit
def _target_of(x_row, target, counts, columns):
    """The target's logit; NaN if the target is no class."""
    inside = counts & (target >= 0) & (target < columns)
    return gl.load(x_row + target, mask=inside, other=float("nan")).to(gl.float32)


@gluon.jit
def _ends(x_row, end, wanted):
    """Logits of the ends of a row that is not 16-byte aligned, in fp32; -inf where none is wanted."""
    return gl.load(x_row + end, mask=wanted, other=float("-inf")).to(gl.float32)


@gluon.jit
def _take(
    x_words, even, odd, largest, total, plain, everywhere, wanted, half,
    TILE: gl.constexpr, LAYOUT: gl.constexpr, DTYPE: gl.constexpr, SMOOTH: gl.constexpr,
):  # fmt: skip
    """Load the first row, overlapping nothing, and sum its tiles in shared memory."""
    for j in range(half):
        _fetch(even.index(j), x_words + 2 * j * TILE, wanted)
        _fetch(odd.index(j), x_words + (2 * j + 1) * TILE, wanted)
    async_copy.wait_group(0)
    for j in range(half):
        largest, total, plain = _add(even.index(j).load(LAYOUT), largest, total, plain, everywhere, DTYPE, SMOOTH)
        largest, total, plain = _add(odd.index(j).load(LAYOUT), largest, total, plain, everywhere, DTYPE, SMOOTH)
    return largest, total, plain


@gluon.jit
def _replace(
    dx_words, x_words, even, odd, row_largest, factor, bias, largest, total, plain, everywhere, wanted, half,
    AHEAD: gl.constexpr, TILE: gl.constexpr, LAYOUT: gl.constexpr, DTYPE: gl.constexpr,
    SMOOTH: gl.constexpr,
):  # fmt: skip
    """Write a row's gradient from shared memory while the next row is fetched to its place, and sum all but its last tiles."""
    for i in gl.static_range(AHEAD):
        words = even.index(i).load(LAYOUT)
        if i > 0:
            _fetch(odd.index(i - 1), x_words + (2 * i - 1) * TILE, wanted)
        _grade(dx_words + 2 * i * TILE, words, row_largest, factor, bias, None, DTYPE, SMOOTH)
        words = odd.index(i).load(LAYOUT)
        _fetch(even.index(i), x_words + 2 * i * TILE, wanted)
        _grade(dx_words + (2 * i + 1) * TILE, words, row_largest, factor, bias, None, DTYPE, SMOOTH)
    for j in range(AHEAD, half):
        async_copy.wait_group(2 * AHEAD - 2)
        words = even.index(j).load(LAYOUT)
        come = even.index(j - AHEAD).load(LAYOUT)
        _fetch(odd.index(j - 1), x_words + (2 * j - 1) * TILE, wanted)
        _grade(dx_words + 2 * j * TILE, words, row_largest, factor, bias, None, DTYPE, SMOOTH)
        largest, total, plain = _add(come, largest, total, plain, everywhere, DTYPE, SMOOTH)
        async_copy.wait_group(2 * AHEAD - 2)
        words = odd.index(j).load(LAYOUT)
        come = odd.index(j - AHEAD).load(LAYOUT)
        _fetch(even.index(j), x_words + 2 * j * TILE, wanted)
        _grade(dx_words + (2 * j + 1) * TILE, words, row_largest, factor, bias, None, DTYPE, SMOOTH)
        largest, total, plain = _add(come, largest, total, plain, everywhere, DTYPE, SMOOTH)
    _fetch(odd.index(half - 1), x_words + (2 * half - 1) * TILE, wanted)
    return largest, total, plain


@gluon.jit
def _await_last(
    even, odd, largest, total, plain, everywhere, half,
    AHEAD: gl.constexpr, LAYOUT: gl.constexpr, DTYPE: gl.constexpr, SMOOTH: gl.constexpr,
):  # fmt: skip
    """Sum the last ``2 * AHEAD`` tiles that ``_replace`` fetched."""
    for i in gl.static_range(AHEAD):
        async_copy.wait_group(2 * AHEAD - 1 - 2 * i)
        come = even.index(half - AHEAD + i).load(LAYOUT)
        largest, total, plain = _add(come, largest, total, plain, everywhere, DTYPE, SMOOTH)
        async_copy.wait_group(2 * AHEAD - 2 - 2 * i)
        come = odd.index(half - AHEAD + i).load(LAYOUT)
        largest, total, plain = _add(come, largest, total, plain, everywhere, DTYPE, SMOOTH)
    return largest, total, plain


@gluon.jit(do_not_specialize=["half"])
def cross_entropy_resident_kernel(  # noqa: PLR0915 - a row and the next one at once, and their ends
    loss_ptr, parts_ptr, dx_ptr, x_ptr, target_ptr, count_ptr, x_stride, rows, columns, ignore_index, smoothing, half,
    ROOM: gl.constexpr, TAIL: gl.constexpr, AHEAD: gl.constexpr, SMOOTH: gl.constexpr, SKEWED: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Loss and gradient of rows ``program, program + programs, ...``, as ``cross_entropy_kernel``. ``dx`` may be ``x``.

    A row is ``2 * half`` tiles in shared memory, which has room for ``2 * ROOM``, and ``TAIL`` in registers, of 16 bytes per thread; only the last tile may be
    partial. While the gradient of tile i is written, tile i - 1 of the next row is fetched to where this row's was, and tile
    i - 2 * AHEAD of the next row is summed. Even and odd tiles are two allocations, so that a step never reads the one that it
    fetches to, and needs no barrier besides its wait.

    Pointers are multiples of 16 bytes; ``AHEAD`` is at most ``half``. ``columns`` and ``x_stride`` are multiples of 16, or rows are
    ``SKEWED``: not 16-byte aligned. Tiles are then of what aligned accesses of a row cover, and its two ends are held apart.
    ``programs`` is a multiple of 8 or at least ``rows``, so that all rows of a program have the same misalignment.
    """
    LANES: gl.constexpr = 32 * num_warps
    TILE: gl.constexpr = LANES * _WORDS
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [num_warps, 1], [1, 0])
    LANE: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 1, [1, 0])
    first = 2 * half  # of the tiles in registers
    DTYPE: gl.constexpr = x_ptr.dtype.element_ty
    even = gl.allocate_shared_memory(gl.int32, [ROOM, LANES, 4], SHARED)
    odd = gl.allocate_shared_memory(gl.int32, [ROOM, LANES, 4], SHARED)
    lane = gl.arange(0, LANES, layout=LANE)[:, None]
    offsets = lane * _WORDS + gl.arange(0, 4, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    everywhere = gl.full([LANES, 4], True, gl.int1, LAYOUT)
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    before = 0
    length = columns
    ends = None
    end = None
    at_end = None
    if SKEWED:
        before, length = whole_part(program.to(gl.int64) * x_stride, columns, 8)
        end, at_end = ends_of(before, length, columns, 8, gl.BlockedLayout([1], [32], [num_warps], [0]))
    here = everywhere & (((first + TAIL - 1) * TILE + lane * _WORDS) * 2 < length)
    pairs = gl.pointer_type(gl.int32)
    lowest = gl.full([LANES], _LOWEST, gl.float32, LANE)
    zeros = gl.zeros([LANES], gl.float32, LANE)
    scale = 1.0
    if count_ptr is not None:
        scale = 1.0 / gl.load(count_ptr).to(gl.float32)

    # Ignored rows are not read: masked words are zeros or -inf, and the factor is 0, so their gradient is 0.
    target = gl.load(target_ptr + program)
    counts = target != ignore_index
    x_row = x_ptr + begin_of(program, x_stride, before, 8, SKEWED)
    chosen = _target_of(x_row - before, target, counts, columns)
    if SKEWED:
        ends = _ends(x_row, end, at_end & counts)
    x_words = x_row.to(pairs, bitcast=True) + offsets
    tail = _tail_of(x_words, here, everywhere & counts, first, TILE, TAIL, DTYPE)
    largest, total, plain = _take(
        x_words, even, odd, lowest, zeros, zeros, everywhere, everywhere & counts, half, TILE, LAYOUT, DTYPE, SMOOTH
    )  # fmt: skip
    largest, total, plain = _add_tail(tail, largest, total, plain, here, everywhere, DTYPE, SMOOTH)
    next_target = gl.load(target_ptr + gl.minimum(program + programs, rows - 1))
    for row in range(program, rows, programs):
        counts = target != ignore_index
        row_largest, factor, bias, value = _loss(
            loss_ptr, parts_ptr, row.to(gl.int64), largest, total, plain, ends, at_end, target, chosen, scale, counts, smoothing,
            columns, SMOOTH,
        )  # fmt: skip
        inside = counts & (target >= 0) & (target < columns)
        dx_row = dx_ptr + begin_of(row, x_stride, before, 8, SKEWED)
        place = dx_row + (target - before)
        dx_words = dx_row.to(pairs, bitcast=True) + offsets
        # Registers first: the next row's tail is loaded to them next.
        for t in gl.static_range(TAIL):
            mask = here if t == TAIL - 1 else None
            _grade(dx_words + (first + t) * TILE, tail[t], row_largest, factor, bias, mask, DTYPE, SMOOTH)
        if SKEWED:
            dx_end = gl.exp2((ends - row_largest) * LOG2_E) * factor
            if SMOOTH:
                dx_end += bias
            gl.store(dx_row + end, dx_end.to(DTYPE), mask=at_end)

        target = next_target
        counts = (row + programs < rows) & (target != ignore_index)
        x_row = x_ptr + begin_of(row + programs, x_stride, before, 8, SKEWED)
        x_words = x_row.to(pairs, bitcast=True) + offsets
        tail = _tail_of(x_words, here, everywhere & counts, first, TILE, TAIL, DTYPE)
        chosen = _target_of(x_row - before, target, counts, columns)
        if SKEWED:
            ends = _ends(x_row, end, at_end & counts)
        next_target = gl.load(target_ptr + gl.minimum(row + 2 * programs, rows - 1))
        largest, total, plain = _replace(
            dx_words, x_words, even, odd, row_largest, factor, bias, lowest, zeros, zeros, everywhere,
            everywhere & counts, half, AHEAD, TILE, LAYOUT, DTYPE, SMOOTH,
        )  # fmt: skip
        # The tail has arrived: sum it while the last fetches are in flight.
        largest, total, plain = _add_tail(tail, largest, total, plain, here, everywhere, DTYPE, SMOOTH)
        largest, total, plain = _await_last(
            even, odd, largest, total, plain, everywhere, half, AHEAD, LAYOUT, DTYPE, SMOOTH
        )  # fmt: skip
        # Storing the target's element separately is cheaper than comparing every column. The barrier orders it after all tiles.
        gl.thread_barrier()
        gl.store(place, value.to(DTYPE), mask=inside)


def plan(x: torch.Tensor, dx: torch.Tensor) -> tuple[int, int, dict[str, int]] | None:
    """Number of programs, ``half`` and constants of the kernel for the rows of ``x``; None where this kernel cannot run.

    Programs share an SM if their rows fit, with half the warps each: one computes while another waits at a barrier.
    """
    rows, columns = x.shape
    if gluon_capability(x) == 0 or x.element_size() != 2 or columns < _LEAST or x.data_ptr() % 16 or dx.data_ptr() % 16:
        return None
    # The compiler proves 16-byte alignment from extents that are multiples of 16.
    skewed = columns % 16 > 0 or x.stride(0) % 16 > 0
    room = shared_memory(x)
    sharing = max(1, min(_SHARING_SKEWED if skewed else _SHARING, room // (2 * columns + _OTHER)))
    warps = 16 if sharing == 1 else 8
    tiles = cdiv(columns // _WIDTH, 32 * warps)
    most = (room // sharing - _OTHER) // (2 * 32 * warps * _WIDTH * x.element_size())
    half = min((tiles - 1) // 2, most)
    if tiles - 2 * half > _TAIL:
        return None
    programs = sharing * multiprocessors(x)
    if skewed:
        programs = programs // _WIDTH * _WIDTH
    tail, ahead = tiles - 2 * half, min(half, 4 if sharing == 1 else 3)
    parameters = {"ROOM": most, "TAIL": tail, "AHEAD": ahead, "SKEWED": skewed, "num_warps": warps}
    return min(rows, programs), half, parameters
