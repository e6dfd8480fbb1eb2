"""Softmax's backward pass for rows split over several programs, which read their part once and exchange the row's sum.

Programs keep their part of several rows in a ring of shared memory: rows being copied (``AHEAD``), one being summed, and rows that
wait for the sums of their other parts (``LAG``). They wait for each other, so all must be resident: the launch is cooperative. Rows
that fit one program are faster in one, and the forward pass is faster with a second read from L2.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launches import launch
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory

#: Bytes of a part, programs per SM, warps, rows copied ahead, and rows waiting for their sums; for rows of more than ``_LANES`` parts
#: the second.
_PLANS = ((4096, 4, 4, 2, 3), (8192, 2, 8, 3, 2))
_LANES = 128
#: 32-bit registers of an SM.
_REGISTERS = 65536


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
        "=&r,l,r",
        [place, exist],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
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
        "=&r,l,r",
        [place, word],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
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
    if capability(y) < 80 or columns % 16 or y.stride(0) != columns or (y.data_ptr() | dy.data_ptr()) % 16:
        return False
    for part, programs, warps, ahead, lag in _PLANS:
        block = part // size
        parts, running = cdiv(columns, block), programs * multiprocessors(y)
        room = programs * (ahead + 1 + lag) * 2 * part
        if parts > min(running, max(_LANES, 32 * warps)) or room > shared_memory(y) - 2048 * programs:
            continue
        groups = min(rows, running // parts)
        words = torch.full((rows, parts), -1, dtype=torch.int32, device=y.device)
        launch(
            softmax_parts_backward_shared_kernel, (parts * groups,),
            dx, words, dy, y, rows, columns, parts,
            BLOCK=block, WIDTH=16 // size, WHOLE=columns % block == 0, AHEAD=ahead, LAG=lag,
            LANES=max(32 * warps, min(_LANES, next_power_of_2(parts))), num_warps=warps,
            # A cooperative launch needs all programs resident, which bounds their registers.
            maxnreg=min(255, _REGISTERS // (32 * warps * programs) // 8 * 8), launch_cooperative_grid=True,
        )  # fmt: skip
        return True
    return False
