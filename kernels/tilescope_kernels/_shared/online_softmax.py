"""Online softmax: maximum and sum of exponentials of a row of any length, in one read.

Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tilescope_kernels._shared.exponentials import exp, finite
from tilescope_kernels._shared.row_tiles import columns_of, ends


@triton.jit
def _add(x, largest, total):
    """Update each lane's running maximum and sum of exponentials with ``x`` (lanes, width)."""
    raised = tl.maximum(largest, tl.max(x, axis=1))
    shift = finite(raised)
    return raised, total * exp(largest - shift) + tl.sum(exp(x - shift[:, None]), axis=1)


@triton.jit
def sum_exp(
    x_ptr, before, length, columns,
    LANES: tl.constexpr, WIDTH: tl.constexpr, SKEWED: tl.constexpr, SUM: tl.constexpr = False, KEEP: tl.constexpr = False,
    counts=None,
):  # fmt: skip
    """Maximum, shift, sum of ``exp(x - shift)`` and (if ``SUM``) plain sum of a row's ``columns``, in fp32.

    The shift is the maximum, or 0 where that is infinite. ``x_ptr``, ``before`` and ``length`` are those of the row's
    ``whole_part``. ``KEEP`` asks the caches to keep the row for another read. If ``counts`` is false, only the row's last
    step and ends are read. Infinities and NaN are handled as in ``torch.logsumexp``.

    A step reads ``LANES`` pieces of ``WIDTH`` elements, 16 bytes each, one per thread. The maximum of a piece needs no
    exchange between threads, and the running sum is rescaled once per piece instead of once per element.
    """
    step: tl.constexpr = LANES * WIDTH
    policy: tl.constexpr = "evict_last" if KEEP else "evict_first"
    offsets = columns_of(0, LANES, WIDTH)
    # Running maximum and sums per lane. Lanes are reduced once, after the loop.
    largest = tl.full((LANES,), float("-inf"), tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    plain = tl.zeros((LANES,), tl.float32)
    if SKEWED:
        offset, inside = ends(before, length, columns, WIDTH)
        end = tl.load(x_ptr + offset, mask=inside, other=float("-inf"), eviction_policy=policy).to(tl.float32)
    # A mask costs as many instructions as the sums themselves: only the last step has one.
    whole = length // step * step
    if whole < length:
        mask = whole + offsets < length
        x = tl.load(x_ptr + whole + offsets, mask=mask, other=float("-inf"), eviction_policy=policy).to(tl.float32)
        largest, total = _add(x, largest, total)
        if SUM:
            plain += tl.sum(tl.where(mask, x, 0.0), axis=1)
    if counts is not None:
        whole = tl.where(counts, whole, 0)
    for start in range(0, whole, step):
        x = tl.load(x_ptr + start + offsets, eviction_policy=policy).to(tl.float32)
        largest, total = _add(x, largest, total)
        if SUM:
            plain += tl.sum(x, axis=1)
    row_largest = tl.max(largest, axis=0)
    if SKEWED:
        row_largest = tl.maximum(row_largest, tl.max(end, axis=0))
    shift = finite(row_largest)
    row_total = tl.sum(total * exp(largest - shift), axis=0)
    row_plain = tl.sum(plain, axis=0)
    if SKEWED:
        row_total += tl.sum(exp(end - shift), axis=0)
        row_plain += tl.sum(tl.where(inside, end, 0.0), axis=0)
    return row_largest, shift, row_total, row_plain
