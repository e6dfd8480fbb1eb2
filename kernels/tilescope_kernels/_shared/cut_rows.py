"""Rows of any length, each cut into parts that as many programs read once: they exchange the row's sums through memory.

A program that holds a long row alone fills its multiprocessor: while it waits for a row or writes it, nothing else runs
there, and sums for dW of so many columns fit no registers. Of a part several programs fit, each with its own columns'
sums, and with its next rows on the way. Programs that wait for each other must all run, which a cooperative launch
guarantees. Where nothing can wait (the interpreter) or not all can run (a row of a million columns), the same kernel is
launched twice: to publish the sums, then to read the rows again and finish.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from tilescope_kernels._shared.launching import capability, multiprocessors

#: What a launch does with the sums of rows: both, for programs that wait for each other; or one of the two.
EXCHANGE, PUBLISH, GATHER = (tl.constexpr(phase) for phase in range(3))
#: Two fp32 numbers of which either is this NaN, which no arithmetic gives, are not there yet.
_ABSENT = tl.constexpr(-1)
#: Lasting registers of a multiprocessor.
_REGISTERS = 65536


@triton.jit
def publish(words_ptr, first, second):
    """Store two sums as one word, which is there or not: no order of stores matters."""
    high = first.to(tl.int32, bitcast=True).to(tl.int64) << 32
    word = high | (second.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)
    tl.store(words_ptr, tl.where(word == _ABSENT, 0x7FFFFFFF7FFFFFFF, word), cache_modifier=".cg")


@triton.jit
def gather(words_ptr, parts, PARTS: tl.constexpr, PHASE: tl.constexpr):
    """The two sums of each of a row's parts, (PARTS,), and the mask of those that exist. The first fills the others."""
    part = tl.arange(0, PARTS)
    words_ptr += tl.where(part < parts, part, 0)
    if PHASE == EXCHANGE:
        word = tl.inline_asm_elementwise(
            """{
            .reg .pred absent;
            again:
            ld.relaxed.gpu.global.b64 $0, [$1];
            setp.eq.s64 absent, $0, -1;
            @absent bra again;
            }""",
            "=&l,l",
            [words_ptr],
            dtype=tl.int64,
            is_pure=False,
            pack=1,
        )
    else:
        word = tl.load(words_ptr)
    first = (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    return first, word.to(tl.int32).to(tl.float32, bitcast=True), part < parts


class Cut(NamedTuple):
    """How rows are cut: what kernels are launched with."""

    #: Parts of a row, and groups of so many programs, each of which walks its share of the rows.
    parts: int
    groups: int
    #: A word for each part of each row.
    words: torch.Tensor
    #: Launches, one after the other: a phase and Triton's options.
    launches: tuple[tuple[int, dict[str, int | bool]], ...]

    @property
    def grid(self) -> tuple[int]:
        """The launch grid."""
        return (self.parts * self.groups,)


def cut(x: torch.Tensor, block: int, programs: int, warps: int) -> Cut:
    """Cut the rows of ``x`` into parts of ``block`` columns for so many programs of so many warps a multiprocessor."""
    rows, columns = x.shape
    parts = triton.cdiv(columns, block)
    running = programs * multiprocessors(x)
    groups = min(rows, max(1, running // parts))
    words = torch.full((rows, parts), _ABSENT.value, dtype=torch.int64, device=x.device)
    if parts > running or capability(x) < 70:
        options: dict[str, int | bool] = {"num_warps": warps}
        return Cut(parts, groups, words, ((PUBLISH.value, options), (GATHER.value, options)))
    # So few registers that all of the grid's programs run at once.
    registers = min(255, _REGISTERS // (32 * warps * programs) // 8 * 8)
    options = {"num_warps": warps, "maxnreg": registers, "launch_cooperative_grid": True}
    return Cut(parts, groups, words, ((EXCHANGE.value, options),))
