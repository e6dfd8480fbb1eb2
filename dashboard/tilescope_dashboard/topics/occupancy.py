"""Occupancy: the number of a launch's blocks that an SM holds, and the resource that limits it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from tilescope.hardware import occupancy as model
from tilescope.models import preference
from tilescope.table.case_table import gather
from tilescope.table.schema import CASE_COLUMNS
from tilescope.table.units import several

from tilescope_dashboard.data.columns import IMPL, PASS, WORKLOAD, Column
from tilescope_dashboard.data.frames import largest_problem, with_first
from tilescope_dashboard.data.units import write
from tilescope_dashboard.topics.sentence import Sentence

#: A run has launches here if it has one of these metrics.
NEEDED = frozenset({"registers"})
NOTHING = Sentence("Occupancy", "There are no register counts of this kernel.")
#: Columns of ``listed``'s frame.
COLUMNS = (
    IMPL, PASS, WORKLOAD, Column("launch_text", "launch"), Column("occupancy", "theoretical", "ratio"),
    Column("achieved_occupancy", "achieved", "ratio"), Column("registers", "registers", "count"),
    Column("shared_memory", "shared memory (B)", "byte"), Column("block_threads", "threads", "count"),
    Column("active_blocks", "blocks per SM", "count"), Column("limiter", "limited by"), Column("source", "source"),
)  # fmt: skip
_READING = "Hollow marks are theory, filled marks were measured. Each curve changes one resource and keeps the others."
_METRICS = ("registers", "shared_memory", "block_threads", "barriers", "shared_memory_configured", "achieved_occupancy")
_LIMITS = {metric.removeprefix("occupancy_limit_"): text for metric, text in preference.LIMITERS.items()}


def listed(table: pd.DataFrame, target: str) -> pd.DataFrame:
    """``occupancies`` for the table: the launches that represent the kernel in other views come first."""
    workload, direction = largest_problem(table)
    rows = with_first(occupancies(table, target), {"impl": "triton", "workload": workload, "pass": direction})
    return rows.assign(launch_text=rows["function"].where(rows["function"] != "", "–")).reset_index(drop=True)


def occupancies(table: pd.DataFrame, target: str) -> pd.DataFrame:
    """``resources`` with the theoretical occupancy on ``target``, its limiter as text, and the blocks that an SM holds."""
    rows = resources(table)
    found = [_occupancy(row, target) for row in rows.to_dict("records")]
    limits = sorted({name for o in found for name in o.limits}, key=list(_LIMITS).index)
    return rows.assign(
        occupancy=[o.ratio for o in found],
        limiter=[limiter_text(o.limiters) for o in found],
        active_blocks=[o.blocks for o in found],
        **{f"limit_{name}": [o.limits.get(name, np.nan) for o in found] for name in limits},
    )


def resources(table: pd.DataFrame) -> pd.DataFrame:
    """One row a launch, one column a resource (the median over samples), from the source that ``preference`` chooses."""
    rows = table[table["metric"].isin(_METRICS) & table["launch"].notna()]
    index = [*CASE_COLUMNS, "source", "launch", "function"]
    if rows.empty:
        return pd.DataFrame(columns=[*index, *_METRICS])
    medians = rows.groupby([*index, "metric"], sort=False)["value"].median()
    launches = medians.unstack("metric").reindex(columns=list(_METRICS)).reset_index()
    known = launches.dropna(subset=["registers", "block_threads"])
    told = {tuple(case.key[name] for name in CASE_COLUMNS): preference.source_of(case) for case in gather(table)}
    known = known[known["source"] == [told[key] for key in known[CASE_COLUMNS].itertuples(index=False, name=None)]]
    # A case's launches in launch order.
    place = known.groupby(CASE_COLUMNS, sort=False).ngroup()
    return known.iloc[np.lexsort((known["launch"].astype("int64"), place))].reset_index(drop=True)


def limiter_text(limiters: Iterable[str]) -> str:
    """``registers, warps and barriers``."""
    *others, last = [_LIMITS.get(name, name) for name in limiters]
    return f"{', '.join(others)} and {last}" if others else last


def curve(row: Mapping[str, Any], target: str, resource: str) -> pd.DataFrame:
    """Occupancy of the launch ``row`` against its amount of ``resource``, with its other resources unchanged.

    Columns are ``value``, ``occupancy`` and ``limiter``; rows are the steps, and both ends.
    """
    chip = model.limits(target)
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


def point(row: Mapping[str, Any], resource: str, measured: bool = True) -> dict[str, Any]:
    """The point of the launch ``row`` on its ``curve``, with the achieved occupancy if it was ``measured`` on that GPU."""
    value = row["block_threads"] / 32 if resource == "warps" else row[resource]
    return {**row, "value": value, "achieved": row["achieved_occupancy"] if measured else None}


def sentence(launch: Mapping[str, Any], target: str) -> Sentence:
    """The sentence on the launch, a row of ``occupancies``, on the architecture ``target``."""
    case = f"{launch['impl']}, {launch['workload']}, {launch['pass']}"
    blocks = f"{several(round(launch['active_blocks']), 'block')} of {launch['block_threads']:.0f} threads"
    return Sentence(
        f"{write(launch['occupancy'], 'ratio')} occupancy, limited by {launch['limiter']}",
        f"An SM of {target} holds {blocks} of {launch['function'] or launch['impl']} ({case}). {_READING}",
    )


def _occupancy(row: Mapping[str, Any], target: str, **changed: int) -> model.Occupancy:
    def value(name: str, otherwise: int) -> int:
        return otherwise if pd.isna(row.get(name)) else int(row[name])

    asked = {
        "registers": value("registers", 0), "shared_memory": value("shared_memory", 0),
        "threads": value("block_threads", 32), "barriers": value("barriers", 1), **changed,
    }  # fmt: skip
    # The measured carve-out holds for the launch's own shared memory size only.
    configured = value("shared_memory_configured", 0) or None
    return model.blocks(target, **asked, configured=None if changed else configured)
