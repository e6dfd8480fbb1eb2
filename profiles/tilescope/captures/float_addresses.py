"""Tests by interpretation whether a launch's accesses depend on floats, whose contents must then be kept. Imports torch and triton."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from triton.runtime.jit import TensorWrapper

from tilescope.captures import arguments
from tilescope.execution.launches import Launch
from tilescope.interpreter import blocks, interpret

#: Most seconds for a test.
_LIMIT = 1.0


def in_use(launch: Launch) -> bool:
    """Whether an address, a mask or a branch depends on a float, in the programs that are interpreted within a second."""
    copies: dict[int, torch.UntypedStorage] = {}
    args = tuple(_copied(value, copies) for value in launch.args)
    copy = dataclasses.replace(launch, args=args, kwargs={n: _copied(v, copies) for n, v in launch.kwargs.items()})
    try:
        interpret.run(copy, meter=interpret.meter(copy), values=False, allowance=interpret.Allowance(_LIMIT))
    except blocks.NeedsValues:
        return True
    except (interpret.TooLong, blocks.NotServed, interpret.InterpretationFailed):
        return False
    return False


def _copied(value: Any, copies: dict[int, torch.UntypedStorage]) -> Any:
    """A copy on the CPU. The contents of floats are not copied: they are never read, and their pages never allocated."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        if storage._cdata not in copies:
            copy = torch.empty(storage.nbytes(), dtype=torch.uint8)
            if not (value.dtype.is_floating_point or value.dtype.is_complex):
                copy.copy_(torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage))
            copies[storage._cdata] = copy.untyped_storage()
        empty = torch.empty(0, dtype=value.dtype)
        return empty.set_(copies[storage._cdata], value.storage_offset(), value.shape, value.stride())
    if isinstance(value, TensorWrapper):
        return TensorWrapper(_copied(value.base, copies), value.dtype)
    if arguments.is_descriptor(value):
        return dataclasses.replace(value, base=_copied(value.base, copies))
    if isinstance(value, tuple):
        items = [_copied(item, copies) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return value
