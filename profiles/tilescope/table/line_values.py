"""Values of single source lines: one tidy frame beside the run's table. Each collector's parser fills it.

A line belongs to the file that the launched function is written in. Inlined calls count with it where the source of
the value knows the caller. The interpreter and the compiler know it; ncu alone knows only the innermost line, which may
be in Triton's own library. Pure; imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tilescope.table import schema
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
    """A metric of a source line. ``column`` is its name on ncu's source page, empty where ncu has none."""

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
LINE_METRICS: dict[str, LineMetric] = {
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
        LineMetric("sass_beside_wgmma", "SASS instructions beside wgmma under way", "count"),
        *(LineMetric(f"stall_{key}", f"stalls: {label}", "count", f"stall_{key}") for key, label in _STALLS.items()),
    )
}


def of_another(owner: str, found: pd.DataFrame, sources: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """The same lines and texts with ``owner/`` before each file name: another library may have a file of the same name."""
    return found.assign(file=f"{owner}/" + found["file"]), {f"{owner}/{name}": text for name, text in sources.items()}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows to a frame with every column, in order; the unit is the metric's.

    Raises SchemaError for a metric that LINE_METRICS lacks, or a line below 1.
    """
    table = schema.tidy(rows, COLUMNS, LINE_METRICS, "tilescope.table.line_values.LINE_METRICS")
    if (table["line"] < 1).any():
        raise SchemaError("a line is counted from 1: leave out what belongs to none")
    return table


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """The same frame, or SchemaError where its columns or metrics are not this module's."""
    if list(table.columns) != list(COLUMNS):
        raise SchemaError("the columns of the values by line are not this Tilescope's")
    unknown = sorted(set(table["metric"]) - set(LINE_METRICS))
    if unknown:
        raise SchemaError(f"unknown metric of a line {unknown[0]!r}")
    if table["line"].isna().any() or (table["line"] < 1).any():
        raise SchemaError("a line is counted from 1")
    # NaN is what a counter says that has nothing to divide by; views show it as no value.
    if (table["value"].abs() == float("inf")).any():
        raise SchemaError("a value of a line must not be infinite")
    return table


def rows(
    case: Case, source: str, values: Mapping[str, float], *, launch: int, function: str, file: str, line: int
) -> list[dict[str, Any]]:
    """One row a metric of a line, as ``frame`` takes them. ``values`` are by metric, ``source`` is their provenance."""
    place = {"launch": launch, "function": function, "file": file, "line": line}
    return [case.row(name, float(value), source, **place) for name, value in values.items()]
