"""Sweeps over configs as frames: a row a config, with its parameters and what they led to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd
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
#: Clocks in the order they are preferred for comparing configs of one kernel.
_CLOCKS = ("gpu_time", "graph_time", "interval")
#: Values that lie within this part of the least one differ by little more than one measurement does from the next.
CLOSE = 0.02


def size(table: pd.DataFrame, kernel: str) -> int:
    """Number of the kernel's configs in a run's table; with one there is nothing to choose from."""
    return int(table.loc[table["kernel"] == kernel, "config"].replace("", pd.NA).nunique())


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
    cells = [{**case, "reason": reasons.get(key, "")} for key, case in known.items()]
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


def names(cells: pd.DataFrame) -> pd.Series:
    """Name of each config's sweep: its implementation, pass and workload."""
    return cells[["impl", "pass", "workload"]].apply(" · ".join, axis=1, result_type="reduce").astype(object)


def spread(values: pd.Series) -> float | None:
    """Relative distance of the largest value from the least; None for fewer than two values, or a least one of 0."""
    known = values.dropna()
    return float(known.max() / known.min() - 1) if len(known) > 1 and known.min() > 0 else None


def close(values: pd.Series) -> bool:
    """Whether the ``spread`` is less than ``CLOSE``."""
    apart = spread(values)
    return apart is not None and apart < CLOSE


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
    """Resources of each case's longest launch, from the source that ``tilescope.models.preference`` prefers."""
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
