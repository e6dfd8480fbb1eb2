"""Reads the output of the Nsight Compute CLI with ``--csv``, keeping every cell.

The text may have other lines before, after and between: ncu's own ``==PROF==`` lines and output of the application. Another program
may have saved the tables anew: with semicolons or tabs, without quotes, with a column of row numbers. Pure: text -> cells.
Numbers are read by ``number`` and ``in_base``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilescope.files import delimited

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
    known = _BASE.get(re.sub("[µμ]s", "us", unit.lower()))
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


@dataclass(frozen=True)
class Table:
    """One table: its rows as printed, shorter than the header where ncu omits the last cells. ``units`` are a raw page's.

    ``left_out`` counts rows that are cut off or longer than the header.
    """

    separator: str
    header: list[str]
    units: list[str]
    rows: list[list[str]]
    left_out: int

    @property
    def raw(self) -> bool:
        """Whether it is of the raw page, with a column for each counter."""
        return _METRIC not in self.header

    def records(self) -> list[dict[str, str]]:
        """The cells of each row by column. A dying process may print an incomplete row."""
        return [dict(zip(self.header, row, strict=False)) for row in self.rows]


_METRIC, _FUNCTION, _ID = "Metric Name", "Kernel Name", "ID"
#: The beginning of the cells that pandas writes where a header has two lines and a column one name.
_UNNAMED = "Unnamed: "


def raw_pages(text: str) -> list[Table]:
    """The tables of the raw page, with a row for each launch: one of each process. Raises NcuFormatError where there is none."""
    if found := [table for table in tables(text) if table.raw]:
        return found
    raise NcuFormatError(
        "no raw page of ncu in this text: it was not made with --csv --page raw, or nothing was profiled"
    )


def read_details(text: str) -> list[dict[str, str]]:
    """The details page: a row for each metric or rule of a launch, with cells as printed.

    The row of a rule has ``Rule Name`` and perhaps ``Estimated Speedup`` (percent). Cells that ncu omits at the end of a row are
    absent. Raises NcuFormatError where there is no table.
    """
    for table in tables(text):
        if not table.raw:
            return table.records()
    raise NcuFormatError("no details page of ncu in this text: it was not made with --csv --page details")


def tables(text: str) -> Iterator[Table]:
    """Yields the tables in ncu's output that have launches, among other lines."""
    lines = text.splitlines(keepends=True)
    headers = [(place, found) for place, line in enumerate(lines) if (found := _header(line))]
    ends = [*(place for place, _ in headers), len(lines)][1:]
    for (start, (separator, header)), end in zip(headers, ends, strict=True):
        place = header.index(_ID)
        rows, left_out = _rows(lines[start + 1 : end], separator, place, len(header))
        units = rows.pop(0) if rows and _METRIC not in header and not _is_launch(rows[0][place]) else []
        while rows and not _is_launch(rows[0][place]):
            rows.pop(0)  # the name of the index, if pandas wrote two lines of header
        # A column without a name is one that pandas added.
        kept = [number for number, name in enumerate(header) if name and not name.startswith(_UNNAMED)]
        yield Table(
            separator,
            _chosen(header, kept),
            [
                "" if unit.startswith(_UNNAMED) else unit
                for unit in _chosen([*units, *[""] * (len(header) - len(units))], kept)
            ],
            [_chosen(row, kept) for row in rows],
            left_out,
        )


def _header(line: str) -> tuple[str, list[str]] | None:
    if _ID in line and (_FUNCTION in line or _METRIC in line):
        return delimited.cells(line, [_ID, _METRIC]) or delimited.cells(line, [_ID, _FUNCTION])
    return None


def _chosen(row: Sequence[str], kept: Iterable[int]) -> list[str]:
    return [row[number] for number in kept if number < len(row)]


def _is_launch(cell: str) -> bool:
    """Whether the cell is a launch's number, which pandas may have made a float."""
    return bool(re.fullmatch(r"\d+([.,]0)?", cell))


def _rows(lines: Iterable[str], separator: str, place: int, width: int) -> tuple[list[list[str]], int]:
    """The rows of a table among other lines, and the number of rows that are cut off or too long.

    The cell at ``place`` is the number of a launch, or has no number in the row of units. A quoted cell may have several lines.
    """
    cell = rf'(?:"[^"]*"|[^"{separator}]*){separator}'
    begins = re.compile(rf'(?:{cell}){{{place}}}"?(?:\d+(?:[.,]0)?|{_UNNAMED}[^"{separator}]*|)"?{separator}')
    found: list[list[str]] = []
    left_out = 0
    pending: list[str] = []
    quotes = 0
    for line in lines:
        if not pending and not begins.match(line):
            continue
        pending.append(line)
        # Counted incrementally: after a lost quote a row continues to the end of the text.
        quotes += line.count('"')
        if quotes % 2 == 0:
            row = next(csv.reader(io.StringIO("".join(pending)), delimiter=separator))
            pending, quotes = [], 0
            # A short row ends within a cell, if nothing follows its last one.
            if len(row) > width or (len(row) < width and line[-1:] not in '"\n\r'):
                left_out += 1
            else:
                found.append(row)
    return found, left_out + bool(pending)
