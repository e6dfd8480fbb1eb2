"""Inputs without values: drawing the floats of a large case takes longer than counting its launch. Imports torch."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from tilescope_kernels import dispatch
from torch.utils._pytree import tree_leaves

from tilescope.execution import assumed_tensors, fresh_memory
from tilescope.execution.pytorch_traffic import NeedsData

_FILL, _DRAW = frozenset({"normal_", "uniform_", "exponential_"}), frozenset({"randn", "rand"})
#: Namespaces of operators that compute nothing else from floats than their results. Code inside others is not seen.
_KNOWN = frozenset({"aten", "prims", "tilescope"})
#: Methods that read values without an operator.
_READ = ("tolist", "numpy", "__dlpack__")


@contextlib.contextmanager
def undrawn() -> Iterator[None]:
    """Leaves random floats as their memory is.

    Raises NeedsData where the code draws other tensors, and where it computes anything else than floats from floats: a mask, an
    index, a number, an array of NumPy.
    """
    kind = torch.Tensor
    reads = ((kind, name, functools.partial(_read, getattr(kind, name))) for name in _READ)
    with _Undrawn(), assumed_tensors.replaced(reads):  # type: ignore[no-untyped-call]
        yield


def _read(original: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if _is_float(tensor):
        raise NeedsData("the code reads floats")
    return original(tensor, *args, **kwargs)


class _Undrawn(dispatch.OnLooker):
    """What ``undrawn`` says of operators."""

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
        allocated = name.startswith("new_") or name.endswith("_like")
        depends = not allocated and any(map(_is_float, fresh_memory.tensors([args, options])))
        if depends and func.namespace not in _KNOWN:
            raise NeedsData("the code calls another library's operator")
        result = func(*args, **options)
        written = [value for value, known in zip(args, func._schema.arguments, strict=False) if known.is_write]
        if depends and not _are_floats(tree_leaves([result, written])):
            raise NeedsData("the code computes other values from floats")
        return result


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _are_floats(values: Any) -> bool:
    return all(value is None or (isinstance(value, torch.Tensor) and _is_float(value)) for value in values)
