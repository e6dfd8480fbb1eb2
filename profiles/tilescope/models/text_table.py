"""The table of a run's cases for a terminal and a notebook: one line a case. Pure; imports neither torch nor triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from tilescope.models import faults, function_names, step_text, summary, terminal
from tilescope.runs import artefacts, steps
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case import Case, readable
from tilescope.table.run import Run
from tilescope.table.schema import named

#: The text in place of the error of a case whose check was skipped, and of an absent value.
UNCHECKED, ABSENT = "skipped", "–"
#: Characters above which a kernel's name is shortened: C++ templates' have hundreds.
_LONG = 72
_NAMES = ("kernel", "impl", "pass", "workload")

Text = Callable[[Mapping[Any, Any]], str]


def _value(name: str, say: Callable[[Any], str]) -> Text:
    return lambda row: "" if pd.isna(row[name]) else say(row[name])


def _error(name: str) -> Text:
    return _value(name, lambda value: value if value == UNCHECKED else f"{value:.2e}")


def _read_written(stem: str, before: str = "", say: Callable[[float], str] = "{:,.0f}".format) -> Text:

    def said(row: Mapping[Any, Any]) -> str:
        sides = [row[f"{stem}_bytes_{way}"] for way in ("read", "written")]
        known = [ABSENT if pd.isna(side) else say(side) for side in sides]
        return "" if known == [ABSENT, ABSENT] else before + " / ".join(known)

    return said


def _energy(row: Mapping[Any, Any]) -> str:
    at = f"{units.text(row['power'], 'watt')} of {units.text(row['power_limit'], 'watt')}, {units.text(row['power_clock'], 'hertz')}"
    return "" if pd.isna(row["energy"]) else f"{units.text(row['energy'], 'joule')} ({at})"


#: The columns after those that name a case, the most important first: a heading, and the text of a row of
#: ``summary.summarise``, empty where it has no value. Resources are those of the longest launch.
COLUMNS: dict[str, tuple[str, Text]] = {
    "fault": ("failed", lambda row: faults.LABELS.get(row["fault"], "")),
    "gpu_time": ("GPU time", _value("gpu_time", lambda value: units.text(value, "second"))),
    "energy": ("energy", _energy),
    "floor_fraction": ("of roofline", _value("floor_fraction", "{:.1%}".format)),
    "relative_error": ("rel. error", _error("relative_error")),
    "dram": ("HBM r / w", _read_written("dram", say=lambda value: units.text(value, "byte"))),
    "registers": ("registers", _value("registers", "{:,.0f}".format)),
    "theoretical_occupancy": ("occupancy", _value("theoretical_occupancy", "{:.1%}".format)),
    "limiter": ("limited by", lambda row: row["limiter"]),
    "spill_bytes": ("spills B", _value("spill_bytes", "{:,.0f}".format)),
    "bytes_ratio": ("bytes vs minimum", _value("bytes_ratio", units.times)),
    "unique": ("unique B r / w", _read_written("unique")),
    "sampled": ("requested B r / w, of a sample", _read_written("sampled", "≈ ")),
    "requested": ("requested B r / w", _read_written("requested")),
    "interval": ("interval", _value("interval", lambda value: units.text(value, "second"))),
    "shared_memory": ("shared B", _value("shared_memory", "{:,.0f}".format)),
    "tolerance": ("allowed", _value("tolerance", "{:.0e}".format)),
    "row_error": ("worst row", _error("row_error")),
    "row_tolerance": ("allowed in a row", _value("row_tolerance", "{:.0e}".format)),
    "chosen": ("chosen config", lambda row: row["chosen"]),
}
#: The columns of a case with a fault.
_OF_FAULT = ("fault", "relative_error", "tolerance", "row_error", "row_tolerance")


def text(loaded: LoadedRun, rows: pd.DataFrame | None = None) -> str:
    """The table of the run as lines of text, without empty cases and columns; of a model's step all that is known of it.

    ``rows`` are ``summary.of_run``'s of the whole run, where they are known.
    """
    if step := steps.read(loaded.folder):
        return step_text.text(step, loaded.run.device)
    rows = summary.of_run(loaded, loaded.table) if rows is None else rows
    headings, lines, keys = cells(marked(rows, loaded.run))
    if lines := [line for line in lines if not {*line[keys:]} <= {ABSENT, UNCHECKED}]:
        return terminal.render(headings, lines, keys)
    found = ", ".join(f"{one.finds} ({one.name})" for one in artefacts.shown_elsewhere(loaded.folder))
    return f"kept for 'tilescope serve', which draws it: {found}" if found else "no case gave a result"


def marked(rows: pd.DataFrame, run: Run) -> pd.DataFrame:
    """The rows with ``UNCHECKED`` as the error of unchecked cases: a result that was not checked must not look correct."""
    found = rows.astype({"relative_error": "object"})
    found.loc[unchecked(rows, run), "relative_error"] = UNCHECKED
    return found


def unchecked(rows: pd.DataFrame, run: Run) -> pd.Series:
    """A mask of the run's cases that have no error because their check was skipped. A note of the run has the reason."""
    skipped = [one for one in run.skipped if one.collector == "check"]
    left: set[tuple[str, ...]] = {
        (case.name, case.impl, case.direction, case.workload, case.config) for one in skipped for case in one.cases
    }
    if not all(one.cases for one in skipped):
        failed = {readable(failure.case) for failure in run.failures if failure.collector == "check"}
        left |= {case for case in named(rows) if Case(*case).id not in failed}
    return rows["relative_error"].isna() & pd.Series([case in left for case in named(rows)], rows.index, dtype="bool")


def cells(
    found: pd.DataFrame,
    order: Sequence[int] | None = None,
    name_by: Sequence[str] = _NAMES,
    columns: Sequence[str] = tuple(COLUMNS),
) -> tuple[list[str], list[list[str]], int]:
    """The headings and cells of rows of ``summary.summarise``, and the number of columns that name a case.

    ``order`` selects and sorts rows; ``name_by`` are columns always shown. ``columns`` are shown if a row has a value there.
    """
    called = function_names.labels(found["kernel"]) if found["kernel"].str.len().max() > _LONG else {}
    rows = found.loc[found.index if order is None else list(order)].to_dict("records")
    keys = [*name_by, *(["config"] if "config" not in name_by and found["config"].any() else [])]
    texts = [{name: COLUMNS[name][1](row) for name in columns if not row["fault"] or name in _OF_FAULT} for row in rows]
    shown = [name for name in columns if any(of_case.get(name) for of_case in texts)]
    lines = [
        [*(called.get(row[key], row[key]) for key in keys), *(of_case.get(name) or ABSENT for name in shown)]
        for row, of_case in zip(rows, texts, strict=True)
    ]
    return [*keys, *(COLUMNS[name][0] for name in shown)], lines, len(keys)
