"""Stalls, instructions and memory requests of every source line, from the source page of the Nsight Compute CLI.

Not part of ``auto``: the sampling passes are additional to ``ncu``'s. The worker and its ranges are those of the ``ncu`` collector.
ncu's source page names no ranges. It is therefore read from a report, whose details page assigns the launches to cases.
"""

from __future__ import annotations

import csv
import gzip
import io
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors import compiled_text, compiler
from tilescope.collectors.ncu import counters, ncu_csv, rules
from tilescope.collectors.ncu.counters import capture, environment, explain, unavailable  # noqa: F401 - as in ``ncu``
from tilescope.files import bounded_reading
from tilescope.table import line_values, schema
from tilescope.table.case import Case
from tilescope.table.line_values import LINE_METRICS

SUFFIX = ".csv.gz"

#: ncu's report while the worker runs: the name in the command, and the name of the file.
REPORT = "report"
_REPORT_FILE = "report.ncu-rep"


def command(argv: Sequence[str], folder: Path) -> list[str]:
    """The worker's command line under ncu. Clocks, caches and ranges as in ``ncu``. Raises NcuError where there is no ncu."""
    kept = ("--export", str(folder / REPORT), "--force-overwrite")
    options = ("--section", "SourceCounters", "--import-source", "yes", *kept)
    return counters.wrapped(argv, folder, "details", *options)


def finish(folder: Path, cases: Sequence[Case]) -> None:
    """Divides the report's source page into a compressed CSV for each case, and removes the log and the report.

    A case without source lines gets no artefact. Raises NcuError, with the cure, where nothing was profiled or the report cannot
    be read.
    """
    report, text = folder / _REPORT_FILE, ""
    try:
        text = counters.take_log(folder)
        details = _details(text, report)
        page = _page(report, "source", "--print-source", "cuda,sass")
    except ncu_csv.NcuFormatError as error:
        if cases:
            raise counters.NcuError(
                counters.explain(text) or "ncu printed neither source lines nor a reason"
            ) from error
        return
    finally:
        report.unlink(missing_ok=True)
    for case, tables in divide(page, details, cases).items():
        (folder / (case.slug + SUFFIX)).write_bytes(gzip.compress(tables.encode(), mtime=0))


def divide(page: str, details: Sequence[Mapping[str, str]], cases: Sequence[Case]) -> dict[Case, str]:
    """Each case's part of a source page. ``details`` is the details page of the same report, with the launches' numbers.

    Both pages have the same order, but the source page omits launches without source lines.
    """
    owners = {launch: case for case, own in rules.launches(details, cases).items() for launch in own}
    waiting = list({int(row["ID"]): row["Kernel Name"] for row in details if "Kernel Name" in row}.items())
    found: dict[Case, list[list[str]]] = {}
    for launch in launches(page):
        place = next((i for i, (_, name) in enumerate(waiting) if name == launch.function), None)
        if place is None:
            continue
        case = owners.get(waiting[place][0])
        waiting = waiting[place + 1 :]
        if case is not None:
            found.setdefault(case, []).extend(launch.rows)
    return {case: ncu_csv.text_of(rows) for case, rows in found.items()}


def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """No rows, as values of source lines are not in the run's table."""
    return schema.frame([])


@bounded_reading.parser
def parse_lines(artefact: Path, case: Case) -> tuple[pd.DataFrame, dict[str, str]]:
    """Values of source lines, and no source files. The compiler's artefact of the case, if there is one, shows the callers."""
    page = bounded_reading.text(bounded_reading.content(artefact))
    compiled = artefact.parent.parent / "compiler" / (case.slug + compiler.SUFFIX)
    return parse_page(page, case, _code(compiled) if compiled.is_file() else None), {}


def _code(artefact: Path) -> dict[str, list[compiled_text.Text]]:
    """The SASS of each kernel function in a compiler's artefact."""
    launches: list[dict[str, Any]] = bounded_reading.data_of(artefact)["launches"]
    return {entry["function"]: compiled_text.read("sass", entry["stages"]["sass"], entry["file"]) for entry in launches}


def _details(log: str, report: Path) -> list[dict[str, str]]:
    """The details page, from the log or, where this ncu prints nothing when it writes a report, from the report."""
    try:
        return ncu_csv.read_details(log)
    except ncu_csv.NcuFormatError:
        return ncu_csv.read_details(_page(report, "details", "--nvtx"))


def _page(report: Path, name: str, *options: str) -> str:
    """A page of the report. Raises NcuFormatError where there is no report, NcuError where it cannot be read."""
    if not report.is_file():
        raise ncu_csv.NcuFormatError("ncu left no report")
    command = [counters.ncu_path(), "--import", str(report), "--page", name, "--csv", *options]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise counters.NcuError(counters.explain(done.stdout + done.stderr) or "ncu cannot read its own report back")
    return done.stdout


def parse_page(page: str, case: Case, compiled: Mapping[str, list[compiled_text.Text]] | None = None) -> pd.DataFrame:
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
