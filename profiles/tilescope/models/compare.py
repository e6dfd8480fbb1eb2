"""Comparison of two runs, or of two implementations. Pure: runs -> frame.

A speedup is only given where both sides were measured with the same settings, by the same clock.
Its interval is the percentile bootstrap of the ratio of medians (Efron and Tibshirani, "An Introduction to the
Bootstrap", 1993) over the repetitions that the runs keep. An interval that contains 1 shows no significant difference.
Repetitions of one run share its clocks and temperature, so the interval leaves out variation between runs (``doubts``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tilescope.models import renaming, summary
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues, gather

#: Settings that do not affect how times were measured. ``assumed`` describes a GPU that is absent, so it affects predictions
#: only.
_INDIFFERENT = frozenset({
    "assumed", "collectors", "file", "file_sha256", "repetitions", "interpreter_limit", "check_limit", "check_first",
    "conditions", "measure_ceilings", "renew_ceilings", "lanes_slowdown", "one_pass", "script", "timeout"})  # fmt: skip
_PROBLEM = ["kernel", "pass", "workload"]
#: What is compared beside the time, from ``summary.summarise``.
COMPARED = ("bytes", "registers", "shared_memory", "spill_bytes", "theoretical_occupancy", "achieved_occupancy")
#: Verdicts where a side has a fault (``models.faults``).
WRONG, BASELINE_WRONG = "wrong", "baseline wrong"
_DRAWS, _CONFIDENCE = 2000, 0.95
#: The largest difference of two processes' times of equal code, as a share.
DRIFT = 0.01

COLUMNS = {
    **dict.fromkeys([*_PROBLEM, "impl", "config", "baseline_kernel", "baseline_impl", "baseline_config"], "str"),
    **dict.fromkeys(["time", "baseline_time", "speedup", "speedup_low", "speedup_high"], "float64"),
    **dict.fromkeys(["verdict", "fault"], "str"),
    **{name: "float64" for column in COMPARED for name in (column, f"baseline_{column}")},
    "source": "str",
    "run": "str",
    "baseline_run": "str",
}


class CompareError(ValueError):
    """Two sides that have nothing in common. The message is one line."""


@dataclass(frozen=True)
class Side:
    """A run, one implementation of it, or one kernel. An empty ``impl`` is every implementation, each compared with its own."""

    loaded: LoadedRun
    impl: str = ""
    kernel: str = ""

    @property
    def name(self) -> str:
        """``20261120-233602-6d62:triton`` as people write it."""
        return ":".join(filter(None, [self.loaded.run.id, self.kernel or self.impl]))


def obstacles(baseline: Side, candidate: Side) -> list[str]:
    """Reasons why times of the two sides cannot be compared: sides that were not measured or settings that differ, a line each."""
    before, after = baseline.loaded.run, candidate.loaded.run
    predicted = {run.id: run.device.where for run in (before, after) if not run.device.measured}
    found = [f"{name} was {where}, not measured" for name, where in predicted.items()]
    # Each device has its own target.
    of_device = {"target"} if devices(baseline, candidate) else set()
    for name in sorted({*before.settings, *after.settings} - _INDIFFERENT - of_device):
        one, two = before.settings.get(name, "not set"), after.settings.get(name, "not set")
        if one != two:
            found.append(f"measured with different settings: {name} is {one} and {two}")
    return found


def devices(baseline: Side, candidate: Side) -> tuple[str, str] | None:
    """The devices on which the two sides were measured, where they differ."""
    before, after = (side.loaded.run.device for side in (baseline, candidate))
    differ = (before.name, before.target) != (after.name, after.target)
    return (before.name, after.name) if differ and before.measured and after.measured else None


def changes(baseline: Side, candidate: Side) -> list[str]:
    """Other differences between the two runs that may explain their times: device, versions and sources, a line each."""
    before, after = baseline.loaded.run, candidate.loaded.run
    found = [f"GPU {' → '.join(apart)}"] if (apart := devices(baseline, candidate)) else []
    for name in dict.fromkeys([*before.versions, *after.versions]):
        one, two = before.versions.get(name, "absent"), after.versions.get(name, "absent")
        if one != two:
            found.append(f"{name} {one} → {two}")
    for kernel in before.kernels:
        digests = [str(run.kernels.get(kernel, {}).get("sha256", "")) for run in (before, after)]
        if kernel in after.kernels and all(digests) and digests[0] != digests[1]:
            found.append(f"the source of {kernel} changed ({digests[0][:8]} → {digests[1][:8]})")
    # A plus marks changes that were not committed.
    one, two = (run.git_revision[:12] + "+" * run.git_revision.endswith("+") for run in (before, after))
    if one and two and one != two:
        found.append(f"revision {one} → {two}")
    return found


def compare(baseline: Side, candidate: Side, kernel: str = "") -> pd.DataFrame:
    """One row for each case that both sides have, worst first: wrong ones, the certainly slower ones, then the others.

    Columns without a prefix are the candidate's. ``speedup`` is the baseline's GPU time over the candidate's (above 1: the
    candidate is faster), ``speedup_low`` and ``speedup_high`` its 95 % interval, ``source`` the clock. ``verdict`` on the
    candidate is ``wrong``, ``slower``, ``faster``, ``alike`` (no significant difference), ``baseline wrong``, ``not timed``, or
    ``not comparable`` (see ``obstacles``). A wrong side has a ``fault`` and no speedup. Absent values are NaN. ``kernel`` empty
    is every kernel.

    Raises CompareError where the sides share no case.
    """
    called = renaming.renamed(baseline.loaded, candidate.loaded)
    if candidate.kernel and baseline.kernel:
        called = {candidate.kernel: baseline.kernel}
    before, after = _cases(baseline, kernel, {}), _cases(candidate, kernel, called)
    keys = [key for key in after if key in before]
    if not keys:
        why = f"{baseline.name} and {candidate.name} have no case in common: they share no kernel and workload"
        cure = ": name a kernel of each, as RUN:KERNEL, to compare two with the same workloads"
        raise CompareError(why if candidate.kernel else why + cure)
    fair = not obstacles(baseline, candidate)
    rows = [_row((baseline, *before[key]), (candidate, *after[key]), fair) for key in keys]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    frame["run"], frame["baseline_run"] = candidate.loaded.run.id, baseline.loaded.run.id
    frame["rank"] = frame["verdict"].map({WRONG: 0, "slower": 1}).fillna(2)
    return frame.sort_values(["rank", "speedup"], kind="stable", ignore_index=True).drop(columns="rank")


def _cases(
    side: Side, kernel: str, called: Mapping[str, str]
) -> dict[tuple[str, ...], tuple[CaseValues, dict[str, Any]]]:
    """The side's cases and their summary rows, by the columns that the two sides must share; ``called`` are names in the other."""
    table = side.loaded.table
    for wanted in filter(None, (kernel, side.kernel)):
        table = table[(table["kernel"] == wanted) | table["kernel"].map(called).eq(wanted)]
    named = [*_PROBLEM, "config"] if side.impl else [*_PROBLEM, "impl", "config"]
    if side.impl:
        table = table[(table["impl"] == side.impl) & (table["config"] == "")]
    facts = gather(table)
    rows = summary.of_run(side.loaded, table).to_dict("records")
    keys = (tuple(called.get(case.key[name], case.key[name]) for name in named) for case in facts)
    return {key: (case, {str(k): v for k, v in row.items()}) for key, case, row in zip(keys, facts, rows, strict=True)}


def _row(
    baseline: tuple[Side, CaseValues, dict[str, Any]], candidate: tuple[Side, CaseValues, dict[str, Any]], fair: bool
) -> dict[str, Any]:
    (_, _, before), (_, _, after) = baseline, candidate
    row = {"fault": "", "source": "", **{name: after[name] for name in _PROBLEM}}
    for column in ("kernel", "impl", "config", *COMPARED):
        row[column], row[f"baseline_{column}"] = after[column], before[column]
    for facts, verdict in ((after, WRONG), (before, BASELINE_WRONG)):
        if facts["fault"]:
            return {**row, "verdict": verdict, "fault": facts["why"]}
    sides = (baseline, candidate)
    source = next((s for s in GPU_TIME_SOURCES if all(case.totals.get(("gpu_time", s)) for _, case, _ in sides)), "")
    if not source:
        return {**row, "verdict": "not timed"}
    old, new = (repetitions(case, ("gpu_time", source), side.loaded) for side, case, _ in sides)
    row |= {"time": float(np.median(new)), "baseline_time": float(np.median(old)), "source": source}
    if not fair:
        return {**row, "verdict": "not comparable"}
    low, high = interval(baseline=old, candidate=new)
    verdict = "slower" if high < 1 else "faster" if low > 1 else "alike"
    speedup = row["baseline_time"] / row["time"] if row["time"] else math.nan
    return {**row, "speedup": speedup, "speedup_low": low, "speedup_high": high, "verdict": verdict}


def interval(*, baseline: np.ndarray, candidate: np.ndarray) -> tuple[float, float]:
    """The 95 % bootstrap interval of the speedup ``median(baseline) / median(candidate)``.

    It is unbounded where one side has a single repetition, or the candidate's time is below the clock's tick.
    """
    if min(baseline.size, candidate.size) < 2 or not candidate.min() > 0:
        return (0.0, math.inf)
    numbers = np.random.default_rng(0)
    new, old = (
        np.median(side[numbers.integers(0, side.size, (_DRAWS, side.size))], axis=1) for side in (candidate, baseline)
    )
    tail = (1 - _CONFIDENCE) / 2
    low, high = np.quantile(old / new, [tail, 1 - tail])
    return (float(low), float(high))


def side(text: str, find: Any, open_run: Any) -> Side:
    """A side as people write it: a run, ``RUN:IMPLEMENTATION`` or ``RUN:KERNEL``. ``find`` and ``open_run`` are those of ``store``.

    Raises StoreError for a run that cannot be found, CompareError for an implementation or a kernel that it lacks.
    """
    name, _, part = text.partition(":")
    loaded = open_run(find(name))
    impls, kernels = (sorted(set(loaded.table[column])) for column in ("impl", "kernel"))
    if part and part not in (*impls, *kernels):
        known = f"{', '.join(impls)}, or a kernel: {', '.join(kernels)}"
        raise CompareError(f"{loaded.run.id} has no implementation {part!r}: use one of {known}")
    return Side(loaded, part if part in impls else "", "" if part in impls else part)


def repetitions(case: CaseValues, clock: tuple[str, str], loaded: LoadedRun) -> np.ndarray:
    """The times of the case by that metric and source, in seconds, one for each repetition.

    Every launch in another tool's file is a repetition: a warm-up does not count more than the others.
    """
    launched = [value for launch, value in case.values.get(clock, {}).items() if launch is not None]
    return np.array(launched if launched and of_file(loaded) else case.totals.get(clock, []))


def of_file(loaded: LoadedRun) -> bool:
    return "file_sha256" in loaded.run.settings


def doubts(baseline: LoadedRun, candidate: LoadedRun, rows: pd.DataFrame) -> list[str]:
    """Reasons to doubt differences of ``compare.compare``'s ``rows``, a line each: runs of different processes drift apart."""
    different = rows[rows["verdict"].isin(["slower", "faster"])]
    if baseline.run.id == candidate.run.id or different.empty:
        return []
    small = int(different["speedup"].between(1 - DRIFT, 1 + DRIFT).sum())
    return [
        f"the runs are from different processes, whose times of equal code differ by up to {DRIFT * 100:g} %: "
        f"{small} of {units.several(len(different), 'difference')} {'is' if small == 1 else 'are'} within that"
    ]
