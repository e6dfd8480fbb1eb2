"""Inputs without values: drawing the floats of a large case takes longer than counting its launch. Imports torch."""

from __future__ import annotations

from typing import Any

import torch
from tilescope_kernels import dispatch
from torch.utils._pytree import tree_leaves

from tilescope.execution.pytorch_traffic import NeedsData

_FILL, _DRAW = frozenset({"normal_", "uniform_", "exponential_"}), frozenset({"randn", "rand"})


class Undrawn(dispatch.OnLooker):
    """Leaves random floats as their memory is.

    Raises NeedsData where the code draws other tensors, and where it computes anything else than floats from floats: a mask, an
    index, a number.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = func.overloadpacket.__name__, kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags:
            if name in _FILL and args[0].is_floating_point():
                return args[0]
            if name in _DRAW and "out" not in options:
                return torch.empty(args[0], **{key: options[key] for key in ("dtype", "device") if key in options})
            raise NeedsData("the code draws more than floats")
        if name == "_to_copy" and [*options] == ["dtype"] and _are_floats(args) and options["dtype"].is_floating_point:
            return torch.empty_like(args[0], dtype=options["dtype"])
        result = func(*args, **options)
        read = [leaf for leaf in tree_leaves([args, options]) if isinstance(leaf, torch.Tensor)]
        allocated = name.startswith("new_") or name.endswith("_like")
        if not allocated and any(map(torch.is_floating_point, read)) and not _are_floats(tree_leaves(result)):
            raise NeedsData("the code computes other values from floats")
        return result


def _are_floats(values: Any) -> bool:
    return all(value is None or (isinstance(value, torch.Tensor) and value.is_floating_point()) for value in values)
