"""What calls with tensors alike in all but their data share: a plan, which takes longer than a launch, and forms of TMA descriptors."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

#: Writes results of tensors, which it takes.
Write = Callable[..., None]
#: Most plans of a function. When there are more, all are made anew.
_MOST = 8192


def planned(
    plans: dict[Hashable, Any], plan: Callable[[], Any], tensors: tuple[torch.Tensor, ...], *rest: Hashable
) -> Any:
    """``plan()``, which ``plans`` keeps for tensors on a GPU alike in dtype, shapes, strides and 16-byte alignment, and equal ``rest``."""
    device = tensors[0].get_device()
    parts = [tensors[0].dtype, device, *rest]
    for tensor in tensors:
        parts += (tensor.shape, tensor.stride(), tensor.data_ptr() & 15)
    key = tuple(parts)
    if (made := plans.get(key)) is None:
        made = plan()
        if device >= 0:
            if len(plans) >= _MOST:
                plans.clear()
            plans[key] = made
    return made


class Form:
    """A TMA descriptor but for its tensor. It makes descriptors without the checks of their class, which take longer than a launch."""

    __slots__ = ("_fields", "_kind")

    def __init__(self, kind: type, shape: Any, strides: Any, block: Any, **more: Any) -> None:
        self._kind = kind
        self._fields = {"shape": shape, "strides": strides, "block_shape": block, "padding": "zero", **more}

    def of(self, base: torch.Tensor) -> Any:
        """The descriptor of a tensor of this shape and these strides, or of its transpose."""
        descriptor = object.__new__(self._kind)
        descriptor.__dict__.update(self._fields, base=base)
        return descriptor
