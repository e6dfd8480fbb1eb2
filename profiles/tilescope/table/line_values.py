"""Values of single source lines: one tidy frame beside the run's table, and the parsers that fill it.

A line is one of the file that the launched function is written in. What that line calls is counted with it where the
source of the value knows the caller: the interpreter does, and so does the compiler; ncu alone knows only the innermost
line, which may be one of Triton's own library. Pure; imports neither torch nor triton.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tilescope.collectors import compiled_text
from tilescope.collectors.ncu import ncu_csv
from tilescope.table.case import Case
from tilescope.table.schema import CASE_COLUMNS, SchemaError

#: Column name to pandas dtype. ``launch`` is the position among the launches its source saw in the case, ``file`` a
#: file's name without its folders (another library's after its implementation, ``liger/softmax.py``), ``line`` counts from 1.
COLUMNS: dict[str, str] = {
    **dict.fromkeys(CASE_COLUMNS, "str"),
    "launch": "Int32",
    "function": "str",
    "file": "str",
    "line": "Int32",
    "metric": "str",
    "value": "float64",
    "unit": "str",
    "source": "str",
}


@dataclass(frozen=True)
class LineMetric:
    """What is known of a line. ``column`` is its name on ncu's source page, empty where ncu has none."""

    name: str
    label: str
    unit: str
    column: str = ""


#: Stall reasons by the name of their column, as Nsight Compute writes them.
_STALLS = {
    "barrier": "Barrier", "branch_resolving": "Branch Resolving", "dispatch": "Dispatch Stall", "drain": "Drain",
    "gmma": "GMMA", "imc": "IMC Miss", "lg": "LG Throttle", "long_sb": "Long Scoreboard",
    "math": "Math Pipe Throttle", "membar": "Membar", "mio": "MIO Throttle", "misc": "Misc", "no_inst": "No Instruction",
    "not_selected": "Not Selected", "selected": "Selected", "short_sb": "Short Scoreboard", "sleep": "Sleeping",
    "tex": "TEX Throttle", "wait": "Wait",
}  # fmt: skip

#: Every metric of a line by its name, in the order in which they are offered. ``stall_*`` are parts of
#: ``stall_samples``, by the reason that ncu gives (Nsight Compute, Profiling Guide, "Warp Scheduler States").
METRICS: dict[str, LineMetric] = {
    metric.name: metric
    for metric in (
        LineMetric("stall_samples", "stall samples", "count", "Warp Stall Sampling (All Samples)"),
        LineMetric("instructions_executed", "instructions executed, by warps", "count", "Instructions Executed"),
        LineMetric("requested_bytes_read", "bytes requested, read", "byte"),
        LineMetric("requested_bytes_written", "bytes requested, written", "byte"),
        LineMetric("sectors_read", "sectors, read", "count"),
        LineMetric("sectors_written", "sectors, written", "count"),
        LineMetric("shared_wavefronts", "shared-memory wavefronts", "count", "L1 Wavefronts Shared"),
        LineMetric("shared_wavefronts_ideal", "shared-memory wavefronts, ideal", "count", "L1 Wavefronts Shared Ideal"),
        LineMetric("sass_instructions", "SASS instructions", "count"),
        *(LineMetric(f"stall_{key}", f"stalls: {label}", "count", f"stall_{key}") for key, label in _STALLS.items()),
    )
}


def of_another(owner: str, found: pd.DataFrame, sources: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """The same lines and texts with ``owner/`` before each file: another library's files may be called as a kernel's own."""
    return found.assign(file=f"{owner}/" + found["file"]), {f"{owner}/{name}": text for name, text in sources.items()}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows to a frame with every column, in order; the unit is the metric's.

    Raises SchemaError for a metric that METRICS lacks, or a line below 1.
    """
    table = pd.DataFrame(list(rows), columns=list(COLUMNS))
    unknown = sorted(set(table["metric"].dropna()) - set(METRICS))
    if unknown:
        raise SchemaError(f"unknown metric of a line {unknown[0]!r}: add it to tilescope.table.line_values.METRICS")
    table["unit"] = table["metric"].map({name: metric.unit for name, metric in METRICS.items()})
    for column, dtype in COLUMNS.items():
        if dtype == "str":
            # A column that no row sets has no strings to fill among.
            table[column] = table[column].astype("object").fillna("")
        table[column] = table[column].astype(dtype)
    if (table["line"] < 1).any():
        raise SchemaError("a line is counted from 1: leave out what belongs to none")
    return table


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """The same frame, or SchemaError where its columns or metrics are not this module's."""
    if list(table.columns) != list(COLUMNS):
        raise SchemaError("the columns of the values by line are not this Tilescope's")
    unknown = sorted(set(table["metric"]) - set(METRICS))
    if unknown:
        raise SchemaError(f"unknown metric of a line {unknown[0]!r}")
    if table["line"].isna().any() or (table["line"] < 1).any():
        raise SchemaError("a line is counted from 1")
    # NaN is what a counter says that has nothing to divide by; views show it as no value.
    if (table["value"].abs() == float("inf")).any():
        raise SchemaError("a value of a line must not be infinite")
    return table


def requested(launches: Iterable[Mapping[str, Any]], case: Case) -> pd.DataFrame:
    """What each line asked of memory: ``launches`` as the interpreter's artefact lists them."""
    return frame(
        row
        for index, launch in enumerate(launches)
        for line, counts in launch.get("lines", {}).items()
        if int(line) > 0
        for row in _rows(case, "interpreter", _place(index, launch["function"], launch["file"], int(line)), counts)
    )


def compiled(launches: Iterable[Mapping[str, Any]], case: Case) -> pd.DataFrame:
    """SASS instructions that each line became: ``launches`` as the compiler's artefact lists them."""
    rows: list[dict[str, Any]] = []
    for index, launch in enumerate(launches):
        function, file = launch["function"], launch["file"]
        code = compiled_text.read("sass", launch["stages"]["sass"], file)
        counted = Counter(text.line for text in code if text.line and text.address is not None)
        for line, count in sorted(counted.items()):
            rows += _rows(case, "compiler", _place(index, function, file, line), {"sass_instructions": count})
    return frame(rows)


def sampled(page: str, case: Case, compiled: Mapping[str, list[compiled_text.Text]] | None = None) -> pd.DataFrame:
    """ncu's source page of one case (``--page source --csv --print-source cuda,sass``). An absent cell gives no row.

    ``compiled`` maps a kernel function to its SASS with lines, as ``compiled_text.read`` gives it: where it is instruction
    for instruction the code that ran, what a line calls is counted with that line. Raises NcuFormatError without
    a page.
    """
    rows: list[dict[str, Any]] = []
    for index, launch in enumerate(launches(page)):
        code = (compiled or {}).get(launch.function, [])
        for (file, line), values in _by_line(ncu_csv.read_source(launch.text), code).items():
            rows += _rows(case, "ncu", _place(index, launch.function, file, line), values)
    return frame(rows)


@dataclass(frozen=True)
class Tables:
    """One launch's part of ncu's source page: a table for each source file, as CSV in ``text``."""

    function: str
    text: str


def launches(page: str) -> list[Tables]:
    """A source page, launch by launch. ncu prints them one after another, each with a table a file.

    A launch ends where the function changes or a file comes again. Raises NcuFormatError without a table.
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
    return [Tables(function, _csv(rows)) for function, _, rows in found]


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _by_line(launch: pd.DataFrame, code: list[compiled_text.Text]) -> dict[tuple[str, int], dict[str, float]]:
    """Sums of one launch's instructions by file and line."""
    innermost = [(_base(file), line) for file, line in zip(launch["File Path"], launch["Line No"], strict=True)]
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
    """The place of each address that ``code`` knows; empty unless every instruction is the same in both."""
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
    for metric in METRICS.values():
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


def _base(path: str) -> str:
    return path.rpartition("/")[2]


def _place(launch: int, function: str, file: str, line: int) -> dict[str, Any]:
    return {"launch": launch, "function": function, "file": file, "line": line}


def _rows(case: Case, source: str, place: Mapping[str, Any], values: Mapping[str, float]) -> list[dict[str, Any]]:
    return [case.row(name, float(value), source, **place) for name, value in values.items()]
