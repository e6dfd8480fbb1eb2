"""Repeats calls of a public function whose gradient is wanted: those that apply one operator to their own tensors.

Such a call checks its arguments, makes views and asks the operator how to launch, which took longer than autograd itself. A later call
with arguments alike applies the operator's ``autograd.Function`` at once, and autograd sees what it would have seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tilescope_kernels._shared.notes import Notes


class Unknown(Exception):
    """A tensor that comes from elsewhere than a call that is to be repeated."""


class Note(NamedTuple):
    """A recorded application of an operator's ``autograd.Function``."""

    apply: Callable[..., Any]
    args: tuple[Any, ...]
    made: Any


#: Records of the operators that are applied.
NOTES: Notes[Note] = Notes()


def apply(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """``function(*args)``, the ``apply`` of an operator's ``autograd.Function``, which is recorded where somebody records."""
    made = function(*args)
    if NOTES and (notes := NOTES.here()) is not None:
        notes.append(Note(function, args, made))
    return made


class Applied:
    """Repeats an application with other tensors. Raises Unknown where it is not one of the call's own tensors alone."""

    def __init__(self, notes: Sequence[Note], given: Sequence[torch.Tensor], result: Any) -> None:
        #: As of ``Again``.
        self.recognizer: Any = None
        self.next: Any = self
        if len(notes) != 1:
            raise Unknown
        self._apply, args, made = notes[0]
        tensors = [place for place, value in enumerate(args) if isinstance(value, torch.Tensor)]
        self._template = [None if place in tensors else value for place, value in enumerate(args)]
        self._places = [(place, *_source(args[place], given)) for place in tensors]
        self._single_made, self._single = isinstance(made, torch.Tensor), isinstance(result, torch.Tensor)
        if not self._single and type(result) is not tuple:
            raise Unknown
        results = [made] if self._single_made else made
        self._outputs = [_source(each, results) for each in ([result] if self._single else result)]

    def __call__(self, addresses: list[int], tensors: list[torch.Tensor]) -> Any:
        """Apply the operator to the tensors, and return the results."""
        args = self._template.copy()
        for place, which, view in self._places:
            args[place] = tensors[which] if view is None else view.of(tensors[which], view.given)
        made = self._apply(*args)
        if self._single_made:
            made = (made,)
        outputs = [made[which] if view is None else view.of(made[which], view.given) for which, view in self._outputs]
        return outputs[0] if self._single else tuple(outputs)


def _source(value: Any, tensors: Sequence[Any]) -> tuple[int, _View | None]:
    """Which of the tensors ``value`` is, or which it is a view of with all its elements, and how."""
    for which, tensor in enumerate(tensors):
        if value is tensor:
            return which, None
    for which, tensor in enumerate(tensors):
        if isinstance(value, torch.Tensor) and isinstance(tensor, torch.Tensor) and (view := _view(value, tensor)):
            return which, view
    raise Unknown


class _View(NamedTuple):
    """A method of a tensor that makes a view, and what it is given: a shape, or an order of dimensions."""

    of: Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]
    given: tuple[int, ...]


def _view(value: torch.Tensor, tensor: torch.Tensor) -> _View | None:
    """How ``value`` is a view of all elements of ``tensor``: in the same order, or with permuted dimensions. None for others."""
    if not value.numel() or value.data_ptr() != tensor.data_ptr():
        return None
    alike = (value.numel(), value.dtype, value.requires_grad) == (tensor.numel(), tensor.dtype, tensor.requires_grad)
    if not alike or not value._is_view():
        return None
    shape, in_order = tuple(value.shape), value.is_contiguous() and tensor.is_contiguous()
    wanted, found = ([*zip(each.shape, each.stride(), strict=True)] for each in (value, tensor))
    # A view of a shape may give dimensions of extent 1 other strides than a permutation, which tell whether channels are last.
    if sorted(wanted) == sorted(found) and not (in_order and tensor.detach().view(shape).stride() == value.stride()):
        order = []
        for side in wanted:
            order.append(found.index(side))
            found[order[-1]] = (-1, -1)  # taken: dimensions of extent 1 may be alike
        return _View(torch.Tensor.permute, tuple(order))
    return _View(torch.Tensor.view, shape) if in_order else None
