"""Comparison of two runs, or of two implementations. Pure: runs -> frame.

A time ratio is only given where both sides were measured on the same device, with the same settings, by the same clock.
Its interval is the percentile bootstrap of the ratio of medians (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993) over the repetitions that the runs keep. An interval that contains 1 shows no significant difference.
Repetitions of one run share its clocks and temperature, so the interval leaves out variation between runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tilescope.models import summary
from tilescope.runs.store import LoadedRun
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues, gather

#: Settings that do not affect how times were measured. ``assumed`` describes a GPU that is absent, so it affects predictions
#: only.
_INDIFFERENT = frozenset({
    "assumed", "collectors", "file", "file_sha256", "repetitions", "interpreter_limit", "check_limit", "check_first",
    "conditions", "measure_ceilings", "renew_ceilings", "timeout"})  # fmt: skip
_PROBLEM = ["kernel", "pass", "workload"]
#: What is compared beside the time, from ``summary.summarise``.
COMPARED = ("bytes", "registers", "shared_memory", "spill_bytes", "theoretical_occupancy", "achieved_occupancy")
_DRAWS, _CONFIDENCE = 2000, 0.95

COLUMNS = {
    **dict.fromkeys([*_PROBLEM, "impl", "config", "other_impl", "other_config"], "str"),
    **dict.fromkeys(["time", "other_time", "ratio", "ratio_low", "ratio_high"], "float64"),
    "verdict": "str",
    **{name: "float64" for column in COMPARED for name in (column, f"other_{column}")},
    "source": "str",
    "run": "str",
    "other_run": "str",
}


class CompareError(ValueError):
    """Two sides that have nothing in common. The message is one line."""


@dataclass(frozen=True)
class Side:
    """A run, or one implementation of it. An empty ``impl`` is every implementation, each compared with its own."""

    loaded: LoadedRun
    impl: str = ""

    @property
    def name(self) -> str:
        """``20261120-233602-6d62:triton`` as people write it."""
        return self.loaded.run.id + (f":{self.impl}" if self.impl else "")


def obstacles(base: Side, other: Side) -> list[str]:
    """Reasons why times of the two sides cannot be compared: devices or settings that differ, a line each."""
    ours, theirs = base.loaded.run, other.loaded.run
    found = []
    if not (ours.device.measured and theirs.device.measured):
        found.append("one of the runs was not measured: its figures are predictions")
    elif (ours.device.name, ours.device.target) != (theirs.device.name, theirs.device.target):
        found.append(f"measured on different devices: {ours.device.name} and {theirs.device.name}")
    for name in sorted({*ours.settings, *theirs.settings} - _INDIFFERENT):
        one, two = ours.settings.get(name, "not set"), theirs.settings.get(name, "not set")
        if one != two:
            found.append(f"measured with different settings: {name} is {one} and {two}")
    return found


def changes(base: Side, other: Side) -> list[str]:
    """Other differences between the two runs that may explain their times: versions and sources, a line each."""
    ours, theirs = base.loaded.run, other.loaded.run
    found = []
    for name in dict.fromkeys([*ours.versions, *theirs.versions]):
        one, two = ours.versions.get(name, "absent"), theirs.versions.get(name, "absent")
        if one != two:
            found.append(f"{name} {one} → {two}")
    for kernel in ours.kernels:
        digests = [str(run.kernels.get(kernel, {}).get("sha256", "")) for run in (ours, theirs)]
        if kernel in theirs.kernels and all(digests) and digests[0] != digests[1]:
            found.append(f"the source of {kernel} changed ({digests[0][:8]} → {digests[1][:8]})")
    if ours.git_revision != theirs.git_revision and ours.git_revision and theirs.git_revision:
        found.append(f"revision {ours.git_revision[:12]} → {theirs.git_revision[:12]}")
    return found


def compare(base: Side, other: Side, kernel: str = "") -> pd.DataFrame:
    """One row for each case that both sides have, worst first: those slower for certain, by how much, then the others.

    ``ratio`` is the other's GPU time over the base's (above 1: the other is slower), ``ratio_low`` and ``ratio_high`` its
    95 % interval, ``source`` the clock. ``verdict`` is ``slower``, ``faster``, ``alike`` (no difference can be told),
    ``not timed``, or ``not comparable`` (see ``obstacles``). Absent values are NaN. ``kernel`` empty is every kernel.

    Raises CompareError where the sides share no case.
    """
    sides = [_cases(side, kernel) for side in (base, other)]
    keys = [key for key in sides[0] if key in sides[1]]
    if not keys:
        raise CompareError(f"{base.name} and {other.name} have no case in common: they share no kernel and workload")
    fair = not obstacles(base, other)
    rows = [_row(*sides[0][key], *sides[1][key], fair) for key in keys]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    frame["run"], frame["other_run"] = base.loaded.run.id, other.loaded.run.id
    order = frame.assign(certain=frame["verdict"].eq("slower"), by=frame["ratio"].fillna(-math.inf))
    places = order.sort_values(["certain", "by"], ascending=False, kind="stable").index
    return frame.loc[places].reset_index(drop=True)


def _cases(side: Side, kernel: str) -> dict[tuple[str, ...], tuple[CaseValues, dict[str, Any]]]:
    """The side's cases and their summary rows, by the columns that the two sides must share."""
    table = side.loaded.table
    table = table[(table["kernel"] == kernel) | (kernel == "")]
    named = [*_PROBLEM, "config"] if side.impl else [*_PROBLEM, "impl", "config"]
    if side.impl:
        table = table[(table["impl"] == side.impl) & (table["config"] == "")]
    facts = gather(table)
    rows = summary.summarise(table, side.loaded.run.device, side.loaded.run.kernels).to_dict("records")
    return {
        tuple(case.key[name] for name in named): (case, {str(k): v for k, v in row.items()})
        for case, row in zip(facts, rows, strict=True)
    }


def _row(
    mine: CaseValues, ours: dict[str, Any], others: CaseValues, theirs: dict[str, Any], fair: bool
) -> dict[str, Any]:  # fmt: skip
    row = {name: ours[name] for name in (*_PROBLEM, "impl", "config")}
    row |= {"other_impl": theirs["impl"], "other_config": theirs["config"]}
    for column in COMPARED:
        row[column], row[f"other_{column}"] = ours[column], theirs[column]
    source = next((s for s in GPU_TIME_SOURCES if all(case.totals.get(("gpu_time", s)) for case in (mine, others))), "")
    if not source:
        return {**row, "verdict": "not timed"}
    base, other = (np.array(case.totals["gpu_time", source]) for case in (mine, others))
    row |= {"time": float(np.median(base)), "other_time": float(np.median(other)), "source": source}
    if not fair:
        return {**row, "verdict": "not comparable"}
    low, high = interval(base, other)
    verdict = "slower" if low > 1 else "faster" if high < 1 else "alike"
    return {**row, "ratio": row["other_time"] / row["time"], "ratio_low": low, "ratio_high": high, "verdict": verdict}


def interval(base: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of ``median(other) / median(base)``; unbounded where one side has a single repetition."""
    if min(base.size, other.size) < 2:
        return (0.0, math.inf)
    numbers = np.random.default_rng(0)
    medians = [
        np.median(side[numbers.integers(0, side.size, (_DRAWS, side.size))], axis=1) for side in (base, other)
    ]  # fmt: skip
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(medians[1] / medians[0], [tail, 1 - tail])
    return (float(low), float(high))


def side(text: str, find: Any, open_run: Any) -> Side:
    """A side as people write it: a run, or ``RUN:IMPLEMENTATION``. ``find`` and ``open_run`` are those of ``store``.

    Raises StoreError for a run that cannot be found, CompareError for an implementation that it lacks.
    """
    name, _, impl = text.partition(":")
    loaded = open_run(find(name))
    known = sorted(set(loaded.table["impl"]))
    if impl and impl not in known:
        raise CompareError(f"{loaded.run.id} has no implementation {impl!r}: use one of {', '.join(known)}")
    return Side(loaded, impl)


def worst(rows: Sequence[pd.DataFrame]) -> float:
    """The largest certain slowdown: the lower end of its ratio's interval. 0 where nothing is slower for certain."""
    lows = [frame.loc[frame["verdict"] == "slower", "ratio_low"].max() for frame in rows]
    return max((float(low) for low in lows if not math.isnan(low)), default=0.0)
