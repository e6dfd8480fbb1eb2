"""Long rows split over several programs, which read their part once and exchange the row's sums through global memory.

A program that held a long row alone would fill its SM, which idles while the row is loaded or stored, and fp32 sums for dW
of that many columns would not fit in registers. Several programs with a part each fit, each with the sums of its columns.
Each keeps its part of several rows in a ring buffer in shared memory: rows being copied (``AHEAD``), one being summed, and
rows waiting for the sums of their other parts (``LAG``). Programs wait for each other, so all must be resident: the launch
is cooperative.

The kernels are in Gluon. Without the ring, waiting for a row's sums right after publishing a part's, they reach about half of a
copy's bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.integers import cdiv, next_power_of_2
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory

#: Bytes of a part, programs per SM, warps, rows copied ahead, and rows waiting for their sums.
Plan = tuple[int, int, int, int, int]
#: Most parts of a row for programs of few threads, each of which then reads several parts' sums.
_LANES = 128
#: The plan where others give more parts than lanes.
_LONGER: Plan = (8192, 2, 8, 3, 2)
#: 32-bit registers of an SM.
_REGISTERS = 65536


@gluon.jit
def add(first, second, other_first, other_second):
    """Add two pairs, for a reduction."""
    return first + other_first, second + other_second


@gluon.jit
def place_of(parts):
    """This program's part, its group, and the number of groups. It works on rows ``group, group + groups, ...``."""
    return gl.program_id(0) % parts, gl.program_id(0) // parts, gl.num_programs(0) // parts


@gluon.jit
def copy_part(shared, ptr, columns, wanted, WHOLE: gl.constexpr, LAYOUT: gl.constexpr):
    """Start an asynchronous copy (``cp.async``) of a part of a row to shared memory, 16 bytes per access, if ``wanted``."""
    column = gl.arange(0, shared.shape[0], layout=LAYOUT)
    mask = gl.full([shared.shape[0]], True, gl.int1, LAYOUT) & wanted
    if not WHOLE:
        mask = mask & (column < columns)
    async_copy.async_copy_global_to_shared(shared, ptr + column, mask=mask)


@gluon.jit
def whole_part(start, columns, WIDTH: gl.constexpr):
    """The part of a row from element ``start`` that aligned 16-byte accesses cover: the row's elements before it, and its length."""
    before = ((WIDTH - start % WIDTH) % WIDTH).to(gl.int32)
    # Division and multiplication prove the alignment to the compiler.
    return before, (columns - before) // WIDTH * WIDTH


@gluon.jit
def begin_of(row, stride, before, WIDTH: gl.constexpr, SKEWED: gl.constexpr):
    """The element where a row's ``whole_part`` begins; without ``SKEWED`` the row itself."""
    start = row.to(gl.int64) * stride
    if SKEWED:
        start = (start + before) // WIDTH * WIDTH
    return start


@gluon.jit
def ends_of(before, length, columns, WIDTH: gl.constexpr, LAYOUT: gl.constexpr):
    """Offsets (2 * WIDTH,) of a row's elements outside its ``whole_part``, relative to the part's first element, and their mask."""
    lane = gl.arange(0, 2 * WIDTH, layout=LAYOUT)
    return lane - before + gl.where(lane < before, 0, length), lane < columns - length


@gluon.jit
def publish_sums(words_ptr, first, second):
    """Store two fp32 sums as one 64-bit word, so that a reader sees both or neither. All bits set mean not yet published."""
    high = first.to(gl.int32, bitcast=True).to(gl.int64) << 32
    word = high | (second.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF)
    gl.store(words_ptr, gl.where(word == -1, 0x7FFFFFFF7FFFFFFF, word), cache_modifier=".cg")


@gluon.jit
def ask_sums(words_ptr, parts, row, wanted, LANES: gl.constexpr, LAYOUT: gl.constexpr):
    """Addresses of the published sums of a row's parts, and their current words. Lanes without a part, or not ``wanted``, get 0."""
    part = gl.arange(0, LANES, layout=LAYOUT)
    exist = ((part < parts) & wanted).to(gl.int32)
    place = words_ptr + row.to(gl.int64) * parts + part
    word = gl.inline_asm_elementwise(
        """{
        .reg .pred wanted;
        mov.b64 $0, 0;
        setp.ne.s32 wanted, $2, 0;
        @wanted ld.relaxed.gpu.global.b64 $0, [$1];
        }""",
        "=&l,l,r",
        [place, exist],
        dtype=gl.int64,
        is_pure=False,
        pack=1,
    )
    return place, word


@gluon.jit
def await_sums(place, word):
    """Both sums of each part, polled until published. Only threads whose word is missing spin; the others wait at the next barrier."""
    word = gl.inline_asm_elementwise(
        """{
        .reg .pred absent;
        mov.b64 $0, $2;
        again:
        setp.eq.s64 absent, $0, -1;
        @!absent bra done;
        ld.relaxed.gpu.global.b64 $0, [$1];
        bra again;
        done:
        }""",
        "=&l,l,l",
        [place, word],
        dtype=gl.int64,
        is_pure=False,
        pack=1,
    )
    return (word >> 32).to(gl.int32).to(gl.float32, bitcast=True), word.to(gl.int32).to(gl.float32, bitcast=True)


class Ring(NamedTuple):
    """How rows are split, and the launch parameters that follow from it."""

    #: Parts of a row, and groups of that many programs. Each group walks its share of the rows.
    parts: int
    groups: int
    #: An int64 word per row and part, initialized to -1: not yet published.
    words: torch.Tensor
    #: The kernel's parameters, and Triton's options.
    parameters: dict[str, int]
    options: dict[str, int | bool]

    @property
    def grid(self) -> tuple[int]:
        """The launch grid."""
        return (self.parts * self.groups,)


def ring(read: Sequence[torch.Tensor], *plans: Plan, skewed: bool = False) -> Ring | None:
    """Split rows as the first of ``plans`` says that gives no more parts than lanes, else into longer parts.

    ``skewed`` allows rows that are not 16-byte aligned if the tensors in ``read`` are contiguous and of one size of elements.
    All rows of a group then have the same misalignment.

    None where rows are not aligned otherwise, where programs cannot wait for each other (in the interpreter, before Ampere), or
    where a row has more parts than programs can be resident.
    """
    found = (_cut(read, skewed, *plan) for plan in (*plans, _LONGER))
    return next((each for each in found if each), None)


def _cut(
    read: Sequence[torch.Tensor], skewed: bool, size: int, programs: int, warps: int, ahead: int, lag: int
) -> Ring | None:
    x = read[0]
    rows, columns = x.shape
    width = 16 // x.element_size()
    block = size // x.element_size()
    parts = cdiv(columns, block)
    running = programs * multiprocessors(x)
    room = programs * (ahead + 1 + lag) * block * sum(tensor.element_size() for tensor in read)
    # The compiler proves 16-byte alignment from addresses and extents that are multiples of 16.
    copied = columns % 16 == 0 and all(t.stride(0) % 16 == 0 and t.data_ptr() % 16 == 0 for t in read)
    skewed = skewed and not copied
    if skewed:
        copied = all(
            t.stride(0) == columns and t.data_ptr() % 16 == 0 and t.element_size() == x.element_size() for t in read
        )
    if (
        not copied
        or capability(x) < 80
        or parts > min(running, max(_LANES, 32 * warps))
        or room > shared_memory(x) - 2048 * programs
    ):
        return None
    groups = min(rows, running // parts)
    if skewed and groups < rows:
        groups = max(1, groups // width) * width
        if groups * parts > running:
            return None
    words = torch.full((rows, parts), -1, dtype=torch.int64, device=x.device)
    # A cooperative launch needs all programs resident, which bounds their registers.
    registers = min(255, _REGISTERS // (32 * warps * programs) // 8 * 8)
    lanes = max(32 * warps, min(_LANES, next_power_of_2(parts)))
    parameters = {
        "BLOCK": block,
        "WIDTH": width,
        "WHOLE": columns % block == 0,
        "AHEAD": ahead,
        "LAG": lag,
        "LANES": lanes,
    }
    if skewed:
        parameters["SKEWED"] = True
    options = {"num_warps": warps, "maxnreg": registers, "launch_cooperative_grid": True}
    return Ring(parts, groups, words, parameters, options)
