"""What one launch can reach: the programs of a grid and the integers of its kernels, and how to split what is beyond.

Triton passes an integer argument in 32 bits if it fits, and a kernel's arithmetic stays in 32 bits until an operand has more.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

import torch

from tilescope_kernels._shared.launching import BEYOND

#: Most programs along a grid's second axis.
SECOND_AXIS = 65535
#: Most rows or columns of a tile of a matrix product.
_TILE = 256


def is_far(*strides: int) -> bool:
    """Whether offsets within the largest tile of a matrix product, of 256 rows or columns, may exceed int32."""
    return _TILE * max(strides) >= BEYOND


def slabs(most: int, *tensors: torch.Tensor, axis: int = 0) -> Iterable[tuple[torch.Tensor, ...]]:
    """Parts of tensors along ``axis``, at most ``most`` each, in order, empty past a tensor's end; the tensors themselves if they fit."""
    if max(tensor.shape[axis] for tensor in tensors) <= most:
        return (tensors,)
    every = zip_longest(*(tensor.split(most, axis) for tensor in tensors))
    return (
        tuple(tensor.narrow(axis, 0, 0) if part is None else part for tensor, part in zip(tensors, parts, strict=True))
        for parts in every
    )
