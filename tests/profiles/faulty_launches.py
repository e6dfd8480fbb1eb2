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
def shares_kernel(x_ptr, part_ptr, out_ptr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    tl.store(part_ptr + tl.program_id(0), tl.sum(x, axis=0))  # a race
    tl.store(out_ptr + at, x / tl.sum(tl.load(part_ptr + tl.arange(0, PROGRAMS)), axis=0))


@triton.jit
def last_clears_kernel(x_ptr, out_ptr):
    tl.store(out_ptr + tl.program_id(0), tl.load(x_ptr))
    if tl.program_id(0) == tl.num_programs(0) - 1:
        tl.store(x_ptr, 0.0)  # a race


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


@triton.jit
def narrow_rows_kernel(x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + columns, mask=columns < n, other=0)  # a wrap
    tl.store(y_ptr + row * stride + columns, x, mask=columns < n)


@triton.jit
def narrow_loop_kernel(x_ptr, rows, stride, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = x_ptr + (row * stride).to(tl.int64) + tl.arange(0, BLOCK)  # a wrap
        tl.store(at, tl.load(at) + 1)


@triton.jit
def narrow_while_kernel(x_ptr, rows, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    while row < rows:
        at = x_ptr + row * stride + tl.arange(0, BLOCK)  # a wrap
        tl.store(at, tl.load(at) + 1)
        row += tl.num_programs(0)


@triton.jit
def wide_rows_kernel(x_ptr, y_ptr, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + columns, mask=columns < n, other=0)
    tl.store(y_ptr + row * stride + columns, x, mask=columns < n)


@triton.jit
def walking_kernel(x_ptr, rows, stride, BLOCK: tl.constexpr):
    """The pointer grows by steps that fit 32 bits, and a hash of the row wraps as it is meant to."""
    x_ptr += tl.program_id(0).to(tl.int64) * rows * stride
    for row in range(rows):
        seed = (row * 1103515245 + 12345) & 31
        tl.store(x_ptr + tl.arange(0, BLOCK) + seed, tl.load(x_ptr + tl.arange(0, BLOCK)))
        x_ptr += stride


@triton.jit
def grouped_tiles_kernel(  # noqa: PLR0917
    x_ptr, m, n, GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr
):
    """A product's order of tiles: the rows of the last ones of a group do not exceed the tensor."""
    program, across = tl.program_id(0), tl.cdiv(n, N)
    first = program // (GROUP * across) * GROUP
    rows = tl.minimum(tl.cdiv(m, M) - first, GROUP)
    row = (first + program % rows) * M + tl.arange(0, M)
    column = program % (GROUP * across) // rows * N + tl.arange(0, N)
    at = x_ptr + row[:, None].to(tl.int64) * n + column[None]
    tl.store(at, tl.load(at, mask=row[:, None] < m) + 1, mask=row[:, None] < m)


@triton.jit
def row_max_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + column, mask=column < n)  # without other
    tl.store(out_ptr + row, tl.max(tl.exp(x) * 2, axis=0))


@triton.jit
def added_up_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + at, mask=at < n)  # without other
    tl.store(out_ptr, tl.sum(total, axis=0))


@triton.jit
def replaced_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + column, mask=column < n)
    tl.store(out_ptr + row, tl.max(tl.where(column < n, x, float("-inf")), axis=0))


@triton.jit
def masked_columns_kernel(x_ptr, out_ptr, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Lanes without a value stay in columns that are not stored."""
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    x = tl.load(x_ptr + row[:, None] * columns + column[None], mask=(column < columns)[None])
    tl.store(out_ptr + column, tl.sum(x, 0), mask=column < columns)


@triton.jit
def copied_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.exp(tl.load(x_ptr + at, mask=at < n)), mask=at < n)


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, PRECISION: tl.constexpr, SIZE: tl.constexpr):
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None]
    kind = c_ptr.dtype.element_ty
    a, b = tl.load(a_ptr + row * SIZE + column).to(kind), tl.load(b_ptr + row * SIZE + column).to(kind)
    if PRECISION != "default":
        tl.store(c_ptr + row * SIZE + column, tl.dot(a, b, input_precision=PRECISION))
    else:
        tl.store(c_ptr + row * SIZE + column, tl.dot(a, b))  # as TF32


@triton.jit
def multiplied(a, b):
    return tl.dot(a, tl.trans(b))  # as TF32


@triton.jit
def product_in_helper_kernel(a_ptr, b_ptr, c_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None]
    tl.store(c_ptr + at, multiplied(tl.load(a_ptr + at), tl.load(b_ptr + at)))


@triton.jit
def tail_product_kernel(a_ptr, b_ptr, k, ZERO: tl.constexpr, SIZE: tl.constexpr):
    """Lanes of a without a value meet zeros of b, unless b's zeros are in other lanes."""
    row, column = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None]
    a = tl.load(a_ptr + row * SIZE + column, mask=column < k)  # without other
    b = tl.load(b_ptr + row * SIZE + column, mask=(row if ZERO == "rows" else column) < k, other=0.0)
    if ZERO == "selected rows":
        b = tl.where(row < k, tl.load(b_ptr + row * SIZE + column), 0.0)
    tl.store(b_ptr + row * SIZE + column, tl.dot(a + 1, b.to(tl.float32) * 2, input_precision="ieee"))


@triton.jit
def bounded_product_kernel(  # noqa: PLR0917
    a_ptr, b_ptr, out_ptr, k, WAY: tl.constexpr, SIZE: tl.constexpr
):
    """Lanes that block pointers leave out are zeros on a GPU, which a product and a sum may use, but not a maximum."""
    bounds: tl.constexpr = (0, 1)
    left = tl.make_block_ptr(a_ptr, (SIZE, k), (k, 1), (0, 0), (SIZE, SIZE), (1, 0))
    right = tl.make_block_ptr(b_ptr, (k, SIZE), (SIZE, 1), (0, 0), (SIZE, SIZE), (1, 0))
    a = tl.load(left, boundary_check=bounds)  # without other
    b = tl.load(right, boundary_check=bounds)
    at = tl.arange(0, SIZE)
    if WAY == "max":
        tl.store(out_ptr + at, tl.max(a * 2, 1))
    elif WAY == "sum of more":
        tl.store(out_ptr + at, tl.sum(a + 1, 1))
    elif WAY == "scan":
        tl.store(out_ptr + at[:, None] * SIZE + at[None], tl.cumsum(a, 1, reverse=True))
    elif WAY == "sum":
        tl.store(out_ptr + at, tl.sum(a * a, 1) + tl.sum(b * tl.exp(b), 0))
    else:
        product = tl.dot(a, tl.dot(b, a * 2, input_precision="ieee") - b, input_precision="ieee")
        tl.store(out_ptr + at[:, None] * SIZE + at[None], product)


@triton.jit
def row_sums_kernel(x_ptr, out_ptr, rows, k, BLOCK: tl.constexpr):
    """Only rows, which are not added, have lanes without a value where ``k`` is whole blocks."""
    row, total = tl.arange(0, BLOCK), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, k, BLOCK):
        column = tl.arange(0, BLOCK)
        keep = (row < rows)[:, None] & (column < k - start)[None]
        total += tl.sum(tl.load(x_ptr + row[:, None] * k + (start + column)[None], mask=keep), 1)  # without other
    tl.store(out_ptr + row, total, mask=row < rows)


@triton.jit
def weighted_sum_kernel(x_ptr, weight_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + at, mask=at < n, other=0.0)
    tl.store(out_ptr, tl.sum(tl.load(x_ptr + at, mask=at < n) * weight, axis=0))


@triton.jit
def mean_kernel(x_ptr, count_ptr, out_ptr, n: tl.constexpr):
    row = tl.program_id(0)
    total = tl.sum(tl.load(x_ptr + row * n + tl.arange(0, n)) * 0.0, axis=0)
    tl.store(out_ptr + row, total / tl.load(count_ptr + row))  # not finite


@triton.jit
def guarded_mean_kernel(x_ptr, count_ptr, out_ptr, n: tl.constexpr):
    row = tl.program_id(0)
    count = tl.load(count_ptr + row)
    mean = tl.sum(tl.load(x_ptr + row * n + tl.arange(0, n)), axis=0) / count
    tl.store(out_ptr + row, tl.where(count == 0.0, 0.0, mean))


@triton.jit
def exponential_kernel(x_ptr, out_ptr, n: tl.constexpr):
    at = tl.arange(0, n)
    tl.store(out_ptr + at, tl.exp(tl.load(x_ptr + at)))  # not finite


CONFIGS = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})]


def tuned(**options):
    """An autotuner's decorator with two configs."""
    return triton.autotune(CONFIGS, **{"key": ["n"], **options})


@triton.jit
def in_place_kernel(x_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)


@triton.jit
def ticket_kernel(out_ptr, count_ptr, n, BLOCK: tl.constexpr):
    """Each program takes the next place. The last one sets the counter back."""
    place = tl.atomic_add(count_ptr, 1)
    tl.store(out_ptr + place, place)
    if place == tl.num_programs(0) - 1:
        tl.atomic_xchg(count_ptr, 0)


@triton.jit
def out_of_place_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)
    tl.store(out_ptr + at, tl.load(out_ptr + at, mask=at < n) + 1, mask=at < n)


@triton.jit
def many_atomics_kernel(x_ptr, out_ptr, ONE: tl.constexpr):
    tl.atomic_add(out_ptr + (0 if ONE else tl.program_id(0) % 64), tl.load(x_ptr))  # contended


@triton.jit
def counting_programs_kernel(count_ptr):
    tl.atomic_add(count_ptr, 1)


@triton.jit
def half_sum_kernel(x_ptr, out_ptr, n, KIND: tl.constexpr):
    total = tl.zeros((16,), KIND)
    for step in range(n):
        total += tl.load(x_ptr + step * 16 + tl.arange(0, 16))  # a sum
    tl.store(out_ptr + tl.arange(0, 16), total)


@triton.jit
def sum_in_memory_kernel(x_ptr, out_ptr, n):
    for step in range(n):
        x = tl.load(x_ptr + step * 16 + tl.arange(0, 16))
        tl.store(out_ptr + tl.arange(0, 16), tl.load(out_ptr + tl.arange(0, 16)) + x)


@triton.jit
def quotient_kernel(x_ptr, by_ptr, out_ptr, n, GUARD: tl.constexpr, BLOCK: tl.constexpr):  # noqa: PLR0917
    """Lanes that the mask leaves out divide by zero, too."""
    at = tl.arange(0, BLOCK)
    by = tl.load(by_ptr + at, mask=at < n, other=0)
    quotient = tl.load(x_ptr + at, mask=at < n, other=0) // by  # a division
    if GUARD:
        quotient = tl.where((by != 0) & (quotient > 1), quotient, 0)
    tl.store(out_ptr + at[:, None], quotient[:, None] + 1, mask=(at < n)[:, None])
    tl.store(out_ptr + n, tl.sum(tl.where(at < n, quotient, 0), 0))


@triton.jit
def turned_kernel(x_ptr, out_ptr, TURN: tl.constexpr, BARRIER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at))
    if BARRIER:
        tl.debug_barrier()
    other = BLOCK - 1 - at if TURN else at
    tl.store(out_ptr + other, tl.load(out_ptr + other) + 1)  # another thread's


@triton.jit
def times_kernel(x_ptr, y_ptr, n, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * TIMES, mask=at < n)


@triton.jit
def asserted_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    assert BLOCK % 16 == 0, "whole warps"
    assert x < 1.5  # an assertion
    tl.device_assert(x < 1.5)
    tl.store(out_ptr + at, x, mask=at < n)


@triton.jit
def compacted_kernel(x_ptr, out_ptr, count_ptr, n, BLOCK: tl.constexpr):
    """How many values are kept, and where, is known from them."""
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=0.0)
    keep = x > 0.5
    place = tl.cumsum(keep.to(tl.int32), 0) - 1
    tl.store(out_ptr + place, x, mask=keep)
    tl.store(count_ptr, tl.sum(keep.to(tl.int32), 0))


@triton.jit
def scattered_kernel(x_ptr, place_ptr, out_ptr, EQUAL: tl.constexpr, BLOCK: tl.constexpr):
    """Lanes of a store share addresses. Equal values are right."""
    at = tl.arange(0, BLOCK)
    place = tl.load(place_ptr + at)
    tl.store(out_ptr + place, tl.load((x_ptr + place) if EQUAL else (x_ptr + at)))  # a store of lanes


@triton.jit
def histogram_kernel(place_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    bin_ptr = out_ptr + tl.load(place_ptr + at, mask=at < n, other=0)
    count = tl.load(bin_ptr, mask=at < n)
    tl.store(bin_ptr, count + 1, mask=at < n)  # a store of lanes


@triton.jit
def broadcast_update_kernel(x_ptr, out_ptr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Each row is updated by all of its lanes, which store the same."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None]
    total = tl.sum(tl.load(x_ptr + row * COLUMNS + column), 1, keep_dims=True)
    at = out_ptr + row + column * 0
    tl.store(at, tl.load(at) + total)


@triton.jit
def rearranged_kernel(  # noqa: PLR0917
    x_ptr, out_ptr, n, WAY: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)  # without other
    if OTHER:
        x = tl.where(at < n, x, float("inf"))
    if WAY == "sort":
        tl.store(out_ptr + at, tl.sort(x), mask=at < n)
    elif WAY == "topk":
        tl.store(out_ptr + tl.arange(0, 8), tl.topk(x, 8))
    elif WAY == "histogram":
        tl.store(out_ptr + tl.arange(0, 8), tl.histogram(x.to(tl.int32), 8).to(tl.float32))
    elif WAY == "interleave":
        tl.store(out_ptr, tl.sum(tl.interleave(x, x), axis=0))
    elif WAY == "rows":
        tl.store(out_ptr + tl.arange(0, BLOCK // 8), tl.max(tl.reshape(x, (BLOCK // 8, 8)), axis=1))
    elif WAY == "columns":
        tl.store(out_ptr + tl.arange(0, 8), tl.max(tl.reshape(x, (BLOCK // 8, 8)), axis=0))
    elif WAY == "atomic":
        tl.atomic_add(out_ptr + at * 0, x)
    elif WAY == "masked atomic":
        tl.atomic_add(out_ptr + at * 0, x, mask=at < n)
    else:
        x = tl.flip(x, 0)
        tl.store(out_ptr + at, tl.where(x > 0, x, 0.0), mask=at >= BLOCK - n)


@triton.jit
def scanned_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)  # without other
    tl.store(out_ptr, tl.max(tl.cumsum(x, 0), axis=0))


@triton.jit
def running_sum_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    """Lanes without a value are behind those that are stored."""
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.cumsum(tl.load(x_ptr + at, mask=at < n), 0), mask=at < n)


@triton.jit
def rounded_sum_kernel(x_ptr, out_ptr, n, DECAY: tl.constexpr):
    """Each addition is computed in fp32 and rounded. A mean that decays stops changing too, and is no sum."""
    total = tl.zeros((16,), tl.bfloat16)
    for step in range(n):
        x = tl.load(x_ptr + step * 16 + tl.arange(0, 16)).to(tl.float32)
        total = ((total.to(tl.float32) * 0.5 if DECAY else total.to(tl.float32)) + x).to(tl.bfloat16)
    tl.store(out_ptr + tl.arange(0, 16), total)
