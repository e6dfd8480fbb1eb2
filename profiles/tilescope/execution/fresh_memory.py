"""Memory that ``torch.empty`` made on an assumed GPU: which of its bytes launches stored, and who reads others. Imports torch."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves

#: Operators that make uninitialised memory, and operators that read nothing of a tensor, or only places that another one chooses.
_MAKING = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
_CHOOSING = frozenset({
    "index", "index_select", "gather", "embedding", "take", "masked_select", "where",
    *(f"{what}_like" for what in ("zeros", "ones", "full", "rand", "randn", "randint")), "new_zeros", "new_ones", "new_full",
})  # fmt: skip
#: Operators whose result has an element for each element of the dimensions that they leave.
_REDUCING = frozenset({"sum", "mean", "amax", "amin"})
#: Largest allocation that is followed, in bytes.
_MOST = 256 << 20
_ATTRIBUTE = "_tilescope_fresh"

_here = threading.local()

Marks = npt.NDArray[np.bool_]


@dataclass
class Fresh:
    """An allocation that holds chance until launches store to it. ``stored`` marks their bytes.

    ``settled`` says that its bytes are no fault: an operator wrote some, or a launch chose places by what it had loaded. ``read``
    says that something has read it, ``reader`` is the first operator that read bytes that no launch had stored, and ``missed`` the
    number of those. The result of a reduction over some dimensions has ``blame``, which notes that the reduction read such bytes.
    """

    stored: Marks
    launched: bool = False
    settled: bool = False
    read: bool = False
    reader: str = ""
    missed: int = 0
    blame: Callable[[], None] | None = None

    def missing(self, tensor: torch.Tensor) -> Marks:
        """Marks the elements of a tensor in this memory, in their order, of which no launch has stored the first byte."""
        size = tensor.element_size()
        steps = [stride * size for stride in tensor.stride()]
        first = self.stored[tensor.storage_offset() * size :]
        return ~np.lib.stride_tricks.as_strided(first, tuple(tensor.shape), steps).reshape(-1)

    def operated(self, name: str, tensor: torch.Tensor, *, writes: bool) -> None:
        """Notes that an operator reads a tensor in this memory, or writes it."""
        if writes:
            self.settled = True
        elif self.launched and not self.settled and not self.reader and name not in _CHOOSING | _MAKING:
            self.read = True
            missed = int(self.missing(tensor).sum()) * tensor.element_size()
            if missed and self.blame:
                self.blame()
            elif missed:
                self.reader, self.missed = name, missed

    def reduced(self, name: str, tensor: torch.Tensor, along: Any) -> Fresh | None:
        """The memory of the result of a reduction that keeps the elements without a value apart; None for any other result."""
        if not along or not self.launched or self.settled or not tensor.is_contiguous():
            return None
        missing = self.missing(tensor).reshape(tensor.shape)
        found = missing.any(tuple(along))
        if not found.any() or found.all() or (found != missing.all(tuple(along))).any():
            return None
        self.read = True
        blame = self.blame or functools.partial(self.operated, name, tensor, writes=False)
        return Fresh(np.repeat(~found.reshape(-1), tensor.element_size()), launched=True, blame=blame)


def made(func: Any, storage: Any, reduced: Fresh | None) -> None:
    """Notes a storage that the operator ``func`` has made, and what is known of the result of a reduction."""
    real = isinstance(storage, torch.UntypedStorage) and storage.device.type == "cpu"
    if real and reduced and reduced.stored.size == storage.nbytes():
        setattr(storage, _ATTRIBUTE, reduced)
    if func.overloadpacket.__name__ in _MAKING and real and 0 < storage.nbytes() <= _MOST:
        setattr(storage, _ATTRIBUTE, Fresh(np.zeros(storage.nbytes(), dtype=np.bool_)))


def of(tensor: torch.Tensor) -> Fresh | None:
    """The fresh memory of a tensor; None for other memory."""
    try:
        return getattr(tensor.untyped_storage(), _ATTRIBUTE, None)
    except (NotImplementedError, RuntimeError):  # sparse tensors, and those that wrap others
        return None


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """While active, this thread's operators are not the user's."""
    before, _here.unseen = getattr(_here, "unseen", False), True
    try:
        yield
    finally:
        _here.unseen = before


def operated(func: Any, args: Any, kwargs: Any) -> Fresh | None:
    """Notes what the operator ``func`` is about to read and write. Returns what is known of the result of a reduction."""
    if getattr(_here, "unseen", False):
        return None
    schema, name, reduced = func._schema, func.overloadpacket.__name__, None
    views = any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
    for position, argument in enumerate(schema.arguments):
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in tensors(given) if writes or not views else ():
            if fresh := of(tensor):
                along = args[1] if name in _REDUCING and len(args) > 1 and not writes else ()
                reduced = fresh.reduced(name, tensor, along)
                if not reduced:
                    fresh.operated(name, tensor, writes=writes)
    return reduced


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors in an operator's arguments or results."""
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
