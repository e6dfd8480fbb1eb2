"""Frames that only the dashboard's figures need. Pure: table to frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from tilescope.hardware import occupancy
from tilescope.models import preference
from tilescope.table.case import parse_config
from tilescope.table.case_table import CaseValues, by_problem, gather
from tilescope.table.schema import CASE_COLUMNS, Failure

#: What a heatmap can be coloured by: label, unit, and whether less is better.
COLOURINGS = {
    "time": ("time", "second", True),
    "registers": ("registers per thread", "count", True),
    "shared_memory": ("shared memory per block", "byte", True),
    "spills": ("spilled bytes per thread", "byte", True),
    "theoretical_occupancy": ("theoretical occupancy", "ratio", False),
}
_SPILLS = ("spill_bytes_stored", "spill_bytes_loaded")
_LAUNCH = ("registers", "shared_memory", "block_threads", "barriers", "shared_memory_configured",
           "theoretical_occupancy", "achieved_occupancy", "estimated_occupancy", "grid_blocks", "waves", *_SPILLS)  # fmt: skip


def launches(table: pd.DataFrame, metrics: Iterable[str] = _LAUNCH) -> pd.DataFrame:
    """One row a case, launch and source, one column a metric (the median over samples; absent where not known)."""
    wanted = list(metrics)
    rows = table[table["metric"].isin(wanted) & table["launch"].notna()]
    index = [*CASE_COLUMNS, "source", "launch", "function"]
    medians = rows.groupby([*index, "metric"], sort=False)["value"].median()
    return medians.unstack("metric").reindex(columns=wanted).reset_index() if len(rows) else _none([*index, *wanted])


def resources(table: pd.DataFrame) -> pd.DataFrame:
    """One row a launch with what it takes of a multiprocessor, from the source that ``tilescope.models.preference`` takes at its word."""
    known = launches(table).dropna(subset=["registers", "block_threads"])
    told = {_key(case, CASE_COLUMNS): preference.source_of(case) for case in gather(table)}
    by = [told[key] for key in known[CASE_COLUMNS].itertuples(index=False, name=None)]
    known = known[known["source"] == by]
    # A case's launches in the order in which they were made.
    place = known.groupby(CASE_COLUMNS, sort=False).ngroup()
    return known.iloc[np.lexsort((known["launch"].astype("int64"), place))].reset_index(drop=True)


def _key(case: CaseValues, index: Iterable[str]) -> tuple[str, ...]:
    return tuple(case.key[name] for name in index)


def occupancies(table: pd.DataFrame, target: str) -> pd.DataFrame:
    """``resources`` with the theoretical occupancy on ``target``, blocks by each limiter, and the limiters in words."""
    rows = resources(table)
    found = [_occupancy(row, target) for row in rows.to_dict("records")]
    limits = sorted({name for o in found for name in o.limits}, key=list(_LIMITS).index)
    return rows.assign(
        occupancy=[o.ratio for o in found],
        limiter=[limiter_text(o.limiters) for o in found],
        active_blocks=[o.blocks for o in found],
        **{f"limit_{name}": [o.limits.get(name, np.nan) for o in found] for name in limits},
    )


_LIMITS = {metric.removeprefix("occupancy_limit_"): text for metric, text in preference.LIMITERS.items()}


def limiter_text(limiters: Iterable[str]) -> str:
    """``registers, warps and barriers``."""
    *others, last = [_LIMITS.get(name, name) for name in limiters]
    return f"{', '.join(others)} and {last}" if others else last


def _occupancy(row: Mapping[str, Any], target: str, **changed: int) -> occupancy.Occupancy:
    def value(name: str, otherwise: int) -> int:
        return otherwise if pd.isna(row.get(name)) else int(row[name])

    asked = {
        "registers": value("registers", 0),
        "shared_memory": value("shared_memory", 0),
        "threads": value("block_threads", 32),
        "barriers": value("barriers", 1),
        **changed,
    }
    # The carve-out belongs to the launch as it was: another shared memory size would have had another.
    configured = value("shared_memory_configured", 0) or None
    return occupancy.blocks(target, **asked, configured=None if changed else configured)


def occupancy_curve(row: Mapping[str, Any], target: str, resource: str) -> pd.DataFrame:
    """Occupancy of the launch ``row`` if it took another amount of ``resource``, all else equal.

    Columns ``value``, ``occupancy``, ``limiter``; only where something changes, and at both ends.
    """
    chip = occupancy.limits(target)
    values, name, factor = {
        "registers": (range(16, 256), "registers", 1),
        "shared_memory": (range(0, chip.block_shared_memory + 1, 1024), "shared_memory", 1),
        "warps": (range(1, 33), "threads", 32),
    }[resource]
    steps = [(v, _occupancy(row, target, **{name: v * factor})) for v in values]
    kept = [
        (v, o.ratio, limiter_text(o.limiters))
        for i, (v, o) in enumerate(steps)
        if i in (0, len(steps) - 1) or (o.ratio, o.limiters) != (steps[i - 1][1].ratio, steps[i - 1][1].limiters)
    ]
    return pd.DataFrame(kept, columns=["value", "occupancy", "limiter"])


def configs(table: pd.DataFrame, failures: Iterable[Failure] = (), target: str = "") -> pd.DataFrame:
    """One row a config of a sweep: its parameters, ``time``, registers, shared memory, spills, occupancy, ``reason``.

    ``table`` holds one kernel. A config that failed has its reason and no values. ``time_source`` and
    ``code_source`` name where the time and the resources come from; ``target`` is the architecture of the run's device.
    """
    index = [c for c in CASE_COLUMNS if c != "kernel"]
    rows = table[table["config"] != ""]
    known = {tuple(key): dict(zip(index, key, strict=True)) for key in rows[index].drop_duplicates().to_numpy()}
    name = rows["kernel"].iloc[0] if len(rows) else ""
    reasons: dict[tuple[str, ...], str] = {}
    for failure in failures:
        parts = failure.case.split("/")
        if len(parts) >= 5 and "=" in parts[-1] and (not name or failure.concerns(name)):
            impl, direction, workload, config = parts[-4:]
            dtype = next((p for p in workload.split("-")[1:] if not p.startswith("s")), "")
            key = (impl, direction, workload, dtype, config)
            reasons.setdefault(key, f"{failure.collector}: {failure.message}")
            known.setdefault(key, dict(zip(index, key, strict=True)))
    cells = [{**facts, "reason": reasons.get(key, "")} for key, facts in known.items()]
    frame = pd.DataFrame(cells, columns=[*index, "reason"])
    if len(rows):
        frame = frame.join(_values(rows, index, target), on=index)
    frame = frame.reindex(columns=[*index, *COLOURINGS, "time_source", "code_source", "reason"])
    return frame.join(pd.DataFrame([_parameters(c) for c in frame["config"]], index=frame.index))


def parameters(cells: pd.DataFrame) -> list[str]:
    """The parameters that vary, those with most values first."""
    names = [c for c in cells.columns if c not in (*CASE_COLUMNS, *COLOURINGS, "time_source", "code_source", "reason")]
    varying = {n: cells[n].nunique() for n in names if cells[n].nunique() > 1}
    return sorted(varying, key=lambda n: -varying[n])


def _parameters(config: str) -> dict[str, int]:
    try:
        return parse_config(config)
    except ValueError:
        return {}


def _values(rows: pd.DataFrame, index: list[str], target: str) -> pd.DataFrame:
    """Time and resources of each case: of the longest launch, by the source that ``tilescope.models.preference`` takes at its word."""
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for case in gather(rows):
        found = cells[_key(case, index)] = _time(case)
        if taken := preference.main_resources(case, target):
            found |= {
                "registers": taken.registers,
                "shared_memory": taken.shared_memory,
                "spills": taken.spill_bytes,
                "theoretical_occupancy": taken.theoretical_occupancy,
                "code_source": taken.source,
            }
    frame = pd.DataFrame(list(cells.values()), pd.MultiIndex.from_tuples(cells, names=index))
    return frame.reindex(columns=[*COLOURINGS, "time_source", "code_source"]).astype(
        dict.fromkeys(COLOURINGS, "float64")
    )


def _time(case: CaseValues) -> dict[str, Any]:
    """``time`` and ``time_source`` by the clock that is preferred among those that the case has."""
    clocks = {
        "gpu time": case.gpu_time(),
        **{name: case.spread(name.replace(" ", "_")) for name in ("graph time", "interval")},
    }
    return next(({"time": s.value, "time_source": f"{s.source}, {name}"} for name, s in clocks.items() if s), {})


def _none(columns: Iterable[str]) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))


def default_configs(table: pd.DataFrame) -> pd.DataFrame:
    """The table without sweeps: rows of the implementation's own choice.

    An implementation that ran with configs only is there with its fastest, or with the first where nothing was timed.
    """
    if not (table["config"] != "").any():
        return table
    own = table["config"] == ""
    swept = table[~own.groupby([table[c] for c in ("kernel", "impl", "pass", "workload")]).transform("any")]
    fastest = {_key(case, CASE_COLUMNS) for of in by_problem(gather(swept)).values() for case in of.values()}
    kept = swept.index[pd.MultiIndex.from_frame(swept[CASE_COLUMNS]).isin(fastest)] if fastest else []
    return table[own | table.index.isin(kept)]


def largest_problem(table: pd.DataFrame) -> tuple[str, str]:
    """``(workload, pass)`` of the most bytes that the algorithm needs, forward where there is one; two empty texts if none."""
    bytes_needed = table[table["metric"].isin(["algorithm_bytes_read", "algorithm_bytes_written"])]
    if bytes_needed.empty:
        return ("", "")
    forward = bytes_needed[bytes_needed["pass"].eq("forward")]
    rows = forward if len(forward) else bytes_needed
    of_one = rows.groupby(["workload", "pass", "impl"], sort=False)["value"].sum()
    workload, direction, _ = (
        of_one.idxmax()
    )  # of several, the first: as ``summary.representative`` and ``listings.largest``
    return (str(workload), str(direction))


def with_first(rows: pd.DataFrame, wanted: Mapping[str, str]) -> pd.DataFrame:
    """The rows, those first that have the wanted value in the first of these columns, of them those in the next, and so on."""
    others = pd.DataFrame({column: rows[column] != value for column, value in wanted.items()})
    return rows.loc[others.sort_values(list(others), kind="stable").index]
