"""Values as text, with a dash for what was not measured. ``tilescope.table.units`` scales them."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
from tilescope.files.bounded_reading import shortened
from tilescope.table import units
from tilescope.table.units import text

#: The text of an absent value.
ABSENT = "–"
#: The space between a number and its unit, as ``tilescope.table.units`` writes both.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|[kMGTP]?(?:B|Hz|W|flop|OP)|[KMG]iB)(?![\w-]))")

#: A moment in runs: ISO 8601, to the second, in UTC.
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d\+00:00")


def write(value: Any, unit: str, digits: int = 3) -> str:
    """``write(5.7e6, "byte")`` is ``5.7 MB``; None, NaN and NA are a dash."""
    return ABSENT if pd.isna(value) else text(float(value), unit, digits)


def ranged(unit: str, value: Any, low: Any, high: Any) -> str:
    """A value with its range: ``12.0 µs (11.8 µs to 12.4 µs)``."""
    return f"{write(value, unit)} ({write(low, unit)} to {write(high, unit)})"


def times(value: Any) -> str:
    """A ratio as a factor: ``2.31×``."""
    return ABSENT if pd.isna(value) else units.times(float(value))


def rounded(value: float) -> float:
    """Round an approximate value to three digits."""
    return float(f"{value:.3g}")


def unbroken(text: str) -> str:
    """Keep each number and its unit on one line, by a no-break space."""
    return _BEFORE_UNIT.sub("\u00a0", text)


def moments(text: str) -> str:
    """Shorten each ISO 8601 moment in the text to the minute: ``2026-11-26 07:35 UTC``."""
    return _MOMENT.sub(r"\1 \2 UTC", text)


def short(text: str, limit: int = 28) -> str:
    """``shortened``, for a label of a page."""
    return shortened(text, limit)
