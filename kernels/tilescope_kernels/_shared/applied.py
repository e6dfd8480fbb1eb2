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
        for place, which, shape in self._places:
            args[place] = tensors[which] if shape is None else tensors[which].view(shape)
        made = self._apply(*args)
        if self._single_made:
            made = (made,)
        outputs = [made[which] if shape is None else made[which].view(shape) for which, shape in self._outputs]
        return outputs[0] if self._single else tuple(outputs)


def _source(value: Any, tensors: Sequence[Any]) -> tuple[int, tuple[int, ...] | None]:
    """Which of the tensors ``value`` is, and its shape if it is a view of the same elements in the same order."""
    for which, tensor in enumerate(tensors):
        if value is tensor:
            return which, None
    for which, tensor in enumerate(tensors):
        if isinstance(value, torch.Tensor) and isinstance(tensor, torch.Tensor) and _is_view(value, tensor):
            return which, tuple(value.shape)
    raise Unknown


def _is_view(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    if not value.numel() or value.data_ptr() != tensor.data_ptr():
        return False
    alike = (value.numel(), value.dtype, value.requires_grad) == (tensor.numel(), tensor.dtype, tensor.requires_grad)
    return alike and value._is_view() and value.is_contiguous() and tensor.is_contiguous()
