"""Reductions, scans and sorting."""

# ruff: noqa: PLR0917

from functools import partial

import torch
import triton
import triton.language as tl

from ..interpreting import Launched

M, N = 8, 16


@triton.jit
def reductions_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    """Rows of the result: sum, max and min of each column, the product of its first elements."""
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    tl.store(out_ptr + columns, tl.sum(x, axis=0))
    tl.store(out_ptr + N + columns, tl.max(x, axis=0))
    tl.store(out_ptr + 2 * N + columns, x.min(0))
    centred = x - tl.sum(x, axis=-1, keep_dims=True) / N
    tl.store(out_ptr + 3 * N + columns, tl.sum(centred * centred, 0) + tl.max(x) - tl.min(x, axis=None))


def _reduced(kind: torch.dtype, tolerance: float) -> Launched:
    x, out = torch.randn(M, N).to(kind), torch.empty(4, N)
    reductions_kernel[(1,)](x, out, M, N)
    y = x.float()
    centred = y - y.mean(1, keepdim=True)
    expected = torch.stack([y.sum(0), y.amax(0), y.amin(0), (centred * centred).sum(0) + y.max() - y.min()])
    flops = (M - 1) * N + M * (N - 1) + M + 2 * M * N + (M - 1) * N + 2 * N
    return Launched(out, expected, x, flops=flops, tolerance=tolerance)


reductions_over_axes = partial(_reduced, torch.float32, 1e-5)
reductions_in_bfloat16 = partial(_reduced, torch.bfloat16, 2e-2)


@triton.jit
def indices_kernel(x_ptr, out_ptr, index_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + columns[None, :])
    value, index = tl.max(x, 1, return_indices=True)
    lowest, at = tl.min(x, 1, return_indices=True, return_indices_tie_break_left=False)
    tl.store(out_ptr + rows, value)
    tl.store(out_ptr + M + rows, lowest)
    tl.store(index_ptr + rows, index)
    tl.store(index_ptr + M + rows, at)
    tl.store(index_ptr + 2 * M + rows, tl.argmax(x, 1, keep_dims=True).reshape(M))
    tl.store(index_ptr + 3 * M + rows, x.argmin(1))


def indices_of_extremes() -> Launched:
    x, out, index = torch.randn(M, N), torch.empty(2, M), torch.empty(4, M, dtype=torch.int32)
    x[2, 3] = x[2, 9] = 100
    indices_kernel[(1,)](x, out, index, M, N)
    first, last = torch.full((M,), 0) + x.argmax(1), x.argmin(1)
    first[2] = 3
    return Launched([out, index], [torch.stack([x.amax(1), x.amin(1)]), torch.stack([first, last, first, last])], x)


@triton.jit
def welford(mean_a, m2_a, weight_a, mean_b, m2_b, weight_b):
    delta = mean_b - mean_a
    weight = weight_a + weight_b
    share = tl.where(weight == 0.0, 0.0, weight_b / weight)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * weight_a * share, weight


@triton.jit
def welford_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    rows = tl.arange(0, M)
    x = tl.load(x_ptr + rows[:, None] * N + tl.arange(0, N)[None, :])
    mean, m2, weight = tl.reduce((x, tl.zeros_like(x), tl.full((M, N), 1.0, tl.float32)), 1, welford)
    tl.store(out_ptr + rows, mean)
    tl.store(out_ptr + M + rows, m2 / weight)


def a_reduction_of_ones_own() -> Launched:
    """10 operations for each of the N - 1 combinations of a row: a comparison and a choice are none."""
    x, out = torch.randn(M, N), torch.empty(2, M)
    welford_kernel[(1,)](x, out, M, N)
    expected = torch.stack([x.mean(1), x.var(1, correction=0)])
    return Launched(out, expected, x, flops=M * (N - 1) * 10 + M, tolerance=1e-5)


@triton.jit
def scans_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr):
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    at = rows[:, None] * N + columns[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tl.cumsum(x, 1))
    tl.store(out_ptr + M * N + at, tl.cumsum(x, axis=0, reverse=True))
    tl.store(out_ptr + 2 * M * N + at, tl.cumprod(x, axis=1))


def _scanned(kind: torch.dtype, tolerance: float) -> Launched:
    x, out = torch.randn(M, N).to(kind), torch.empty(3, M, N)
    scans_kernel[(1,)](x, out, M, N)
    y = x.float()
    expected = torch.stack([y.cumsum(1), y.flip(0).cumsum(0).flip(0), y.cumprod(1)])
    return Launched(out, expected, x, flops=2 * M * (N - 1) + (M - 1) * N, tolerance=tolerance)


cumulative_sums_and_products = partial(_scanned, torch.float32, 1e-5)
cumulative_sums_in_bfloat16 = partial(_scanned, torch.bfloat16, 2e-2)


@triton.jit
def recurrence(a_left, b_left, a_right, b_right):
    return a_left * a_right, b_left * a_right + b_right


@triton.jit
def recurrence_kernel(a_ptr, b_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, REVERSE: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    _, h = tl.associative_scan((tl.load(a_ptr + at), tl.load(b_ptr + at)), 1, recurrence, reverse=REVERSE)
    tl.store(out_ptr + at, h)


def _recurrence(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    h, rows = torch.zeros(a.shape[0]), []
    for at in range(a.shape[1]):
        h = h * a[:, at] + b[:, at]
        rows.append(h)
    return torch.stack(rows, 1)


def a_reversed_associative_scan_of_ones_own() -> Launched:
    """h[i] = a[i] h[i+1] + b[i], three operations an element but for the last of a row."""
    a, b, out = torch.rand(M, N), torch.randn(M, N), torch.empty(M, N)
    recurrence_kernel[(1,)](a, b, out, M, N, True)
    expected = _recurrence(a.flip(1), b.flip(1)).flip(1)
    return Launched(out, expected, [a, b], flops=3 * M * (N - 1), tolerance=1e-5)


@triton.jit
def sort_kernel(x_ptr, out_ptr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, M)[:, None]
    at = rows * N + tl.arange(0, N)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, tl.sort(x))
    tl.store(out_ptr + M * N + at, tl.sort(x, descending=True))
    tl.store(out_ptr + 2 * M * N + at, tl.flip(x, 1))
    tl.store(out_ptr + 3 * M * N + rows * K + tl.arange(0, K)[None, :], tl.topk(x, K))


def sort_flip_and_topk() -> Launched:
    x = torch.randn(M, N).bfloat16()
    out = torch.empty(3 * M * N + 4 * M, dtype=torch.bfloat16)
    sort_kernel[(1,)](x, out, M, N, 4)
    expected = [x.sort(1).values, x.sort(1, descending=True).values, x.flip(1), x.topk(4, 1).values]
    return Launched(out, torch.cat([part.flatten() for part in expected]), x)


@triton.jit
def integers_kernel(x_ptr, out_ptr, N: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, N))
    tl.store(out_ptr, tl.sum(x))
    tl.store(out_ptr + 1, tl.xor_sum(x.to(tl.int32)))
    tl.store(out_ptr + 2, tl.max(x))
    tl.store(out_ptr + 3, tl.reduce_or(x.to(tl.int32), 0))
    tl.store(out_ptr + 4, tl.sum(x > 50))


def reductions_of_integers() -> Launched:
    """Eight bits are summed in 32."""
    x, out = torch.randint(0, 128, (N,), dtype=torch.int8), torch.empty(5, dtype=torch.int32)
    integers_kernel[(1,)](x, out, N)
    xor = either = 0
    for value in x.tolist():
        xor, either = xor ^ value, either | value
    expected = torch.tensor([x.sum().item(), xor, x.max().item(), either, (x > 50).sum().item()])
    return Launched(out, expected, x, flops=0)
