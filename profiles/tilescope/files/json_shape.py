"""Checks JSON values against type annotations. An error names the place of the value that does not fit."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

#: Bounds of the magnitude of a number that is not 0. Sums, products and ratios of such numbers stay finite.
LARGEST, SMALLEST = 1e60, 1e-60


class Misfit(ValueError):
    """A value of the wrong type. The message is one line that names its place."""


def fit(value: Any, kind: Any, where: str) -> Any:
    """Returns ``value`` as the type ``kind``: objects become dataclasses and arrays tuples where ``kind`` asks for them.

    Unknown fields of a dataclass are dropped. A field with a ``shape`` in its metadata is checked against that instead of
    its annotation. A TypedDict may lack keys and have others. A float must be finite and within ``SMALLEST`` and
    ``LARGEST``. ``where`` names the value in messages. Raises Misfit.
    """
    if kind is Any:
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _either(value, arguments, where)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _made(value, kind, where)
    if typing.is_typeddict(kind) or _is(origin, Mapping):
        known = _hints(kind) if origin is None else {}
        rest = Any if origin is None else arguments[1]
        found = _object(value, where).items()
        return {name: fit(item, known.get(name, rest), f"{where}.{_short(name)}") for name, item in found}
    if _is(origin, Sequence):
        return _listed(value, arguments[0], origin, where)
    return _plain(value, kind, where)


def _is(origin: Any, kind: type) -> bool:
    return isinstance(origin, type) and issubclass(origin, kind)


def _listed(value: Any, kind: Any, origin: type, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise Misfit(f"{where} is {_named(value)}, not a list")
    found = [fit(item, kind, f"{where}[{place}]") for place, item in enumerate(value)]
    return tuple(found) if origin is tuple else found


def _plain(value: Any, kind: Any, where: str) -> Any:
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        if not math.isfinite(value):
            raise Misfit(f"{where} is not finite")
        if abs(value) > LARGEST:
            raise Misfit(f"{where} is above {LARGEST:g}")
        if 0 < abs(value) < SMALLEST:
            raise Misfit(f"{where} is below {SMALLEST:g}")
        return value
    if kind is type(None) and value is None:
        return value
    # bool is a subclass of int.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise Misfit(f"{where} is {_named(value)}, not {_KINDS.get(kind, kind.__name__)}")
    return value


def _either(value: Any, kinds: Sequence[Any], where: str) -> Any:
    for kind in kinds:
        try:
            return fit(value, kind, where)
        except Misfit as error:
            found = error
    raise found


def _made(value: Any, kind: type, where: str) -> Any:
    given, hints, fields = _object(value, where), _hints(kind), {}
    for field in dataclasses.fields(kind):
        if field.name in given:
            shape = field.metadata.get("shape", hints[field.name])
            fields[field.name] = fit(given[field.name], shape, f"{where}.{field.name}" if where else field.name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Misfit(f"{where or 'it'} has no {field.name}")
    return kind(**fields)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise Misfit(f"{where or 'it'} is {_named(value)}, not an object")
    return value


_KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}


def _named(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    return _KINDS.get(type(value), type(value).__name__)


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:39] + "…"
