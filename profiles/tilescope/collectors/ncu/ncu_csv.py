"""Reads the output of the Nsight Compute CLI with ``--csv``, keeping every cell.

The text may have other lines before, after and between: ncu's own ``==PROF==`` lines and output of the application. Pure: text ->
frame of strings. Numbers are read by ``number`` and ``in_base``.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterable, Iterator

import pandas as pd

#: ncu's units in lower case, each with its base unit (as ``--print-units base`` prints) and the factor to it.
_BASE: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("second", "s"), ("ns", 1e9)),
    **dict.fromkeys(("msecond", "ms"), ("ns", 1e6)),
    **dict.fromkeys(("usecond", "us"), ("ns", 1e3)),
    **dict.fromkeys(("nsecond", "ns"), ("ns", 1.0)),
    **dict.fromkeys(("cycle/second", "cycle/s"), ("hz", 1.0)),
    **dict.fromkeys(("cycle/usecond", "cycle/us"), ("hz", 1e6)),
    **dict.fromkeys(("cycle/nsecond", "cycle/ns"), ("hz", 1e9)),
}
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_PREFIXED = re.compile(r"([kmgtp]?)(hz|byte|sector|inst|thread|cycle|request|warp)\b(.*)", re.IGNORECASE)
_NUMBER = re.compile(r"[+-]?\d{1,3}(,\d{3})*(\.\d+)?([eE][+-]?\d+)?|[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")


class NcuFormatError(ValueError):
    """The text has no table of the requested kind."""


def text_of(rows: Iterable[Iterable[str]]) -> str:
    """Rows of cells as ncu prints them: CSV with every cell quoted."""
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def number(cell: str) -> float | None:
    """The number in a cell such as ``137,438,953,472`` or ``50.10``, or None.

    Empty cells, ``n/a``, ``nan`` and words (``PolicySpread``) are not numbers. ncu prints parts of some metrics after the total, in
    parentheses or after a semicolon: ``6 (1; 2; 3)``.
    """
    text = re.split(r"[(;]", cell, maxsplit=1)[0].strip()
    return float(text.replace(",", "")) if _NUMBER.fullmatch(text) else None


def in_base(value: float, unit: str) -> tuple[float, str]:
    """The value in ncu's base unit (ns, byte, hz, %), and the name of that unit. Unknown units are left unchanged."""
    known = _BASE.get(unit.lower())
    if known:
        return value * known[1], known[0]
    prefixed = _PREFIXED.fullmatch(unit)
    if prefixed:
        prefix, name, rest = prefixed.groups()
        if rest.startswith("/"):
            # Rates are per second, however ncu abbreviates it. Other denominators are left unchanged.
            rest = {"/s": "/second"}.get(rest, rest)
        return value * _PREFIXES[prefix.lower()], name.lower() + rest
    return value, unit


def read_raw(text: str) -> pd.DataFrame:
    """The raw page: a row for each launch and a column for each counter, with cells as printed.

    Columns have two levels, ``counter`` and ``unit``. Several tables (of several processes) are joined. Raises NcuFormatError where
    there is no table.
    """
    frames: list[pd.DataFrame] = []
    for header, rows in _tables(text):
        if "Metric Name" in header or "ID" not in header:
            continue
        units = rows.pop(0) if rows and not rows[0][0] else [""] * len(header)
        columns = pd.MultiIndex.from_arrays([header, units], names=["counter", "unit"])
        # A dying process may print an incomplete row.
        cells = [[*row, *[""] * (len(header) - len(row))] for row in rows]
        frames.append(pd.DataFrame(cells, columns=columns, dtype="str"))
    if not frames:
        raise NcuFormatError(
            "no raw page of ncu in this text: it was not made with --csv --page raw, or nothing was profiled"
        )
    return frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)


def read_details(text: str) -> pd.DataFrame:
    """The details page: a row for each metric or rule of a launch, with cells as printed.

    The row of a rule has ``Rule Name`` and perhaps ``Estimated Speedup`` (percent). Cells that ncu omits at the end of a row are
    absent. Raises NcuFormatError where there is no table.
    """
    for header, rows in _tables(text):
        if "Metric Name" in header:
            # Rows of metrics end after the value with one comma too many; those of rules are complete.
            cells = [[*row, *[None] * (len(header) - len(row))] for row in rows]
            return pd.DataFrame(cells, columns=header, dtype="str")
    raise NcuFormatError("no details page of ncu in this text: it was not made with --csv --page details")


def read_source(text: str) -> pd.DataFrame:
    """The source page made with ``--print-source cuda,sass``: a row for each source line or instruction.

    ncu prints a table for each file and function; ``File Path`` and ``Function Name`` become columns. The second column called
    ``Source``, the instruction, is ``Source (SASS)`` here. Tables with different counters are joined by name; a counter that a
    table lacks is absent. Raises NcuFormatError where there is no table.
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
    """Yields the header and the rows of each CSV table whose header begins with ``"ID"``."""
    lines = text.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.startswith('"ID",')]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        header = next(csv.reader([lines[start]]))
        yield header, list(_rows(lines[start + 1 : end], len(header)))


def _rows(lines: Iterable[str], width: int) -> Iterator[list[str]]:
    """Yields the rows of a table among other lines.

    A row begins with the quoted number of a launch, or an empty cell for units. A quoted cell may have several lines.
    """
    pending: list[str] = []
    quotes = 0
    for line in lines:
        if not pending and not re.match(r'"\d*",', line):
            continue
        pending.append(line)
        # Counted incrementally: after a lost quote a row continues to the end of the text.
        quotes += line.count('"')
        if quotes % 2 == 0:
            row = next(csv.reader(io.StringIO("".join(pending))))
            pending, quotes = [], 0
            if len(row) <= width:
                yield row
