"""Kernels with faults of their code, and correct kernels that look alike. Nothing here is declared to Tilescope."""

import triton
import triton.language as tl


@triton.jit
def total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0), axis=0)
    tl.store(out_ptr, tl.load(out_ptr) + part)  # a race


@triton.jit
def column_sums_kernel(  # noqa: PLR0917
    x_ptr, out_ptr, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    keep = (row < rows)[:, None] & (column < columns)[None]
    x = tl.load(x_ptr + row[:, None] * columns + column[None], mask=keep, other=0.0)
    tl.store(out_ptr + column, tl.sum(x, 0), mask=column < columns)  # a race


@triton.jit
def shifted_in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    after = tl.load(x_ptr + at + 1, mask=at + 1 < n, other=0.0)
    tl.store(x_ptr + at, after, mask=at < n)  # a race at the ends of blocks


@triton.jit
def zeroed_by_one_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        tl.store(out_ptr, 0.0)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + at), axis=0), sem="relaxed")  # a race


@triton.jit
def atomic_total_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out_ptr, tl.sum(tl.load(x_ptr + at, mask=at < n, other=0.0), axis=0))


@triton.jit
def flagged_kernel(x_ptr, out_ptr, flag_ptr, table_ptr, BLOCK: tl.constexpr):
    """Each program stores its own part, a constant to a common flag, and the same value of the same inputs to a common cell."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(flag_ptr, tl.load(table_ptr) * 2)
    tl.store(out_ptr + at, tl.load(x_ptr + at))
    tl.store(flag_ptr + 1, 1.0)


@triton.jit
def twice_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """A program stores twice to its own bytes, and loads them."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))
    tl.store(out_ptr + at, tl.load(out_ptr + at) + 1)


@triton.jit
def locked_kernel(x_ptr, out_ptr, lock_ptr, BLOCK: tl.constexpr):
    """A lock lets one program after another add."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + at), axis=0)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:
        pass
    tl.store(out_ptr, tl.load(out_ptr) + part)
    tl.atomic_xchg(lock_ptr, 0)


@triton.jit
def last_one_adds_kernel(  # noqa: PLR0917
    x_ptr, parts_ptr, count_ptr, out_ptr, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr
):
    """Programs store parts, and the last one adds them."""
    program = tl.program_id(0)
    tl.store(parts_ptr + program, tl.sum(tl.load(x_ptr + program * BLOCK + tl.arange(0, BLOCK)), axis=0))
    if tl.atomic_add(count_ptr, 1) == PROGRAMS - 1:
        tl.store(out_ptr, tl.sum(tl.load(parts_ptr + tl.arange(0, PROGRAMS)), axis=0))


@triton.jit
def largest_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr):
    """A load before the atomic saves most atomics."""
    most = tl.max(tl.load(x_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), axis=0)
    if most > tl.load(out_ptr):
        tl.atomic_max(out_ptr, most)
