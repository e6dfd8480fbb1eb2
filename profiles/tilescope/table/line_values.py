"""Values of single source lines, in a tidy frame beside the run's table. Each collector's parser makes rows for it.

A line belongs to the file of the launched function. It includes the calls that are inlined there where the source of the
value knows the caller, as the interpreter and the compiler do. ncu alone knows only the innermost line, which may be in
Triton's own library. Pure; imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import SchemaError
from tilescope.table.schema import CASE_COLUMNS

#: Column name to pandas dtype. ``launch`` numbers the launches that the source saw in the case. ``file`` is a file's name without
#: folders; another library's follows its implementation, as in ``liger/softmax.py``. ``line`` counts from 1.
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
    """A metric of a source line. ``column`` is its name on ncu's source page, empty where ncu lacks it."""

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

#: Every metric of a line by name, in the order of menus. ``stall_*`` are the parts of ``stall_samples`` by reason
#: (Nsight Compute, Profiling Guide, "Warp Scheduler States").
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
        LineMetric("code_wavefronts", "shared-memory wavefronts of a warp, each access once", "count"),
        LineMetric("code_wavefronts_ideal", "the same without bank conflicts", "count"),
        LineMetric("lane_time", "time of a warp, by its records", "second"),
        LineMetric("lane_wait", "waits of a warp, by its records", "second"),
        LineMetric("lane_records", "records of a warp", "count"),
        LineMetric("sass_instructions", "SASS instructions", "count"),
        LineMetric("sass_beside_wgmma", "SASS instructions beside wgmma under way", "count"),
        *(LineMetric(f"stall_{key}", f"stalls: {label}", "count", f"stall_{key}") for key, label in _STALLS.items()),
    )
}


def of_another(owner: str, found: pd.DataFrame, sources: Mapping[str, str]) -> tuple[pd.DataFrame, dict[str, str]]:
    """Prefixes each file name with ``owner/``, because another library may have a file of the same name."""
    return found.assign(file=f"{owner}/" + found["file"]), {f"{owner}/{name}": text for name, text in sources.items()}


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Makes a frame of rows, with every column in order. The unit is the metric's.

    Raises SchemaError for a metric that LINE_METRICS lacks, or a line below 1.
    """
    table = schema.tidy(rows, COLUMNS, LINE_METRICS, "tilescope.table.line_values.LINE_METRICS")
    if (table["line"] < 1).any():
        raise SchemaError("lines count from 1: leave out values without a line")
    return table


def validate(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the frame. Raises SchemaError for other columns or metrics, lines below 1 and infinite values."""
    schema.check_columns(table.columns, COLUMNS)
    schema.check_known(table, "metric", LINE_METRICS)
    if table["line"].isna().any() or (table["line"] < 1).any():
        raise SchemaError("lines count from 1")
    # A counter without a divisor is NaN; views show it as absent.
    if (table["value"].abs() == float("inf")).any():
        raise SchemaError("a value of a line must not be infinite")
    return table


def rows(
    case: Case, source: str, values: Mapping[str, float], *, launch: int, function: str, file: str, line: int
) -> list[dict[str, Any]]:
    """Rows for ``frame``, one for each metric of a line. ``values`` maps metric to value."""
    place = {"launch": launch, "function": function, "file": file, "line": line}
    return [case.row(name, float(value), source, **place) for name, value in values.items()]
