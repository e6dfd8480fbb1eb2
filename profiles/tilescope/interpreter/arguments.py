"""A kernel's arguments as the interpreter's blocks, and the memory that they refer to. Imports torch and triton."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from tilescope.execution.assumed_tensors import true_device


def as_block(value: Any) -> Any:
    """An argument as the kernel's body sees it. Python's numbers become scalar blocks, floats of fp32."""
    if isinstance(value, bool):
        return _scalar(value, np.bool_, tl.int1)
    if isinstance(value, float):
        return _scalar(value, np.float32, tl.float32)
    if isinstance(value, int) and value >= 2**31:
        # Triton passes numbers beyond int32 in 64 bits.
        return _scalar(value, np.int64, tl.int64) if value < 2**63 else _scalar(value, np.uint64, tl.uint64)
    if isinstance(value, tuple):
        items = [as_block(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return interpreter._implicit_cvt(value)


def _scalar(value: Any, dtype: Any, kind: Any) -> Any:
    return tl.core.tensor(TensorHandle(np.array([value], dtype=dtype), kind), kind)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yields every tensor in an argument, also those of descriptors and of tensors that are passed as another dtype."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(item)
    elif hasattr(value, "base"):
        yield from tensors(value.base)


def storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """Yields the memory of every tensor in an argument, and of tensors whose addresses it holds."""
    for tensor in tensors(value):
        yield tensor.untyped_storage()
        if tensor.dtype in (torch.int64, torch.uint64) and true_device(tensor).type == "cpu":
            numbers = tensor.detach().view(torch.int64).reshape(-1).numpy()
            for target, _ in pointed_at(numbers, lambda other: true_device(other).type == "cpu"):
                yield target.untyped_storage()


def named(arguments: Mapping[str, Any], address: int) -> str:
    """What a message calls the memory at the address: ``x``, or ``the memory of x and y``; empty without any."""
    names = names_at(arguments, address)
    own = (tensor.untyped_storage() for tensor in tensors(arguments))
    if names and not any(storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes() for storage in own):
        return f"a tensor that {' and '.join(names)} points to"
    return f"the memory of {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def names_at(arguments: Mapping[str, Any], address: int) -> list[str]:
    """The parameters whose memory has the address."""
    return [
        name
        for name, value in arguments.items()
        if any(storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes() for storage in storages(value))
    ]


def pointed_at(
    numbers: np.ndarray[Any, Any], near: Callable[[torch.Tensor], bool]
) -> Iterator[tuple[torch.Tensor, list[int]]]:
    """Yields tensors that a table of addresses points into, with the places in ``numbers`` of those addresses.

    Grouped kernels take such tables. ``numbers`` are int64; only tensors that are ``near`` are searched, each storage once.
    """
    # Most indices are small, and no process has memory at such low addresses.
    places = np.flatnonzero(numbers > _LOWEST_ADDRESS)
    places = places[np.argsort(numbers[places], kind="stable")]
    ordered, seen = numbers[places], set[int]()
    for thing in gc.get_objects() if places.size else ():
        kind_fits = type(thing) in (torch.Tensor, torch.nn.Parameter) and thing.layout is torch.strided
        if not kind_fits or not near(thing) or (start := thing.untyped_storage().data_ptr()) in seen:
            continue
        first, last = np.searchsorted(ordered, (start, start + thing.untyped_storage().nbytes()))
        if first < last:
            seen.add(start)
            yield thing.detach(), places[first:last].tolist()


#: Programs that are not position-independent, such as Debian's Python, begin here, with small tensors soon after.
_LOWEST_ADDRESS = 2**22
