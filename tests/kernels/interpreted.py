"""Switches Triton's interpreter on, which patches ``triton.language``: the first import of a script of checks.

It computes bf16 wrongly, so that checks in it are of fp32 and fp16, against fp64 references.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"

import torch
from checks import INF, NAN, SPECS, against_reference, close, draw, main, poisoned

__all__ = [
    "INF",
    "NAN",
    "SPECS",
    "against_reference",
    "close",
    "draw",
    "grads",
    "main",
    "poisoned",
    "targets",
    "unusual",
]


def grads(out, leaves, upstream=None):
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if upstream is None else upstream)


def targets(rows: int, classes: int) -> torch.Tensor:
    """Classes of which every fourth is ignored."""
    values = torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(3))
    values[1::4] = -100
    return values


def unusual(columns: int) -> torch.Tensor:
    """Eight rows, of which five hold infinities, NaN or numbers whose sum overflows."""
    x = draw(8, columns)
    x[0] = -INF
    x[1, 5] = NAN
    x[2, 4] = INF
    x[3, :2000] = -INF
    x[4] = 3e38
    return x
