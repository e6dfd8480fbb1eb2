"""The table as text for a terminal: one line a case. Pure; imports neither torch nor triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tilescope.models import faults, function_names, preference, summary, terminal
from tilescope.models.preference import Resources
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case import Case, readable
from tilescope.table.run import Device, Failure, Run
from tilescope.table.schema import CASE_COLUMNS

#: The text in place of the error of a case whose check was skipped.
UNCHECKED = "skipped"
#: Characters above which a kernel's name is shortened: C++ templates' have hundreds.
_LONG = 72
#: Number of a case's launches up to which their values are listed one by one.
MOST_LAUNCHES = 4


def results(
    table: pd.DataFrame,
    device: Device,
    launched: pd.DataFrame | None = None,
    failures: Iterable[Failure] = (),
) -> pd.DataFrame:
    """The rows of ``summary.summarise`` as a terminal shows them; a launch's values are tuples of one number a launch.

    The columns are those of the case and ``gpu_time`` (seconds), ``interval`` (seconds), ``registers``, ``shared_memory``
    (bytes), ``spills`` (bytes stored and loaded), ``occupancy`` (theoretical), ``limiter`` (text), ``requested``, ``unique``,
    ``sampled`` and ``moved`` (pairs of bytes read and written), ``relative_error`` and its ``tolerance``, ``row_error`` (of the
    worst row) and its ``row_tolerance``, ``chosen`` and ``fault`` (see ``summarise``, which takes ``launched`` and ``failures``). An
    absent value is None. A case with a fault has no value but that and its errors.
    """
    rows = summary.summarise(table, device, launched=launched, failures=failures).to_dict("records")
    launches = preference.of_cases(table, device.target)
    shown = [_shown(row, of_case) for row, of_case in zip(rows, launches, strict=True)]
    return pd.DataFrame(shown, columns=[*CASE_COLUMNS, *_NAMES], dtype=object)


_NAMES = ("gpu_time", "interval", "registers", "shared_memory", "spills", "occupancy", "limiter", "requested", "unique", "sampled",
          "moved", "relative_error", "tolerance", "row_error", "row_tolerance", "chosen", "fault")  # fmt: skip
#: The columns of a case with a fault.
_OF_FAULT = ("relative_error", "tolerance", "row_error", "row_tolerance", "fault")
_OF_LAUNCHES = {
    "registers": "registers",
    "shared_memory": "shared_memory",
    "spills": "spill_bytes",
    "occupancy": "theoretical_occupancy",
}
_BYTES = {"requested": "requested", "unique": "unique", "sampled": "sampled", "moved": "dram"}
_NUMBERS = ("gpu_time", "interval", "relative_error", "tolerance", "row_error", "row_tolerance")


def _shown(row: Mapping[Any, Any], launches: Sequence[Resources]) -> dict[str, Any]:
    shown = _values(row, launches)
    return {n: v if n in (*CASE_COLUMNS, *_OF_FAULT) else None for n, v in shown.items()} if row["fault"] else shown


def _values(row: Mapping[Any, Any], launches: Sequence[Resources]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in CASE_COLUMNS},
        **{name: _known(row[name]) for name in _NUMBERS},
        **{name: _each([getattr(launch, field) for launch in launches]) for name, field in _OF_LAUNCHES.items()},
        "limiter": _limiter([launch.limiter for launch in launches if launch.limiter]),
        **{name: _pair(row, f"{of}_bytes") for name, of in _BYTES.items()},
        "chosen": row["chosen"] or None,
        "fault": faults.LABELS.get(row["fault"]),
    }


def text(loaded: LoadedRun) -> str:
    """``results`` of the run as lines of text, without empty cases and columns."""
    found = results(loaded.table, loaded.run.device, loaded.configs, loaded.run.failures)
    found = found[found[list(_NAMES)].notna().any(axis="columns")]
    # A result that was not checked must not look correct.
    found.loc[unchecked(found, loaded.run), "relative_error"] = UNCHECKED
    headings, rows, keys = cells(found)
    return terminal.render(headings, rows, keys) if len(found) else "no case gave a result"


def unchecked(rows: pd.DataFrame, run: Run) -> pd.Series:
    """A mask of the run's cases that have no error because their check was skipped. A note of the run has the reason."""
    skipped = [one for one in run.skipped if one.collector == "check"]
    left: set[tuple[str, ...]] = {
        (case.name, case.impl, case.direction, case.workload, case.config) for one in skipped for case in one.cases
    }
    if not all(one.cases for one in skipped):
        failed = {readable(failure.case) for failure in run.failures if failure.collector == "check"}
        left |= {case for case in _cases(rows) if Case(*case).id not in failed}
    return rows["relative_error"].isna() & pd.Series([case in left for case in _cases(rows)], rows.index, dtype="bool")


def _cases(rows: pd.DataFrame) -> list[tuple[str, ...]]:
    return list(rows[["kernel", "impl", "pass", "workload", "config"]].itertuples(index=False, name=None))


def cells(
    found: pd.DataFrame,
    order: Sequence[int] | None = None,
    name_by: Sequence[str] = ("kernel", "impl", "pass", "workload"),
) -> tuple[list[str], list[list[str]], int]:
    """The formatted headings and cells of ``results``, the most important first, and the number of columns that name a case.

    ``order`` selects and sorts rows; ``name_by`` are columns always shown.
    """
    called = function_names.labels(found["kernel"]) if found["kernel"].str.len().max() > _LONG else {}
    headings: dict[str, tuple[str, Callable[[Any], str]]] = {
        "kernel": ("kernel", lambda v: called[v] if len(v) > _LONG else v),
        **{column: (column, str) for column in ("impl", "pass", "workload", "config")},
        "fault": ("failed", str),
        "gpu_time": ("GPU time", lambda v: units.text(v, "second")),
        "relative_error": ("rel. error", lambda v: v if v == UNCHECKED else f"{v:.2e}"),
        "moved": ("HBM B r / w", _read_written),
        "registers": ("registers", _joined),
        "occupancy": ("occupancy", lambda v: _joined(v, lambda one: f"{one:.1%}")),
        "limiter": ("limited by", str),
        "spills": ("spills B", _joined),
        "unique": ("unique B r / w", _read_written),
        "sampled": ("requested B r / w, of a sample", lambda v: f"≈ {_read_written(v)}"),
        "requested": ("requested B r / w", _read_written),
        "interval": ("interval", lambda v: units.text(v, "second")),
        "shared_memory": ("shared B", _joined),
        "tolerance": ("allowed", lambda v: f"{v:.0e}"),
        "row_error": ("worst row", lambda v: f"{v:.2e}"),
        "row_tolerance": ("allowed in a row", lambda v: f"{v:.0e}"),
        "chosen": ("chosen config", str),
    }  # fmt: skip
    unnamed = [name for name in CASE_COLUMNS if name not in (*name_by, "config")]
    filled = {n for n in headings if n not in unnamed and any(v is not None and v != "" for v in found[n])}
    shown = [n for n in headings if n in name_by or n in filled]
    rows = [
        ["–" if (value := found.at[index, name]) is None else headings[name][1](value) for name in shown]
        for index in (found.index if order is None else order)
    ]
    keys = sum(name in (*CASE_COLUMNS, *name_by) for name in shown)
    return [headings[name][0] for name in shown], rows, keys


def _joined(values: Iterable[float], one: Any = lambda v: f"{v:,.0f}") -> str:
    """The launches' values joined by ``+``, a single one where they agree, their range where they are many."""
    known = list(values)
    texts: list[str] = [one(value) for value in known]
    if len(set(texts)) == 1:
        return texts[0]
    if len(texts) > MOST_LAUNCHES:
        return f"{one(min(known))}…{one(max(known))} in {len(texts)}"
    return "+".join(texts)


def _read_written(pair: Sequence[float]) -> str:
    return " / ".join("–" if value is None else f"{value:,.0f}" for value in pair)


def _each(values: Sequence[float | None]) -> tuple[float, ...] | None:
    """The known values, or None where there are none."""
    known = tuple(value for value in values if value is not None)
    return known or None


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _pair(row: Mapping[Any, Any], stem: str) -> tuple[float | None, float | None] | None:
    read, written = (_known(row[f"{stem}_{way}"]) for way in ("read", "written"))
    return None if read is None and written is None else (read, written)


def _limiter(texts: Sequence[str]) -> str | None:
    """What limits each launch, once where they agree."""
    return (texts[0] if len(set(texts)) == 1 else " + ".join(texts)) if texts else None
