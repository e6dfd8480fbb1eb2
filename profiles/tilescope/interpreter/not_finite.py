"""Finds the first NaN or infinity of a program whose stored values are not finite: its line, and the operands that made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle

from tilescope.interpreter import narrow
from tilescope.interpreter.blocks import Array, is_opaque
from tilescope.interpreter.races import Program

#: Operations that are written between their operands.
_SIGNS = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "precise_divf": "/", "approx_divf": "/"}
#: Tests of values, by what a message calls them.
_TESTS: dict[str, Callable[[Array], Array]] = {"NaN": np.isnan, "infinity": np.isinf}


@dataclass
class Origin:
    """How a program made its first value of a sort, NaN or infinity."""

    line: int
    program: str
    value: str
    expression: str


class NotFinite:
    """The first values of a launch that are not finite. ``found`` is the origin of the first that was stored."""

    def __init__(self, line: Callable[[], int], place: Callable[[], tuple[int, ...]]) -> None:
        self.line, self.place = line, place
        self.found: Origin | None = None
        self._program: Program | None = None
        self._first: dict[str, Origin] = {}

    def watched(self, name: str, create: Callable[..., Any]) -> Callable[..., Any]:
        """The operation ``name`` of the builder, whose results are looked at."""

        def created(*args: Any, **kwargs: Any) -> Any:
            result = create(*args, **kwargs)
            if self.found is None:
                self.computed(name, [arg for arg in args if isinstance(arg, TensorHandle)], result)
            return result

        return created

    def loaded(self, result: Any, mask: Array, by: Program) -> None:
        """Looks at the lanes of a loaded block that are in the mask."""
        self._begin(by)
        numbers = _numbers(result)
        if numbers is None:
            return
        for value, test in _TESTS.items():
            if value not in self._first and test(numbers[mask]).any():
                self._first[value] = Origin(self.line(), str(self.place()), value, "which memory holds")

    def stored(self, value: Any, mask: Array, by: Program) -> None:
        """Looks at a stored block. The origin is kept of the first NaN, and otherwise infinity, in it."""
        self._begin(by)
        numbers = _numbers(value)
        if numbers is None or self.found is not None:
            return
        kept = np.broadcast_to(numbers, mask.shape)[mask]
        present = [name for name, test in _TESTS.items() if test(kept).any()]
        self.found = next((self._first[name] for name in present if name in self._first), None)

    def _begin(self, by: Program) -> None:
        if by is not self._program:
            self._program, self._first = by, {}

    def computed(self, name: str, operands: Sequence[Any], result: Any) -> None:
        """Looks at the result of an operation on these blocks."""
        numbers = _numbers(result)
        if numbers is None or np.isfinite(numbers).all():
            return
        given = [numbers_of for one in operands if (numbers_of := _numbers(one)) is not None]
        elementwise = name != "dot" and all(one.shape == numbers.shape or one.size == 1 for one in given)
        for value, test in _TESTS.items():
            if value in self._first or not (made := test(numbers)).any():
                continue
            if not elementwise:
                finite = all(np.isfinite(one).all() for one in given)
                text = f"{name} of finite values" if finite else f"{name} of values that are not finite"
                self._first[value] = Origin(self.line(), str(self.place()), value, text)
                continue
            whole = [np.broadcast_to(one, numbers.shape) for one in given]
            for one in whole:
                made = made & (~np.isnan(one) if value == "NaN" else np.isfinite(one))
            if made.any():
                at = tuple(int(where[0]) for where in np.nonzero(made))
                text = _expression(name, [f"{float(one[at]):.6g}" for one in whole])
                self._first[value] = Origin(self.line(), str(self.place()), value, text)


def _expression(name: str, operands: Sequence[str]) -> str:
    if name in _SIGNS and len(operands) == 2:
        return f" {_SIGNS[name]} ".join(operands)
    return f"{name.removeprefix('precise_')}({', '.join(operands)})"


def _numbers(handle: Any) -> Array | None:
    """A block's numbers as floats; None for another type, or without values."""
    if not isinstance(handle, TensorHandle) or is_opaque(handle) or not handle.get_element_ty().is_floating():
        return None
    kind, data = handle.get_element_ty().name, handle.data
    if kind in narrow.FORMATS and data.dtype.kind == "u":
        return narrow.decode(data, kind)
    return data if data.dtype.kind == "f" else None
