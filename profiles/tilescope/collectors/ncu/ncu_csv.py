"""Reads what the Nsight Compute CLI prints with ``--csv``, keeping every cell.

The text may hold more than the CSV: ncu's own ``==PROF==`` lines and whatever the application printed,
before, after and between. Pure: text -> frame of strings. Numbers are read by ``number`` and ``in_base``.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator

import pandas as pd

#: Units by ncu's base unit, which ``--print-units base`` prints, and the factor to it. Keys in lower case.
_BASE: dict[str, tuple[str, float]] = {
    "second": ("ns", 1e9),
    "s": ("ns", 1e9),
    "msecond": ("ns", 1e6),
    "ms": ("ns", 1e6),
    "usecond": ("ns", 1e3),
    "us": ("ns", 1e3),
    "nsecond": ("ns", 1.0),
    "ns": ("ns", 1.0),
    "cycle/second": ("hz", 1.0),
    "cycle/s": ("hz", 1.0),
    "cycle/usecond": ("hz", 1e6),
    "cycle/us": ("hz", 1e6),
    "cycle/nsecond": ("hz", 1e9),
    "cycle/ns": ("hz", 1e9),
}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_PREFIXED = re.compile(r"([kmgtp]?)(hz|byte|sector|inst|thread|cycle|request|warp)\b(.*)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?([eE][+-]?\d+)?|[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


class NcuFormatError(ValueError):
    """The text holds no table of the kind asked for."""


def number(cell: str) -> float | None:
    """The number in a cell such as ``137,438,953,472`` or ``50.10``; None where there is none.

    Empty cells, ``n/a``, ``nan`` and words (``PolicySpread``) are not numbers. ncu appends the parts of some
    metrics in parentheses or after a semicolon (``6 (1; 2; 3)``): the total stands first.
    """
    text = re.split(r"[(;]", cell, maxsplit=1)[0].strip()
    return float(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def in_base(value: float, unit: str) -> tuple[float, str]:
    """The value in ncu's base unit (ns, byte, hz, %) and that unit's name. Unknown units pass unchanged."""
    known = _BASE.get(unit.lower())
    if known:
        return value * known[1], known[0]
    prefixed = _PREFIXED.fullmatch(unit)
    if prefixed:
        prefix, name, rest = prefixed.groups()
        if rest.startswith("/"):
            # Rates are per second whatever ncu abbreviates it to; other denominators are left alone.
            rest = {"/s": "/second"}.get(rest, rest)
        return value * _PREFIXES[prefix.lower()], name.lower() + rest
    return value, unit


def read_raw(text: str) -> pd.DataFrame:
    """The raw page: one row a launch, one column a counter, every cell as printed.

    Columns have two levels, ``counter`` and ``unit``: ncu prints the units as a second header row. Several
    tables in one text (several processes) are joined. Raises NcuFormatError where there is no table.
    """
    frames: list[pd.DataFrame] = []
    for header, rows in _tables(text):
        if "Metric Name" in header or "ID" not in header:
            continue
        units = rows.pop(0) if rows and not rows[0][0] else [""] * len(header)
        columns = pd.MultiIndex.from_arrays([header, units], names=["counter", "unit"])
        # A row cut short by a dying process keeps what it has.
        cells = [[*row, *[""] * (len(header) - len(row))] for row in rows]
        frames.append(pd.DataFrame(cells, columns=columns, dtype="str"))
    if not frames:
        raise NcuFormatError(
            "no raw page of ncu in this text: it was not made with --csv --page raw, or nothing was profiled"
        )
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def read_details(text: str) -> pd.DataFrame:
    """The details page: one row a metric or rule of a launch, every cell as printed.

    A rule's row has ``Rule Name`` and, where ncu estimates one, ``Estimated Speedup`` (percent). Cells that ncu
    leaves off at the end of a row are absent. Raises NcuFormatError where there is no table.
    """
    for header, rows in _tables(text):
        if "Metric Name" in header:
            # Metric rows stop after the value with one comma too many; rule rows are whole.
            cells = [[*row, *[None] * (len(header) - len(row))] for row in rows]
            return pd.DataFrame(cells, columns=header, dtype="str")
    raise NcuFormatError("no details page of ncu in this text: it was not made with --csv --page details")


def read_source(text: str) -> pd.DataFrame:
    """The source page made with ``--print-source cuda,sass``: one row a source line or instruction.

    ncu prints one table for each file and function; ``File Path`` and ``Function Name`` become columns. Its
    second column called ``Source``, the instruction, is ``Source (SASS)`` here. Tables with different counters
    are joined by name, and a counter that a table lacks is absent. Raises NcuFormatError where there is no table.
    """
    frames: list[pd.DataFrame] = []
    place: dict[str, str] = {}
    header: list[str] = []
    rows: list[list[str]] = []

    def close() -> None:
        if header:
            names = [n if i == header.index(n) else f"{n} (SASS)" for i, n in enumerate(header)]
            table = pd.DataFrame(rows, columns=names, dtype="str")
            frames.append(table.assign(**place)[[*place, *names]])

    for row in csv.reader(io.StringIO(text)):
        if len(row) == 2 and row[0] in ("File Path", "Function Name"):
            close()
            header, rows = [], []
            place = {**place, row[0]: row[1]}
        elif row[:2] == ["Line No", "Source"]:
            close()
            header, rows = row, []
        elif header and len(row) == len(header):
            rows.append(row)
    close()
    if not frames:
        raise NcuFormatError("no source page of ncu in this text: it was not made with --csv --page source")
    return pd.concat(frames, ignore_index=True)


def _tables(text: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Every CSV table in the text that begins with ncu's ``"ID"`` header, with its rows."""
    lines = text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID",')]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        header = next(csv.reader([lines[start]]))
        yield header, list(_rows(lines[start + 1 : end], len(header)))


def _rows(lines: Iterable[str], width: int) -> Iterator[list[str]]:
    """The lines that are rows of a table. A quoted cell may go on over several lines; noise never starts with a quote
    and a comma-separated second cell. Rows of the units start with an empty cell, all others with the launch's number."""
    pending: list[str] = []
    quotes = 0
    for line in lines:
        if not pending and not re.match(r'"\d*",', line):
            continue
        pending.append(line)
        # Counted as it grows: after a quote that is lost, a row goes on to the end of the text.
        quotes += line.count('"')
        if quotes % 2 == 0:
            row = next(csv.reader(io.StringIO("".join(pending))))
            pending, quotes = [], 0
            if len(row) <= width:
                yield row
