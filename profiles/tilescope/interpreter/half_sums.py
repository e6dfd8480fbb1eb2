"""Finds sums in half precision that no longer grow, because each term is below their last digit. Blocks carry what is known of theirs.

Imports triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilescope.interpreter import narrow
from tilescope.interpreter.blocks import Array, is_opaque
from tilescope.interpreter.meter import Counting

_HALF = frozenset({"bf16", "fp16"})
#: The attributes with a sum's number of additions, and with the sum in half precision to which an fp32 block adds.
_ADDITIONS, _OF = "tilescope.additions", "tilescope.sum"
#: The number of additions from which sums are looked at, and the share of elements that one leaves unchanged in a sum that is stuck.
_LONG, _MOST = 64, 0.5


def added(counting: Counting, a: Any, b: Any, result: Any) -> None:
    """Looks at an addition of two blocks."""
    if _ADDITIONS not in a.attr and _ADDITIONS in b.attr:
        a, b = b, a
    if result.dtype.scalar.name in _HALF:
        _follow(counting, a, result, lambda: _numbers(b) != 0)
    elif (half := a.attr.get(_OF, b.attr.get(_OF))) is not None:
        result.set_attr(_OF, half)


def converted(counting: Counting, source: Any, result: Any) -> None:
    """Looks at a conversion: a sum may be computed in fp32 and rounded after each addition."""
    if source.dtype.scalar.name in _HALF and result.dtype.scalar.name == "fp32":
        result.set_attr(_OF, source)
    elif result.dtype.scalar.name in _HALF and (half := source.attr.get(_OF)) is not None:
        _follow(counting, half, result, lambda: source.data != _numbers(half))


def loaded(counting: Counting, pointers: Any, result: Any) -> None:
    """Looks at a load: memory may hold a sum."""
    if counting.sums and (additions := counting.sums.get(int(pointers.data.flat[0]))):
        result.set_attr(_ADDITIONS, additions)


def stored(counting: Counting, pointers: Any, value: Any) -> None:
    """Looks at a store, which may keep a sum."""
    if _ADDITIONS in value.attr and value.dtype.scalar.name in _HALF:
        counting.sums[int(pointers.data.flat[0])] = value.attr[_ADDITIONS]


def atomic(counting: Counting, before: Any, value: Any, mask: Array) -> None:
    """Looks at atomic additions to the values ``before``."""
    kind, line, meter = value.dtype.scalar.name, counting.line(), counting.meter
    programs = len(meter.seen.atomics[line].programs) if meter and line in meter.seen.atomics else 0
    if kind in _HALF and programs >= _LONG and mask.any():
        total = (_numbers(before) + _numbers(value))[mask]
        rounded = narrow.decode(narrow.encode(total, kind), kind) if kind in narrow.FORMATS else total
        if np.mean((rounded == _numbers(before)[mask]) & (_numbers(value)[mask] != 0)) > _MOST and meter:
            meter.seen.stuck.setdefault(line, (kind, programs))


def _follow(counting: Counting, half: Any, result: Any, lost: Callable[[], Array]) -> None:
    """Counts an addition to the sum ``half``. ``lost`` tells the elements in which it should have changed the sum."""
    additions = half.attr.get(_ADDITIONS, 0) + 1
    result.set_attr(_ADDITIONS, additions)
    if additions < _LONG or counting.meter is None or is_opaque((half, result)):
        return
    if np.mean((result.data == half.data) & lost()) > _MOST:
        counting.meter.seen.stuck.setdefault(counting.line(), (result.dtype.scalar.name, additions))


def _numbers(block: Any) -> Array:
    kind = block.dtype.scalar.name
    data: Array = narrow.decode(block.data, kind) if kind in narrow.FORMATS else block.data
    return data
