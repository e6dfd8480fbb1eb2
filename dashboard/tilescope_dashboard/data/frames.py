"""Frames that only the dashboard's figures need. Pure: table to frame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from tilescope.hardware import occupancy
from tilescope.models import preference
from tilescope.table.case import parse_config
from tilescope.table.case_table import gather
from tilescope.table.schema import CASE_COLUMNS, SOURCES, Failure

#: What a heatmap can be coloured by: label, unit, and whether less is better.
COLOURINGS = {
    "time": ("time", "second", True),
    "registers": ("registers per thread", "count", True),
    "shared_memory": ("shared memory per block", "byte", True),
    "spills": ("spilled bytes per thread", "byte", True),
    "theoretical_occupancy": ("theoretical occupancy", "ratio", False),
}
_SPILLS = ("spill_bytes_stored", "spill_bytes_loaded")
#: Clocks in the order they are preferred for comparing configs of one kernel.
_CLOCKS = ("gpu_time", "graph_time", "interval")
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
    """One row a launch with what it takes of a multiprocessor, from the most direct source that knows its registers."""
    known = launches(table).dropna(subset=["registers", "block_threads"])
    if known.empty:
        return known
    return _most_direct(known, CASE_COLUMNS).reset_index(drop=True)


def _most_direct(rows: pd.DataFrame, index: Iterable[str]) -> pd.DataFrame:
    """The rows of each case that come from the most direct of its sources."""
    rank = rows["source"].map({source: place for place, source in enumerate(SOURCES)})
    return rows[rank == rank.groupby([rows[c] for c in index]).transform("min")]


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


_LIMITS = {
    "registers": "registers", "shared_memory": "shared memory", "warps": "warps", "blocks": "block slots",
    "barriers": "barriers",
}  # fmt: skip


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
        frame = frame.join(pd.concat([_times(rows, index), _code(rows, index, target)], axis="columns"), on=index)
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


def _times(rows: pd.DataFrame, index: list[str]) -> pd.DataFrame:
    """``time`` and ``time_source`` of each case, by the clock that is preferred among those that it has."""
    times = rows[rows["metric"].isin(_CLOCKS)]
    # A call's time is the sum over its launches, sample by sample.
    calls = times.groupby([*index, "metric", "source", "sample"], dropna=False)["value"].sum()
    medians = calls.groupby([*index, "metric", "source"]).median().rename("time").reset_index()
    order = medians.assign(clock=medians["metric"].map(_CLOCKS.index), rank=medians["source"].map(SOURCES.index))
    best = order.sort_values(["clock", "rank"], kind="stable").drop_duplicates(index)
    best["time_source"] = best["source"].astype(str) + ", " + best["metric"].astype(str).str.replace("_", " ")
    return best.set_index(index)[["time", "time_source"]]


def _code(rows: pd.DataFrame, index: list[str], target: str) -> pd.DataFrame:
    """What the code of each case takes: of its longest launch, by the source that ``tilescope.models.preference`` takes at its word."""
    cells: list[dict[str, Any]] = []
    for case in gather(rows):
        found = preference.main_resources(case, target)
        if found is not None:
            cells.append(
                {
                    **{name: case.key[name] for name in index},
                    "registers": found.registers,
                    "shared_memory": found.shared_memory,
                    "spills": found.spill_bytes,
                    "theoretical_occupancy": found.theoretical_occupancy,
                    "code_source": found.source,
                }
            )
    numbers = ["registers", "shared_memory", "spills", "theoretical_occupancy"]
    frame = pd.DataFrame(cells, columns=[*index, *numbers, "code_source"])
    return frame.astype(dict.fromkeys(numbers, "float64")).set_index(index)


def _none(columns: Iterable[str]) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))


def default_configs(table: pd.DataFrame) -> pd.DataFrame:
    """The table without sweeps: rows of the implementation's own choice.

    An implementation that ran with configs only is there with its fastest, or with the first where nothing was timed.
    """
    if not (table["config"] != "").any():
        return table
    problem = ["kernel", "impl", "pass", "workload"]
    own = table["config"] == ""
    swept = table[~own.groupby([table[c] for c in problem]).transform("any")]
    times = (
        swept[swept["metric"] == "gpu_time"]
        .groupby([*problem, "config", "source", "sample"], dropna=False)["value"]
        .sum()
    )
    ranked = times.groupby([*problem, "config"]).median().sort_values(kind="stable").reset_index()[[*problem, "config"]]
    best = pd.concat([ranked, swept[[*problem, "config"]]]).drop_duplicates(problem)
    kept = pd.MultiIndex.from_frame(swept[[*problem, "config"]]).isin(pd.MultiIndex.from_frame(best))
    return pd.concat([table[own], swept[kept]]).sort_index()


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
