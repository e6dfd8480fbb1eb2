"""Checks JSON values against type annotations, and makes values that can be written as JSON and read again.

An error names the place of the value that does not fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from tilescope.files import bounded_reading

#: Bounds of the magnitude of a number that is not 0. Sums, products and ratios of such numbers stay finite.
LARGEST, SMALLEST = 1e60, 1e-60

Kind = TypeVar("Kind")
#: What stands for a value that cannot be written.
_ABSENT = object()


class Misfit(ValueError):
    """A value of the wrong type. The message is one line that names its place."""


def fit(value: Any, kind: type[Kind], where: str) -> Kind:
    """Returns ``value`` as the type ``kind``: objects become dataclasses and arrays tuples where ``kind`` asks for them.

    Unknown fields of a dataclass are dropped. A TypedDict may lack keys; others are dropped. A float must be finite and within
    ``SMALLEST`` and ``LARGEST``. ``where`` names the value in messages. Raises Misfit.
    """
    try:
        found = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise Misfit(_said(str(error), where)) from error
    _check_numbers(value, where)
    return found


def storable(value: Any) -> Any:
    """The value as JSON data within the limits of ``bounded_reading.data`` and ``fit``.

    A too large whole number becomes a float. A number that is not finite or out of bounds is left out. A null or half a character
    in a text is replaced, and so is what is nested too deeply or has another type: by its text.
    """
    found = _storable(value, 0)
    return None if found is _ABSENT else found


def _storable(value: Any, depth: int) -> Any:
    if isinstance(value, (int, float)):
        return value if isinstance(value, bool) else _number(value)
    if depth < bounded_reading.DEPTH and isinstance(value, Mapping):
        items = ((_text(str(name)), _storable(item, depth + 1)) for name, item in value.items())
        return {name: item for name, item in items if item is not _ABSENT}
    if depth < bounded_reading.DEPTH and isinstance(value, (list, tuple)):
        return [found for item in value if (found := _storable(item, depth + 1)) is not _ABSENT]
    return None if value is None else _text(value if isinstance(value, str) else bounded_reading.one_line(value))


def _number(value: float) -> Any:
    if isinstance(value, int) and value.bit_length() <= bounded_reading.BITS:
        return int(value)
    size = abs(value)
    return float(value) if size == 0 or SMALLEST <= size <= LARGEST else _ABSENT


def _text(value: str) -> str:
    return value.replace("\0", "\ufffd").encode(errors="backslashreplace").decode()


def _said(message: str, where: str) -> str:
    """msgspec's message in plain words: ``launches[0].function is a whole number, not a text``."""
    what, _, path = message.partition(" - at `")
    place = f"{where}{path.removesuffix('`').removeprefix('$')}".lstrip(".") or "it"
    if found := re.fullmatch(r"Expected `(.+)`, got `(.+)`", what):
        wanted, given = (" or ".join(_KINDS.get(kind, kind) for kind in text.split(" | ")) for text in found.groups())
        return f"{place} is {given}, not {wanted}"
    if found := re.fullmatch(r"Object missing required field `(.+)`", what):
        return f"{place} has no {found[1]}"
    return f"{place}: {what}"


_KINDS = {"str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "null": "null",
          "array": "a list", "object": "an object"}  # fmt: skip


def _check_numbers(value: Any, where: str) -> None:
    if isinstance(value, float):
        place = where.lstrip(".") or "it"
        if not math.isfinite(value):
            raise Misfit(f"{place} is not finite")
        if abs(value) > LARGEST:
            raise Misfit(f"{place} is above {LARGEST:g}")
        if 0 < abs(value) < SMALLEST:
            raise Misfit(f"{place} is below {SMALLEST:g}")
    elif isinstance(value, Mapping):
        for name, item in value.items():
            _check_numbers(item, f"{where}.{name}"[:200])
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _check_numbers(item, f"{where}[{number}]"[:200])
