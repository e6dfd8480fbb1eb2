"""Long rows, cut into parts that as many programs read once: they exchange the row's sums through memory.

A program that holds a long row alone fills its multiprocessor: while it awaits or writes the row, little else moves there, and
sums for dW of so many columns fit no registers. Of a part several programs fit, each with its own columns' sums. Each keeps
parts of several rows in a ring of shared memory: some on their way, one being summed up, some awaiting the sums of their
other parts. Programs that wait for each other must all run, which a cooperative launch guarantees.

The kernels are in Gluon. Without the ring, with a row's sums awaited as soon as they were published, they reached 40 to 60 % of
a copy's bandwidth (2048x65536 in bf16, H100, 2026-11-25, torch 2.11, triton 3.6).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from tilescope_kernels._shared.integers import cdiv
from tilescope_kernels._shared.launching import capability, multiprocessors, shared_memory

#: Bytes of a part, programs a multiprocessor and their warps, rows that are copied ahead and rows that await their sums.
Plan = tuple[int, int, int, int, int]
#: Where another plan has more parts than threads.
_LONGER: Plan = (8192, 2, 8, 3, 2)
#: Registers of a multiprocessor.
_REGISTERS = 65536


@gluon.jit
def add(first, second, other_first, other_second):
    """The sums of two pairs."""
    return first + other_first, second + other_second


@gluon.jit
def place_of(parts):
    """Which part this program has of the rows ``group, group + groups, ...``."""
    return gl.program_id(0) % parts, gl.program_id(0) // parts, gl.num_programs(0) // parts


@gluon.jit
def copy_part(shared, ptr, columns, wanted, WHOLE: gl.constexpr, LAYOUT: gl.constexpr):
    """Start an asynchronous copy of a part of a row to shared memory, 16 bytes an access, if it is wanted."""
    column = gl.arange(0, shared.shape[0], layout=LAYOUT)
    mask = gl.full([shared.shape[0]], True, gl.int1, LAYOUT) & wanted
    if not WHOLE:
        mask = mask & (column < columns)
    async_copy.async_copy_global_to_shared(shared, ptr + column, mask=mask)


@gluon.jit
def publish_sums(words_ptr, first, second):
    """Store two sums as one word, which is there or not, so that no order of stores matters."""
    high = first.to(gl.int32, bitcast=True).to(gl.int64) << 32
    word = high | (second.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF)
    gl.store(words_ptr, gl.where(word == -1, 0x7FFFFFFF7FFFFFFF, word), cache_modifier=".cg")


@gluon.jit
def ask_sums(words_ptr, parts, row, wanted, THREADS: gl.constexpr, LAYOUT: gl.constexpr):
    """Where the sums of a row's parts are published, and what of them is there already. Others are 0, if not ``wanted`` all."""
    part = gl.arange(0, THREADS, layout=LAYOUT)
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
    """The two sums of each part, once they are there. Few threads wait in a loop, the others at the next barrier."""
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
    """How rows are cut: what a kernel is launched with."""

    #: Parts of a row, and groups of so many programs, each of which walks its share of the rows.
    parts: int
    groups: int
    #: A word for each part of each row, none of which is there yet.
    words: torch.Tensor
    #: The kernel's parameters, and Triton's options.
    parameters: dict[str, int]
    options: dict[str, int | bool]

    @property
    def grid(self) -> tuple[int]:
        """The launch grid."""
        return (self.parts * self.groups,)


def ring(read: Sequence[torch.Tensor], plan: Plan) -> Ring | None:
    """Cut rows as planned or, where those are more parts than threads, into longer ones.

    None where rows of the tensors that are ``read`` do not start at 16 bytes, where programs cannot wait for each other (in
    the interpreter, on old GPUs), or where they have more parts than can run at once.
    """
    return _cut(read, *plan) or _cut(read, *_LONGER)


def _cut(read: Sequence[torch.Tensor], size: int, programs: int, warps: int, ahead: int, lag: int) -> Ring | None:
    x = read[0]
    rows, columns = x.shape
    width = 16 // x.element_size()
    block = size // x.element_size()
    parts = cdiv(columns, block)
    running = programs * multiprocessors(x)
    room = programs * (ahead + 1 + lag) * block * sum(tensor.element_size() for tensor in read)
    # What the compiler can prove to be aligned are multiples of 16, of bytes and of elements.
    copied = columns % 16 == 0 and all(t.stride(0) % 16 == 0 and t.data_ptr() % 16 == 0 for t in read)
    if (
        not copied
        or capability(x) < 80
        or parts > min(running, 32 * warps)
        or room > shared_memory(x) - 2048 * programs
    ):
        return None
    groups = min(rows, running // parts)
    words = torch.full((rows, parts), -1, dtype=torch.int64, device=x.device)
    # So few registers that all of the grid's programs run at once, which a cooperative launch asks for.
    registers = min(255, _REGISTERS // (32 * warps * programs) // 8 * 8)
    parameters = {"BLOCK": block, "WIDTH": width, "WHOLE": columns % block == 0, "AHEAD": ahead, "LAG": lag}
    options = {"num_warps": warps, "maxnreg": registers, "launch_cooperative_grid": True}
    return Ring(parts, groups, words, parameters, options)
