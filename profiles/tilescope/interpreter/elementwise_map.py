"""``tl.map_elementwise`` in NumPy: a user's scalar function is called for each element. Imports triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_semantic

from tilescope.interpreter.blocks import NeedsValues, NotServed, as_tensor, is_opaque, plain


def map_elementwise(function: Callable[..., Any], *blocks: Any, pack: Any = 1, **_: Any) -> Any:
    """Calls ``function`` for each element. Returns a block, or a tuple of blocks where it returns several numbers.

    Raises NeedsValues without values, since the operations of an element depend on its value, and NotServed for a ``pack``
    other than 1.
    """
    if plain(pack) != 1:
        raise NotServed("map_elementwise is interpreted with one element to a call: leave pack out")
    operands = [interpreter_semantic.to_tensor(block) for block in blocks]
    if is_opaque([operand.handle for operand in operands]):
        raise NeedsValues
    data = np.broadcast_arrays(*(operand.handle.data for operand in operands))
    scalar = not any(operand.type.is_block() for operand in operands)
    made: list[tuple[Any, ...]] = []
    several = False
    for place in np.ndindex(data[0].shape):
        element = [
            as_tensor(TensorHandle(values[place].reshape(1), operand.dtype), operand.dtype, ())
            for values, operand in zip(data, operands, strict=True)
        ]
        result = function(*element)
        several = isinstance(result, (tuple, tl.tuple))
        made.append(tuple(interpreter_semantic.to_tensor(x) for x in (result if several else (result,))))
    results = tuple(
        as_tensor(
            TensorHandle(np.concatenate([x.handle.data for x in column]).reshape(data[0].shape), column[0].dtype),
            column[0].dtype,
            () if scalar else data[0].shape,
        )
        for column in zip(*made, strict=True)
    )
    return results if several else results[0]
