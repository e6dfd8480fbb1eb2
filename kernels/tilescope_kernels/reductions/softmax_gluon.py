"""Softmax's long rows in Gluon, which controls shared memory: a row stays there between its sum and its result.

Forward, two programs share an SM, so that one loads its row while another one computes. In Triton a row of 48 KB and more is read a
second time, from L2. Longer rows are as fast read twice, or faster, and so are rows of which a program would hold a part.

Backward, rows are split over several programs, which read their part once and exchange the row's sum. They keep their part of several
rows in a ring of shared memory: rows being copied (``AHEAD``), one being summed, and rows that wait for the sums of their other parts
(``LAG``). Programs wait for each other, so all must be resident: the launch is cooperative.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared import launching
from tilescope_kernels._shared.exponentials import LOG2_E
from tilescope_kernels._shared.launching import gluon_capability
from tilescope_kernels._shared.row_ends import begin_of, ends_of, whole_part

#: Initial maximum: finite, so that -inf minus it is not NaN.
_LOWEST = gl.constexpr(-3.4028234663852886e38)
#: Tiles per group of copies, which are awaited together.
_GROUP = gl.constexpr(2)
#: Warps of a program, and for rows that are not 16-byte aligned.
_WARPS, _WARPS_SKEWED = 16, 8
#: Bytes of shared memory of a program for reductions and for the system.
_OTHER = 1536
#: Most bytes of a row in registers.
_IN_REGISTERS = 16 * 1024
_NEGATIVE_INFINITY = gl.constexpr(float("-inf"))
#: Bytes of a part, programs per SM, warps, rows copied ahead, and rows waiting for their sums; for rows of more than ``_LANES`` parts
#: the second.
_PLANS = ((4096, 4, 4, 2, 3), (8192, 2, 8, 3, 2))
_LANES = 128
#: 32-bit registers of an SM.
_REGISTERS = 65536


@gluon.jit
def _merge(largest, total, other_largest, other_total):
    larger = gl.maximum(largest, other_largest)
    mine = gl.exp2((largest - larger) * LOG2_E)
    return larger, total * mine + other_total * gl.exp2((other_largest - larger) * LOG2_E)


@gluon.jit
def _add(x, largest, total):
    """Update each thread's maximum and sum of exponentials with a tile. The sum is rescaled once per tile."""
    larger = gl.maximum(largest, gl.max(x, 1))
    exponentials = gl.sum(gl.exp2((x - larger[:, None]) * LOG2_E), 1)
    return larger, total * gl.exp2((largest - larger) * LOG2_E) + exponentials


@gluon.jit
def _store(ptr, x, largest, inverse, mask):
    y = gl.exp2((x - largest) * LOG2_E) * inverse
    gl.store(ptr, y.to(ptr.dtype.element_ty), mask=mask, cache_modifier=".cs")


@gluon.jit
def _fetch(x_row, here, HELD: gl.constexpr, TAIL: gl.constexpr, TILE: gl.constexpr, SHARED: gl.constexpr):
    """Start copies of the first ``HELD`` tiles to shared memory, and load ``TAIL`` tiles. The last tile of all has the mask ``here``."""
    places = ()
    for i in gl.static_range(HELD):
        place = gl.allocate_shared_memory(x_row.dtype.element_ty, here.shape, SHARED)
        async_copy.async_copy_global_to_shared(place, x_row + i * TILE, mask=here if i == HELD + TAIL - 1 else None)
        if i % _GROUP == _GROUP - 1 or i == HELD - 1:
            async_copy.commit_group()
        places += (place,)
    tail = ()
    for i in gl.static_range(TAIL):
        mask = here if i == TAIL - 1 else None
        tail += (gl.load(x_row + (HELD + i) * TILE, mask=mask),)
    return places, tail


@gluon.jit
def _sum(places, tail, here, largest, total, LAYOUT: gl.constexpr):
    """Each thread's maximum and sum of exponentials."""
    HELD: gl.constexpr = len(places)
    for i in gl.static_range(HELD):
        if i % _GROUP == 0:
            async_copy.wait_group((HELD - 1) // _GROUP - i // _GROUP)
        x = places[i].load(LAYOUT).to(gl.float32)
        if i == HELD + len(tail) - 1:  # masked elements were not copied
            x = gl.where(here, x, _NEGATIVE_INFINITY)
        largest, total = _add(x, largest, total)
    for i in gl.static_range(len(tail)):
        x = tail[i].to(gl.float32)
        if i == len(tail) - 1:
            x = gl.where(here, x, _NEGATIVE_INFINITY)
        largest, total = _add(x, largest, total)
    return largest, total


@gluon.jit
def _write(y_row, places, tail, here, largest, inverse, TILE: gl.constexpr, LAYOUT: gl.constexpr):
    HELD: gl.constexpr = len(places)
    for i in gl.static_range(len(tail)):
        mask = here if i == len(tail) - 1 else None
        _store(y_row + (HELD + i) * TILE, tail[i].to(gl.float32), largest, inverse, mask)
    for i in gl.static_range(HELD):
        mask = here if i == HELD + len(tail) - 1 else None
        _store(y_row + i * TILE, places[i].load(LAYOUT).to(gl.float32), largest, inverse, mask)


@gluon.jit
def softmax_held_kernel(
    y_ptr, x_ptr, x_stride, columns,
    HELD: gl.constexpr, TAIL: gl.constexpr, WIDTH: gl.constexpr, SKEWED: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """One row per program, in tiles of 16 bytes per thread: ``HELD`` in shared memory and ``TAIL`` in registers.

    ``columns`` and ``x_stride`` are multiples of ``WIDTH``, or rows of x and y are ``SKEWED``: contiguous but not 16-byte aligned.
    Tiles are then of what aligned accesses of the row cover, and its two ends are held apart.
    """
    LANES: gl.constexpr = 32 * num_warps
    TILE: gl.constexpr = LANES * WIDTH
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, WIDTH], [32, 1], [num_warps, 1], [1, 0])
    LANE: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [1, 0])
    row = gl.program_id(0).to(gl.int64)
    # Division and multiplication prove the alignment to the compiler.
    length = columns // WIDTH * WIDTH
    x_start = row * (x_stride // WIDTH * WIDTH)
    y_start = row * length
    if SKEWED:
        before, length = whole_part(row * columns, columns, WIDTH)
        x_start = begin_of(row, columns, before, WIDTH, True)
        y_start = x_start
    lane = gl.arange(0, LANES, layout=LANE)[:, None]
    offsets = lane * WIDTH + gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    here = (HELD + TAIL - 1) * TILE + offsets < length
    places, tail = _fetch(x_ptr + x_start + offsets, here, HELD, TAIL, TILE, SHARED)
    if SKEWED:
        end, at_end = ends_of(before, length, columns, WIDTH, gl.BlockedLayout([1], [32], [num_warps], [0]))
        ends = gl.load(x_ptr + x_start + end, mask=at_end, other=float("-inf")).to(gl.float32)
    largest = gl.full([LANES], _LOWEST, gl.float32, LANE)
    total = gl.zeros([LANES], gl.float32, LANE)
    largest, total = _sum(places, tail, here, largest, total, LAYOUT)
    largest, total = gl.reduce((largest, total), 0, _merge)
    if SKEWED:
        largest_end = gl.maximum(gl.max(ends, 0), _LOWEST)
        total_end = gl.sum(gl.exp2((ends - largest_end) * LOG2_E), 0)
        largest, total = _merge(largest, total, largest_end, total_end)
    # The sum is infinite only if x is, and 0 only for a row of -inf, where 0 * (1 / 0) is NaN. PyTorch returns NaN for both.
    inverse = gl.where(total == float("inf"), float("nan"), 1.0 / total)
    _write(y_ptr + y_start + offsets, places, tail, here, largest, inverse, TILE, LAYOUT)
    if SKEWED:
        _store(y_ptr + y_start + end, ends, largest, inverse, at_end)


def softmax_with_held_rows(y: torch.Tensor, x: torch.Tensor, skewed: bool) -> bool:
    """Fill y and return True, or return False if two programs with such rows do not fit an SM."""
    rows, columns = x.shape
    width = 16 // x.element_size()
    if gluon_capability(x) < 80 or x.data_ptr() % 16 or not (skewed or columns % width == x.stride(0) % width == 0):
        return False
    warps = _WARPS_SKEWED if skewed else _WARPS
    tile = 512 * warps
    tiles = launching.cdiv(columns // width * 16, tile)
    held = min(tiles, (launching.shared_memory(x) // 2 - _OTHER) // tile)
    if (tiles - held) * tile > _IN_REGISTERS:
        return False
    launching.launch(
        softmax_held_kernel, (rows,),
        y, x, x.stride(0), columns,
        HELD=held, TAIL=tiles - held, WIDTH=width, SKEWED=skewed, num_warps=warps,
    )  # fmt: skip
    return True


@gluon.jit
def _copy(shared, ptr, columns, wanted, WHOLE: gl.constexpr, LAYOUT: gl.constexpr):
    """Start an asynchronous copy (``cp.async``) of a part of a row to shared memory, 16 bytes per access, if ``wanted``."""
    column = gl.arange(0, shared.shape[0], layout=LAYOUT)
    mask = gl.full([shared.shape[0]], True, gl.int1, LAYOUT) & wanted
    if not WHOLE:
        mask = mask & (column < columns)
    async_copy.async_copy_global_to_shared(shared, ptr + column, mask=mask)


@gluon.jit
def _publish(words_ptr, total):
    """Store an fp32 sum as a word, for the programs of the row's other parts. All bits set mean not yet published."""
    word = total.to(gl.int32, bitcast=True)
    gl.store(words_ptr, gl.where(word == -1, 0x7FFFFFFF, word), cache_modifier=".cg")


@gluon.jit
def _ask(words_ptr, parts, row, wanted, LANES: gl.constexpr, LAYOUT: gl.constexpr):
    """Addresses of the published sums of a row's parts, and their current words. Lanes without a part, or not ``wanted``, get 0."""
    part = gl.arange(0, LANES, layout=LAYOUT)
    exist = ((part < parts) & wanted).to(gl.int32)
    place = words_ptr + row.to(gl.int64) * parts + part
    word = gl.inline_asm_elementwise(
        """{
        .reg .pred wanted;
        mov.b32 $0, 0;
        setp.ne.s32 wanted, $2, 0;
        @wanted ld.relaxed.gpu.global.b32 $0, [$1];
        }""",
        "=&r,l,r", [place, exist], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    return place, word


@gluon.jit
def _await(place, word):
    """The sum of each part, polled until published. Only threads whose word is missing spin; the others wait at the next barrier."""
    word = gl.inline_asm_elementwise(
        """{
        .reg .pred absent;
        mov.b32 $0, $2;
        again:
        setp.eq.s32 absent, $0, -1;
        @!absent bra done;
        ld.relaxed.gpu.global.b32 $0, [$1];
        bra again;
        done:
        }""",
        "=&r,l,r", [place, word], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    return word.to(gl.float32, bitcast=True)


@gluon.jit
def softmax_parts_backward_shared_kernel(
    dx_ptr, words_ptr, dy_ptr, y_ptr, rows, columns, parts,
    BLOCK: gl.constexpr, WIDTH: gl.constexpr, WHOLE: gl.constexpr, AHEAD: gl.constexpr, LAG: gl.constexpr,
    LANES: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """``dx = (dy - sum(dy * y)) * y`` of a part of rows ``group, group + groups, ...``.

    ``WHOLE`` parts need no mask. ``columns`` is a multiple of 16.
    """
    LAYOUT: gl.constexpr = gl.BlockedLayout([WIDTH], [32], [num_warps], [0])
    EACH: gl.constexpr = gl.BlockedLayout([1], [32], [num_warps], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(WIDTH, 1, 1, [0])
    SLOTS: gl.constexpr = AHEAD + 1 + LAG
    ys = gl.allocate_shared_memory(y_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    dys = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [SLOTS, BLOCK], SHARED)
    part = gl.program_id(0) % parts
    group = gl.program_id(0) // parts
    groups = gl.num_programs(0) // parts
    first = part * BLOCK
    inside = columns - first
    column = gl.arange(0, BLOCK, layout=LAYOUT)
    valid = column < inside
    for i in gl.static_range(AHEAD):
        row = group + i * groups
        start = row.to(gl.int64) * columns + first
        _copy(ys.index(i), y_ptr + start, inside, row < rows, WHOLE, LAYOUT)
        _copy(dys.index(i), dy_ptr + start, inside, row < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
    slot = group * 0
    for row in range(group, rows + LAG * groups, groups):
        async_copy.wait_group(AHEAD - 1)
        late = row - LAG * groups
        place, word = _ask(words_ptr, parts, late, late >= 0, LANES, EACH)
        ahead = row + AHEAD * groups
        free = (slot + AHEAD) % SLOTS
        start = ahead.to(gl.int64) * columns + first
        _copy(ys.index(free), y_ptr + start, inside, ahead < rows, WHOLE, LAYOUT)
        _copy(dys.index(free), dy_ptr + start, inside, ahead < rows, WHOLE, LAYOUT)
        async_copy.commit_group()
        if row < rows:
            products = dys.index(slot).load(LAYOUT).to(gl.float32) * ys.index(slot).load(LAYOUT).to(gl.float32)
            if not WHOLE:  # masked elements were not copied
                products = gl.where(valid, products, 0.0)
            _publish(words_ptr + row.to(gl.int64) * parts + part, gl.sum(products, 0))
        if late >= 0:
            inner = gl.sum(_await(place, word), 0)
            then = (slot + AHEAD + 1) % SLOTS
            dx = (dys.index(then).load(LAYOUT).to(gl.float32) - inner) * ys.index(then).load(LAYOUT).to(gl.float32)
            mask = None if WHOLE else valid
            dx_row = dx_ptr + late.to(gl.int64) * columns + first
            gl.store(dx_row + column, dx.to(dx_ptr.dtype.element_ty), mask=mask)
        slot = (slot + 1) % SLOTS


def softmax_backward_in_parts(dx: torch.Tensor, dy: torch.Tensor, y: torch.Tensor) -> bool:
    """Fill dx and return True, or return False if contiguous rows cannot be split.

    They cannot where they are not aligned, where programs cannot wait for each other (in the interpreter, before Ampere), and where a
    row has more parts than programs can be resident.
    """
    rows, columns = y.shape
    size = y.element_size()
    # The compiler proves 16-byte alignment from addresses and extents that are multiples of 16.
    if gluon_capability(y) < 80 or columns % 16 or y.stride(0) != columns or (y.data_ptr() | dy.data_ptr()) % 16:
        return False
    for part, programs, warps, ahead, lag in _PLANS:
        block = part // size
        parts, running = launching.cdiv(columns, block), programs * launching.multiprocessors(y)
        room = programs * (ahead + 1 + lag) * 2 * part
        if parts > min(running, max(_LANES, 32 * warps)) or room > launching.shared_memory(y) - 2048 * programs:
            continue
        groups = min(rows, running // parts)
        words = torch.full((rows, parts), -1, dtype=torch.int32, device=y.device)
        launching.launch(
            softmax_parts_backward_shared_kernel, (parts * groups,),
            dx, words, dy, y, rows, columns, parts,
            BLOCK=block, WIDTH=16 // size, WHOLE=columns % block == 0, AHEAD=ahead, LAG=lag,
            LANES=max(32 * warps, min(_LANES, launching.next_power_of_2(parts))), num_warps=warps,
            # A cooperative launch needs all programs resident, which bounds their registers.
            maxnreg=min(255, _REGISTERS // (32 * warps * programs) // 8 * 8), launch_cooperative_grid=True,
        )  # fmt: skip
        return True
    return False
