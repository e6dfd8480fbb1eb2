"""Counts the memory traffic of PyTorch's own operators.

Unfused code is a sequence of operators, each of which reads its inputs and writes its outputs once: fusion saves that traffic.
On meta tensors counting is instant whatever the size. Imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tilescope_kernels import dispatch
from torch.utils.flop_counter import flop_registry

from tilescope.execution import fresh_memory

#: Operators that allocate or make views: they move no data.
_FREE = frozenset({
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted", "detach", "alias",
    "lift_fresh", "_unsafe_view", "_reshape_alias", "resize_", "set_", "_local_scalar_dense", "record_stream",
})  # fmt: skip
#: In-place operators that overwrite their first argument without reading it.
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_"})
#: Operators that create a tensor like their first argument, without reading it.
_CREATE_LIKE = frozenset({
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones", "new_full",
})  # fmt: skip
#: Operators with one operation for each element written, and for each element read.
_OPERATION_WRITTEN = frozenset({
    "add", "sub", "rsub", "mul", "div", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "erf",
    "tanh", "pow", "square",
})  # fmt: skip
_OPERATION_READ = frozenset({"sum", "mean"})
#: Operators without arithmetic.
_NO_OPERATION = frozenset({
    "copy", "clone", "_to_copy", "fill", "zero", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "cat",
    "stack", "amax", "amin", "max", "min", "maximum", "minimum", "relu", "where", "masked_fill", "gt", "ge", "lt", "le",
    "eq", "ne", "index", "gather", "abs", "neg", "threshold_backward", "new_zeros", "slice_backward", "expand_copy",
})  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """An operator that moves data: bytes read and written, and its operations (None: unknown)."""

    name: str
    bytes_read: int
    bytes_written: int
    flops: int | None


class NeedsData(Exception):
    """The code reads a value, which tensors without data do not have."""


class CountOperators(dispatch.OnLooker):
    """Passes every operator that moves data to ``record``. With ``values=False`` reading a value raises NeedsData."""

    def __init__(self, record: Callable[[Operation], None], *, values: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record
        self.values = values

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.values and func is torch.ops.aten._local_scalar_dense.default:
            raise NeedsData("the code looks at a tensor's value")
        result = func(*args, **(kwargs or {}))
        operation = _operation(func, args, kwargs or {}, result)
        if operation is not None:
            self.record(operation)
        return result


def _operation(func: Any, args: Any, kwargs: Any, result: Any) -> Operation | None:
    name = func.overloadpacket.__name__
    if func.namespace != "aten" or name in _FREE or func.is_view:
        return None
    arguments = func._schema.arguments
    read: list[torch.Tensor] = []
    written: list[torch.Tensor] = []
    for position, argument in enumerate(arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        tensors = list(fresh_memory.tensors(value))
        changed = argument.alias_info is not None and argument.alias_info.is_write
        overwritten = changed and (argument.kwarg_only or name in _OVERWRITES)
        created_like = position == 0 and name in _CREATE_LIKE
        written += tensors if changed else []
        read += [] if overwritten or created_like else tensors
    known = {id(tensor) for tensor in [*read, *written]}
    written += [tensor for tensor in fresh_memory.tensors(result) if id(tensor) not in known]
    if not read and not written:
        return None
    return Operation(
        f"aten.{name}",
        sum(_bytes(tensor) for tensor in _distinct(read)),
        sum(_bytes(tensor) for tensor in _distinct(written)),
        _flops(func, (args, kwargs, result), read, written),
    )


def _distinct(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements in memory: a dimension of stride 0 repeats one element."""
    extents = [
        extent for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or extent == 0
    ]
    return math.prod(extents) * tensor.element_size()


def _flops(func: Any, call: tuple[Any, Any, Any], read: list[torch.Tensor], written: list[torch.Tensor]) -> int | None:
    args, kwargs, result = call
    counter = flop_registry.get(func.overloadpacket)
    if counter is not None:
        try:
            return int(counter(*args, **kwargs, out_val=result))
        except AssertionError:  # PyTorch's formula does not know this form: 2.11's of attention refuses grouped heads
            return None
    stem = func.overloadpacket.__name__.removesuffix("_")
    if stem in _NO_OPERATION:
        return 0
    if stem in _OPERATION_WRITTEN:
        return sum(tensor.numel() for tensor in written)
    return read[0].numel() if stem in _OPERATION_READ and read else None
