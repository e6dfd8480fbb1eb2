"""Names and contents of saved files. A name tells where the numbers come from."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping

import pandas as pd
from pandas.api.types import is_numeric_dtype
from tilescope.files.bounded_reading import printable

#: Characters: enough for a run, a kernel and a GPU, and few enough for every file system.
_LONGEST = 120


def stem(*parts: str) -> str:
    """A file name without its extension: the non-empty parts in letters, digits, dots and dashes."""
    words = (re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.") for part in ("tilescope", *parts))
    return "-".join(filter(None, words))[:_LONGEST].rstrip("-.")


def plain(frame: pd.DataFrame, units: Mapping[str, str]) -> pd.DataFrame:
    """The columns of ``units`` with unscaled numbers, absent values left absent, and the unit in the name.

    A unit is ``tilescope.table.schema``'s (``second``, ``byte/second``), ``text`` or ``count``, which add nothing to the
    name, or ``times``, which is a ratio. A column that the frame lacks is absent.
    """
    shown = frame.reindex(columns=list(units)).reset_index(drop=True)
    for name, unit in units.items():
        if unit == "text":
            shown[name] = shown[name].astype("string")
        elif not is_numeric_dtype(shown[name]):
            shown[name] = pd.to_numeric(shown[name])
    return shown.rename(columns={name: _named(name, unit) for name, unit in units.items()})


def _named(name: str, unit: str) -> str:
    if unit in ("text", "count"):
        return name
    return f"{name} ({'ratio' if unit in ('times', 'speedup') else unit})"


def as_csv(frame: pd.DataFrame) -> io.BytesIO:
    """The frame as CSV in UTF-8. An absent value is an empty cell.

    A text that a spreadsheet would read as a formula gets a leading apostrophe. Control characters are written as escapes.
    """
    safe = frame.copy()
    for name in safe.select_dtypes("string"):
        safe[name] = safe[name].map(printable, na_action="ignore").astype("string")
        formula = safe[name].str.match(r"\s*[=+\-@＝＋－＠]").fillna(False)
        safe[name] = safe[name].mask(formula.astype(bool), "'" + safe[name])
    return io.BytesIO(safe.to_csv(index=False).encode())


def as_parquet(frame: pd.DataFrame) -> io.BytesIO:
    written = io.BytesIO()
    frame.to_parquet(written, index=False)
    written.seek(0)
    return written
