"""Stalls, instructions and memory requests of every source line, from the source page of the Nsight Compute CLI.

Not part of ``auto``: the sampling passes are additional to ``ncu``'s. The worker and its ranges are those of the ``ncu`` collector.
ncu's source page names no ranges. It is therefore read from a report, whose details page assigns the launches to cases.
"""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors import compiled_text, compiler
from tilescope.collectors.ncu import counters, ncu_csv, rules, source_page
from tilescope.collectors.ncu.counters import capture, environment, explain, unavailable  # noqa: F401 - as in ``ncu``
from tilescope.files import bounded_reading
from tilescope.table import schema
from tilescope.table.case import Case

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
    for launch in source_page.launches(page):
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
    return source_page.parse(page, case, _code(compiled) if compiled.is_file() else None), {}


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
