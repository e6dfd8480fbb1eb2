"""Follows integers that a division by zero leaves undefined, until a program stores one or accesses memory by one. Imports triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from tilescope.interpreter.blocks import Array, is_opaque
from tilescope.interpreter.meter import Counting

#: The attribute of a block with its undefined lanes and the line of the division.
_LANES = "tilescope.undefined"
_DIVISIONS = tuple(f"create_{name}" for name in ("sdiv", "udiv", "idiv", "srem", "urem"))
#: Operations that one operand alone may decide, with the test of it.
_DECIDED: dict[str, Callable[[Array], Array]] = {
    "create_and": np.logical_not,
    "create_mul": np.logical_not,
    "create_or": lambda data: data == ~np.zeros_like(data),
}

_Methods = dict[str, Callable[..., Any]]


def methods(counting: Counting, computing: Mapping[str, Callable[..., Any]], moving: Sequence[str]) -> _Methods:
    """The builder's methods that divide integers. The first zero makes them follow the others, which slows these down."""
    following = {name: _following(name, create, moves=name in moving) for name, create in computing.items()}

    def dividing(create: Callable[..., Any]) -> Callable[..., Any]:
        def created(dividend: Any, divisor: Any) -> Any:
            result = create(dividend, divisor)
            if not (is_opaque((dividend, divisor)) or divisor.data.all()):
                vars(interpreter_builder).update(following)
                _mark(result, np.broadcast_to(divisor.data == 0, result.data.shape), counting.line())
            return result

        return created

    return {name: dividing(computing[name]) for name in _DIVISIONS if name in computing}


def reduced(block: Any, result: Any, axes: tuple[int, ...]) -> None:
    """Follows a reduction."""
    if _LANES in block.attr:
        lanes, line = block.attr[_LANES]
        _mark(result, lanes.any(axis=axes).reshape(result.data.shape), line)


def accessed(counting: Counting, wanted: Any, pointers: Any, value: Any) -> None:
    """Looks at the mask of an access, ``wanted``, and in its lanes at the pointers and the value."""
    for block in (wanted, pointers, value):
        if counting.meter is not None and isinstance(block, TensorHandle) and _LANES in block.attr:
            lanes, line = block.attr[_LANES]
            made = lanes if wanted is None or block is wanted else lanes & getattr(wanted, "data", wanted)
            if made.any():
                place = line, block is pointers
                counting.meter.seen.divided.setdefault(place, set()).add(counting.program.number)


def _mark(block: Any, lanes: Array, line: int) -> None:
    if lanes.any():
        block.set_attr(_LANES, (lanes, line))


def _following(name: str, create: Callable[..., Any], *, moves: bool) -> Callable[..., Any]:
    def created(*args: Any, **kwargs: Any) -> Any:
        result = create(*args, **kwargs)
        blocks = [arg for arg in args if isinstance(arg, TensorHandle)]
        marked = [block for block in blocks if _LANES in block.attr]
        if not marked or is_opaque((*blocks, result)):
            return result
        if moves:
            found = create(*(_lanes(arg) if isinstance(arg, TensorHandle) else arg for arg in args), **kwargs)
        else:
            found = TensorHandle(np.broadcast_to(_combined(name, blocks), result.data.shape), tl.int1)
        pairs = zip(result, found, strict=True) if isinstance(result, tuple) else ((result, found),)
        for made, lanes in pairs:
            _mark(made, lanes.data, marked[0].attr[_LANES][1])
        return result

    return created


def _lanes(block: Any) -> Any:
    found = block.attr.get(_LANES)
    return TensorHandle(found[0] if found else np.zeros(block.data.shape, bool), tl.int1)


def _combined(name: str, blocks: Sequence[Any]) -> Array:
    """The lanes of an elementwise result that are undefined."""
    lanes = [_lanes(block).data for block in blocks]
    if name == "create_select":
        found: Array = lanes[0] | np.where(blocks[0].data, lanes[1], lanes[2])
        return found
    undefined: Array = np.logical_or.reduce(np.broadcast_arrays(*lanes))
    if decides := _DECIDED.get(name):
        for block, mine in zip(blocks, lanes, strict=True):
            undefined = undefined & ~(decides(block.data) & ~mine)
    return undefined
