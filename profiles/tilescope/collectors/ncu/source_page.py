"""Parses ncu's source page into values of source lines. Pure: text -> frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tilescope.collectors import compiled_text
from tilescope.collectors.ncu import ncu_csv
from tilescope.table import line_values
from tilescope.table.case import Case
from tilescope.table.line_values import LINE_METRICS


def parse(page: str, case: Case, compiled: Mapping[str, list[compiled_text.Text]] | None = None) -> pd.DataFrame:
    """Values of source lines from ncu's source page of one case (``--page source --csv --print-source cuda,sass``).

    An absent cell gives no row. ``compiled`` maps a kernel function to its SASS, from ``compiled_text.read``. If it is the code that
    ran, instruction for instruction, inlined calls count with the calling line. Raises NcuFormatError for another text.
    """
    rows: list[dict[str, Any]] = []
    for index, launch in enumerate(launches(page)):
        code = (compiled or {}).get(launch.function, [])
        for (file, line), values in _by_line(launch.lines(), code).items():
            rows += line_values.rows(case, "ncu", values, launch=index, function=launch.function, file=file, line=line)
    return line_values.frame(rows)


@dataclass(frozen=True)
class Launch:
    """One launch's part of ncu's source page: the rows of a table for each source file."""

    function: str
    rows: list[list[str]]

    def lines(self) -> list[dict[str, str]]:
        """The cells of each source line or instruction by column.

        The second column called ``Source``, the instruction, is ``Source (SASS)``, and ``File Path`` is a column of its own.
        """
        found, file, header = list[dict[str, str]](), "", list[str]()
        for row in self.rows:
            if row[:1] == ["File Path"]:
                file, header = row[-1], []
            elif row[:2] == ["Line No", "Source"]:
                header = [name if n == row.index(name) else f"{name} (SASS)" for n, name in enumerate(row)]
            elif header and len(row) == len(header):
                found.append({"File Path": file, **dict(zip(header, row, strict=True))})
        return found


def launches(page: str) -> list[Launch]:
    """Divides a source page by launch. A launch ends where the function changes or a file is repeated.

    Raises NcuFormatError without a table.
    """
    found: list[tuple[Launch, set[str]]] = []
    file = ""
    for row in csv.reader(io.StringIO(page)):
        if row[:1] == ["File Path"]:
            file = row[-1]
        elif row[:1] == ["Function Name"]:
            if not found or found[-1][0].function != row[-1] or file in found[-1][1]:
                found.append((Launch(row[-1], []), set()))
            found[-1][1].add(file)
            found[-1][0].rows.extend([["File Path", file], row])
        elif found:
            found[-1][0].rows.append(row)
    if not found:
        raise ncu_csv.NcuFormatError("no source page of ncu in this text: it was not made with --csv --page source")
    return [launch for launch, _ in found]


def _by_line(
    lines: Sequence[Mapping[str, str]], code: list[compiled_text.Text]
) -> dict[tuple[str, int], dict[str, float]]:
    """Sums of one launch's instructions by file and line."""
    callers = _callers(lines, code)
    place, totals = ("", 0), dict[tuple[str, int], dict[str, float]]()
    for cells in lines:
        if cells["Line No"]:
            place = (cells["File Path"].rpartition("/")[2], int(cells["Line No"]))
        elif cells["Address"].startswith("0x"):
            values = totals.setdefault(callers.get(cells["Address"], place), {})
            for name, value in _values(cells):
                values[name] = values.get(name, 0.0) + value
    return {(file, line): values for (file, line), values in totals.items() if file and line}


def _callers(lines: Sequence[Mapping[str, str]], code: list[compiled_text.Text]) -> dict[str, tuple[str, int]]:
    """File and line of each address in ``code``; empty unless every instruction is the same in both."""
    ran = [(cells["Address"], cells["Source (SASS)"]) for cells in lines if cells["Address"].startswith("0x")]
    known = {text.address: text for text in code if text.address is not None}
    if not ran or not known:
        return {}
    first = min(int(address, 16) for address, _ in ran)
    found = {}
    for address, instruction in ran:
        text = known.get(int(address, 16) - first)
        if text is None or compiled_text.mnemonic(text.text) != compiled_text.mnemonic(instruction):
            return {}
        if text.line:
            found[address] = (text.file, text.line)
    return found


def _values(cells: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """One instruction's values by metric."""
    for metric in LINE_METRICS.values():
        value = ncu_csv.number(cells.get(metric.column, ""))
        if value is not None:
            yield metric.name, value
    if "Global" not in cells.get("Address Space", "").split(","):
        return
    # "Load,Store" copies from global to shared memory: it reads.
    kind = "read" if cells["Access Operation"].startswith("Load") else "written"
    sectors = ncu_csv.number(cells.get("L2 Theoretical Sectors Global", ""))
    if sectors is not None:
        yield f"sectors_{kind}", sectors
    threads = ncu_csv.number(cells.get("Predicated-On Thread Instructions Executed", ""))
    bits = ncu_csv.number(cells.get("Access Size", ""))
    if threads is not None and bits is not None:
        yield f"requested_bytes_{kind}", threads * bits / 8
