"""Formats values of the table for people: base SI units become scaled ones."""

from __future__ import annotations

import math

_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BELOW_ONE = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))
#: Symbols of the units of METRICS.
SYMBOLS = {
    "second": "s",
    "byte": "B",
    "hertz": "Hz",
    "flop": "flop",
    "op": "OP",
    "byte/second": "B/s",
    "flop/second": "flop/s",
    "op/second": "OP/s",
    "joule": "J",
    "watt": "W",
    "count": "",
}
#: Units of which a value may be far below one.
_SMALL = ("second", "joule")


def text(value: float, unit: str, digits: int = 3) -> str:
    """``text(4.27e12, "byte/second")`` is ``4.27 TB/s``; a ratio becomes a percentage. Prefixes are decimal.

    ``unit`` is one of METRICS' units or a rate of them. An absent value (NaN) is a dash.
    """
    if math.isnan(value):
        return "–"
    if unit == "ratio":
        return f"{_significant(value * 100, digits)} %"
    symbol = SYMBOLS.get(unit, unit)
    size = abs(value)
    if float(value).is_integer() and (unit == "count" or (size < 1000 and unit not in _SMALL)):
        return f"{value:,.0f} {symbol}".rstrip()
    scales = _DECIMAL if size >= 1000 else _BELOW_ONE if unit in _SMALL else ((1.0, ""),)
    scale, prefix = next((s for s in scales if size >= s[0]), scales[-1]) if size else (1.0, "")
    scaled = _significant(value / scale, digits)
    return f"{scaled} {prefix}{symbol}".rstrip()


def times(value: float) -> str:
    """A ratio as a factor: ``2.31×``."""
    return f"{value:,.0f}×" if abs(value) >= 1000 else "–" if math.isnan(value) else f"{text(value, '')}×"


def several(count: float, one: str, more: str = "") -> str:
    """A count with its noun: ``1 block``, ``12 blocks``. ``more`` is the plural, by default ``one`` with an s."""
    return f"{count:,.0f} {one if count == 1 else more or f'{one}s'}"


def _significant(value: float, digits: int) -> str:
    """Rounds to that many significant digits, never in exponent form."""
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    rounded = f"{value:,.{places}f}"
    return rounded.rstrip("0").rstrip(".") if "." in rounded and places > digits - 1 else rounded
