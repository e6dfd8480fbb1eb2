"""Masks of attention's Triton kernels, and what differs beside one of numbers that are added to the scores.

Libraries hide keys with the lowest finite number. Times log2(e) that is -inf, so that beside such a mask scores are not in base 2: their
differences are scaled instead. A row of nothing else is the mean of its values. The logarithm of their number is lost in a sum with the
row's largest score, so that the log-sum-exp has two parts: the largest score, infinity where the row sees no key, and log2(sum of
2^difference to it).
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


def is_added(mask: torch.Tensor | None) -> bool:
    """Whether a mask is of numbers."""
    return mask is not None and mask.dtype != torch.bool


def checked_scale(scale: float | None, query: torch.Tensor) -> float:
    """``scale``, by default 1 / sqrt(columns). Raises ValueError for a scale below 0 and for one that is not finite."""
    found = 1.0 / math.sqrt(max(query.shape[-1], 1)) if scale is None else float(scale)
    if not 0.0 <= found < math.inf:
        raise ValueError(f"scale is {scale}: give a number of at least 0")
    return found


def scale_of_scores(scale: float, mask: torch.Tensor | None) -> float:
    """``score_scale`` of the kernels: ``scale`` to base 2, for the hardware computes exp2, unless numbers are added to the scores."""
    return scale if is_added(mask) else scale * math.log2(math.e)


def lse_shape(q: torch.Tensor, mask: torch.Tensor | None) -> tuple[int, ...]:
    """Shape of the log-sum-exp of the rows of ``q`` (batch, heads, queries, columns)."""
    return (*q.shape[:2], 2, q.shape[2]) if is_added(mask) else tuple(q.shape[:3])


@triton.constexpr_function
def adds(mask):
    """``is_added`` of a pointer or None, in kernels."""
    return mask is not None and mask.dtype.element_ty != tl.int1


@triton.jit
def power(difference, mask):
    """The exponential of a difference of scores."""
    if adds(mask):
        return tl.exp2(difference * _LOG2_E)
    else:
        return tl.exp2(difference)


@triton.jit
def softmax(scores, lse, log, mask):
    """The exponential of scores over their row's sum: of its two parts beside a mask of numbers."""
    if adds(mask):
        return tl.exp2((scores - lse) * _LOG2_E - log)
    else:
        return tl.exp2(scores - lse)


@triton.jit
def masked(scores, mask, strides, query, key, queries, keys):
    """Apply one head's mask to scores: -inf where a boolean is false, a number is added."""
    offsets = tl.cast(query, tl.int64) * strides[2] + tl.cast(key, tl.int64) * strides[3]
    inside = (query < queries) & (key < keys)
    if mask.dtype.element_ty == tl.int1:
        return tl.where(tl.load(mask + offsets, mask=inside, other=0), scores, float("-inf"))
    else:
        return scores + tl.load(mask + offsets, mask=inside, other=0.0).to(tl.float32)
