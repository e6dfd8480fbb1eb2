"""A kernel's arguments as its body sees them, and the memory they lead to. Imports torch and triton."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from tilescope.execution.assumed_tensors import true_device


def as_block(value: Any) -> Any:
    """An argument as the kernel has it: Python's numbers are scalar blocks, a float one of fp32."""
    if isinstance(value, bool):
        return _scalar(value, np.bool_, tl.int1)
    if isinstance(value, float):
        return _scalar(value, np.float32, tl.float32)
    if isinstance(value, int) and value >= 2**31:
        # Triton passes what 32 bits with a sign do not hold in 64.
        return _scalar(value, np.int64, tl.int64) if value < 2**63 else _scalar(value, np.uint64, tl.uint64)
    if isinstance(value, tuple):
        items = [as_block(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return interpreter._implicit_cvt(value)


def _scalar(value: Any, dtype: Any, kind: Any) -> Any:
    return tl.core.tensor(TensorHandle(np.array([value], dtype=dtype), kind), kind)


def tensors(value: Any) -> Iterator[Any]:
    """Every tensor in an argument, and every descriptor of one."""
    if hasattr(value, "data_ptr") or hasattr(value, "base"):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(item)


def storages(value: Any) -> Iterator[torch.UntypedStorage]:
    """The memory of every tensor in an argument, and of those whose addresses it holds."""
    for found in tensors(value):
        tensor = found if isinstance(found, torch.Tensor) else found.base
        yield tensor.untyped_storage()
        if tensor.dtype in (torch.int64, torch.uint64) and true_device(tensor).type == "cpu":
            yield from _pointed_at(tensor)


def _pointed_at(table: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """The memory that a table of addresses, as a grouped kernel takes, points into."""
    numbers = table.detach().view(torch.int64).reshape(-1).numpy()
    # Indices are small; no process has memory so low.
    addresses = np.unique(numbers[numbers > _LOWEST_ADDRESS])
    if not addresses.size:
        return
    for thing in gc.get_objects():
        if type(thing) not in (torch.Tensor, torch.nn.Parameter) or true_device(thing).type != "cpu":
            continue
        storage = thing.untyped_storage()
        start = storage.data_ptr()
        at = np.searchsorted(addresses, start)
        if at < addresses.size and addresses[at] < start + storage.nbytes():
            yield storage


_LOWEST_ADDRESS = 2**32
