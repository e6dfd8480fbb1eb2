"""What a replay allocates: as few tensors as its launches and results allow.

An allocation takes longer than anything else that a replay does: about a third of softmax's time, and half of cross-entropy's while it
made three (on the CPU with stubs of launches, AMD EPYC, 2026-11-28, Python 3.11, torch 2.13).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch

from tilescope_kernels._shared.integers import cdiv

#: Bytes to which PyTorch's allocator rounds sizes: so far apart are tensors that share an allocation.
_ROUNDED = 512
#: Most bytes of a shared allocation. PyTorch's allocator has these from blocks of 2 MiB, so larger ones are sought elsewhere.
_MOST = 1 << 20


class Allocated(NamedTuple):
    """A recorded allocation, and how a replay shapes it."""

    tensor: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Plan:
    """The allocations of a replay, which appends their tensors to those it is given.

    ``taken`` are the tensors that launches or results use, as indices of ``given`` and then ``allocated``. Others are left out. Of those
    that are not in ``whole``, launches see nothing but the address: small ones share an allocation.
    """

    def __init__(
        self, given: Sequence[torch.Tensor], allocated: Sequence[Allocated], taken: Collection[int], whole: Collection[int]
    ) -> None:  # fmt: skip
        #: For each allocation the index of the tensor that it is made like, and the arguments.
        self.allocations: list[tuple[int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = []
        #: For each tensor in use its index in a replay, and where it begins there in bytes.
        self._places = {place: (place, 0) for place in range(len(given))}
        self._count = len(given)
        # ``new_empty`` of a tensor of the same dtype is faster than ``torch.empty`` with a device and a dtype.
        self._alike = {tensor.dtype: place for place, tensor in reversed([*enumerate(given)])}
        between = {}
        for place, each in enumerate(allocated, len(given)):
            if place in whole:
                self._places[place] = self._allocate(each), 0
            elif place in taken:
                between[place] = each
        offsets, end = {}, 0
        for place, each in sorted(between.items(), key=lambda item: _size(item[1])):
            start = cdiv(end, _ROUNDED) * _ROUNDED
            if start + _size(each) > _MOST:
                self._places[place] = self._allocate(each), 0
            else:
                offsets[place], end = start, start + _size(each)
        if offsets:
            like = next((place for place in offsets if between[place].tensor.dtype in self._alike), next(iter(offsets)))
            tensor = between[like].tensor
            shared = self._allocate(Allocated(tensor, (cdiv(end, tensor.element_size()),), (1,)))
            self._places |= {place: (shared, offset) for place, offset in offsets.items()}

    def found(self, which: int, offset: int = 0) -> tuple[int, int]:
        """The index in a replay, and the offset there in bytes, of what was at an offset in a recorded tensor."""
        place, start = self._places[which]
        return place, start + offset

    def _allocate(self, each: Allocated) -> int:
        place, dtype = self._count + len(self.allocations), each.tensor.dtype
        options = {} if dtype in self._alike else {"dtype": dtype}
        self.allocations.append((self._alike.get(dtype, 0), each.shape, each.strides, options))
        self._alike.setdefault(dtype, place)
        return place


def _size(each: Allocated) -> int:
    return each.tensor.untyped_storage().nbytes()
