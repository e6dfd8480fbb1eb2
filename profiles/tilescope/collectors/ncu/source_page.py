"""Parses ncu's source page into values of source lines. Pure: text -> frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
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
        for (file, line), values in _by_line(ncu_csv.read_source(launch.text), code).items():
            rows += line_values.rows(case, "ncu", values, launch=index, function=launch.function, file=file, line=line)
    return line_values.frame(rows)


@dataclass(frozen=True)
class LaunchTables:
    """One launch's part of ncu's source page. ``text`` is CSV with a table for each source file."""

    function: str
    text: str


def launches(page: str) -> list[LaunchTables]:
    """Divides a source page by launch. A launch ends where the function changes or a file is repeated.

    Raises NcuFormatError without a table.
    """
    found: list[tuple[str, set[str], list[list[str]]]] = []
    file = ""
    for row in csv.reader(io.StringIO(page)):
        if row[:1] == ["File Path"]:
            file = row[-1]
        elif row[:1] == ["Function Name"]:
            if not found or found[-1][0] != row[-1] or file in found[-1][1]:
                found.append((row[-1], set(), []))
            found[-1][1].add(file)
            found[-1][2].extend([["File Path", file], row])
        elif found:
            found[-1][2].append(row)
    if not found:
        raise ncu_csv.NcuFormatError("no source page of ncu in this text: it was not made with --csv --page source")
    return [LaunchTables(function, ncu_csv.text_of(rows)) for function, _, rows in found]


def _by_line(launch: pd.DataFrame, code: list[compiled_text.Text]) -> dict[tuple[str, int], dict[str, float]]:
    """Sums of one launch's instructions by file and line."""
    innermost = [
        (file.rpartition("/")[2], line) for file, line in zip(launch["File Path"], launch["Line No"], strict=True)
    ]
    callers = _callers(launch, code)
    place, totals = ("", 0), dict[tuple[str, int], dict[str, float]]()
    for (file, line), cells in zip(innermost, launch.to_dict("records"), strict=True):
        if line:
            place = (file, int(line))
        elif cells["Address"].startswith("0x"):
            values = totals.setdefault(callers.get(cells["Address"], place), {})
            for name, value in _values(cells):
                values[name] = values.get(name, 0.0) + value
    return {(file, line): values for (file, line), values in totals.items() if file and line}


def _callers(launch: pd.DataFrame, code: list[compiled_text.Text]) -> dict[str, tuple[str, int]]:
    """File and line of each address in ``code``; empty unless every instruction is the same in both."""
    ran = launch.loc[launch["Address"].str.startswith("0x"), ["Address", "Source (SASS)"]]
    known = {text.address: text for text in code if text.address is not None}
    if ran.empty or not known:
        return {}
    first = min(int(address, 16) for address in ran["Address"])
    found = {}
    for address, instruction in ran.itertuples(index=False, name=None):
        text = known.get(int(address, 16) - first)
        if text is None or compiled_text.mnemonic(text.text) != compiled_text.mnemonic(instruction):
            return {}
        if text.line:
            found[address] = (text.file, text.line)
    return found


def _values(cells: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """One instruction's values by metric."""
    for metric in LINE_METRICS.values():
        value = ncu_csv.number(str(cells.get(metric.column, "")))
        if value is not None:
            yield metric.name, value
    if "Global" not in str(cells.get("Address Space", "")).split(","):
        return
    # "Load,Store" copies from global to shared memory: it reads.
    kind = "read" if str(cells["Access Operation"]).startswith("Load") else "written"
    sectors = ncu_csv.number(str(cells.get("L2 Theoretical Sectors Global", "")))
    if sectors is not None:
        yield f"sectors_{kind}", sectors
    threads = ncu_csv.number(str(cells.get("Predicated-On Thread Instructions Executed", "")))
    bits = ncu_csv.number(str(cells.get("Access Size", "")))
    if threads is not None and bits is not None:
        yield f"requested_bytes_{kind}", threads * bits / 8
