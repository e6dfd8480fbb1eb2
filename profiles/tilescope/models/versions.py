"""Two versions of the same code: which launches belong together, and what changed. Pure: runs -> values."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from tilescope.captures import SPEC_FILE
from tilescope.models import advice, compare, summary
from tilescope.models.advice import Finding
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case_table import gather

#: What two versions are compared by: the summary's column, or a metric of the case, its label and its unit.
COMPARED = (
    ("gpu_time", "GPU time", "second"), ("interval", "interval", "second"), ("dram", "HBM bytes", "byte"),
    ("unique", "distinct bytes", "byte"), ("requested", "requested bytes", "byte"), ("sampled", "requested bytes, sampled", "byte"),
    ("registers", "registers", "count"), ("spill_bytes", "spilled bytes", "byte"), ("shared_memory", "shared memory", "byte"),
    ("theoretical_occupancy", "occupancy", "ratio"), ("sector_efficiency_read", "loaded sectors used", "ratio"),
    ("sector_efficiency_written", "stored sectors used", "ratio"), ("relative_error", "relative error", "ratio"),
)  # fmt: skip
#: Those of which more is better.
_MORE = frozenset({"theoretical_occupancy", "sector_efficiency_read", "sector_efficiency_written"})
#: The utilization of a GPU that others use, and the relative change of a clock that times are not compared across.
_BUSY, _CLOCK = 0.1, 0.03
#: The growth from which a change is a factor.
_FACTOR = 9.0
_PROBLEM = ("impl", "pass", "workload")


@dataclass(frozen=True)
class Case:
    """A case of one version: its place in the run, its names, its values by the keys of ``COMPARED``, and its findings.

    ``spread`` is the 5 % and the 95 % quantile of the GPU time, ``time_source`` the collector that timed it. An absent value is
    missing.
    """

    names: Mapping[str, str]
    values: Mapping[str, float]
    findings: tuple[Finding, ...]
    spread: tuple[float, float] | None = None
    #: The clock of the multiprocessors when it was timed, in hertz.
    clock: float | None = None
    time_source: str = ""

    @property
    def kernel(self) -> str:
        return self.names["kernel"]

    @property
    def title(self) -> str:
        return f"{self.kernel} {self.names['workload']}"


@dataclass(frozen=True)
class Pair:
    """Two cases that belong together. One side is None where a case came or went.

    ``how`` they were paired: by ``name``, by ``place`` among the launches, by ``signature`` (shapes and dtypes), or by ``hand``.
    """

    baseline: Case | None
    candidate: Case | None
    how: str = ""

    @property
    def changes(self) -> list[Change]:
        """The values that either side has. A GPU time by another collector than the candidate's is none to compare with."""
        before, after = (dict(side.values) if side else {} for side in (self.baseline, self.candidate))
        clocks = {side.time_source for side in (self.baseline, self.candidate) if side and "gpu_time" in side.values}
        if len(clocks) > 1:
            del before["gpu_time"]
        spreads = [side.spread for side in (self.baseline, self.candidate) if side and side.spread]
        overlap = len(spreads) == 2 and spreads[0][0] <= spreads[1][1] and spreads[1][0] <= spreads[0][1]
        return [
            Change(name, label, unit, before.get(name), after.get(name), overlap and name == "gpu_time")
            for name, label, unit in COMPARED
            if name in before or name in after
        ]

    @property
    def came(self) -> list[Finding]:
        return _without(self.candidate, self.baseline)

    @property
    def went(self) -> list[Finding]:
        return _without(self.baseline, self.candidate)

    @property
    def stayed(self) -> list[Finding]:
        """The candidate's findings that the baseline has with other values."""
        before = {finding.rule: _unplaced(finding) for finding in self.baseline.findings} if self.baseline else {}
        now = self.candidate.findings if self.candidate else ()
        return [finding for finding in now if before.get(finding.rule, _unplaced(finding)) != _unplaced(finding)]


@dataclass(frozen=True)
class Change:
    """One metric in both versions; None where it is absent. ``noise``: the spreads of the repetitions overlap."""

    metric: str
    label: str
    unit: str
    baseline: float | None
    candidate: float | None
    noise: bool = False

    @property
    def relative(self) -> float | None:
        """The relative change; None where a side is absent, or the baseline is 0."""
        if self.baseline is None or self.candidate is None or not self.baseline:
            return None
        return self.candidate / self.baseline - 1

    @property
    def better(self) -> bool | None:
        """Whether the change is an improvement; None where there is none, where a side is absent, and for noise."""
        if self.noise or self.baseline is None or self.candidate is None or self.baseline == self.candidate:
            return None
        return (self.candidate > self.baseline) == (self.metric in _MORE)

    def texts(self) -> tuple[str, str, str]:
        """Baseline, candidate and change, as people read them."""
        sides = ["–" if side is None else units.text(side, self.unit) for side in (self.baseline, self.candidate)]
        if self.baseline == self.candidate:
            return sides[0], sides[1], ""
        said = "" if self.relative is None else f"{self.relative * 100:+.1f} %"
        if said and self.metric in _MORE:
            said = f"{((self.candidate or 0) - (self.baseline or 0)) * 100:+.3g} points"
        elif self.relative and self.relative >= _FACTOR:
            said = units.times(1 + self.relative)
        return sides[0], sides[1], f"{said}, within noise" if self.noise else said


def cases(loaded: LoadedRun) -> list[Case]:
    """The cases of a version, in their order; those of a kernel without any row come last, by its faults.

    The GPU time of a case of another tool's file is the median of its launches, as in ``compare``.
    """
    table = loaded.table[loaded.table["config"] == ""]
    rows = summary.of_run(loaded, table).to_dict("records")
    found = advice.of_run(loaded, table)
    known = []
    for row, case in zip(rows, gather(table), strict=True):
        values = {name: _value(row, name) for name, _, _ in COMPARED}
        for name in ("sector_efficiency_read", "sector_efficiency_written"):
            total = case.total(name)
            values[name] = total.value if total else math.nan
        if not math.isnan(values["gpu_time"]):
            del values["interval"]  # the CPU's part of it differs between runs
        spread = [row["gpu_time_low"], row["gpu_time_high"]]
        if compare.of_file(loaded) and not math.isnan(spread[0]):
            times = compare.repetitions(case, ("gpu_time", row["time_source"]), loaded)
            values["gpu_time"], *spread = np.quantile(times, [0.5, 0.05, 0.95]).tolist()
        known.append(Case(
            {name: str(row[name]) for name in ("kernel", *_PROBLEM)},
            {name: value for name, value in values.items() if not math.isnan(value)},
            tuple(one for one in found if one.problem == tuple(row[name] for name in ("kernel", *_PROBLEM))),
            None if math.isnan(spread[0]) else (spread[0], spread[1]),
            clock.value if (clock := case.at("sm_clock", None, "events")) else None,
            str(row["time_source"]),
        ))  # fmt: skip
    names = {case.kernel for case in known}
    of_rows = ("kernel", *_PROBLEM)
    return known + [
        Case(dict(zip(of_rows, finding.problem, strict=True)), {}, (finding,))
        for finding in found
        if finding.kernel not in names
    ]


def _value(row: Mapping[Any, Any], name: str) -> float:
    if name in ("dram", "unique", "requested", "sampled"):
        return float(row[f"{name}_bytes_read"] + row[f"{name}_bytes_written"])
    return float(row.get(name, math.nan))


def pairs(
    baseline: Sequence[Case], candidate: Sequence[Case], by_hand: Mapping[int, int | None] | None = None
) -> list[Pair]:
    """The cases that belong together: those that a user paired, then those of one name and problem, those at the same place,
    those of one signature, and the first of what is left.

    ``by_hand`` has places in ``baseline`` by places in ``candidate``; None leaves a case alone.
    """
    left, found = dict(enumerate(baseline)), dict[int, Pair]()

    def join(how: str, belongs: Callable[[int, Case, int, Case], bool]) -> None:
        for place, case in enumerate(candidate):
            if place not in found:
                other = next((number for number, one in left.items() if belongs(number, one, place, case)), None)
                if other is not None:
                    found[place] = Pair(left.pop(other), case, how)

    chosen = by_hand or {}
    join("hand", lambda number, _, place, __: chosen.get(place) == number)
    found |= {place: Pair(None, case, "hand") for place, case in enumerate(candidate) if chosen.get(place, 0) is None}
    join("name", lambda _, one, __, case: one.names == case.names)
    join("place", lambda number, _, place, __: number == place)
    join("signature", lambda _, one, __, case: one.names["workload"] == case.names["workload"])
    join("place", lambda *_: True)
    return [*(found[n] if n in found else Pair(None, case) for n, case in enumerate(candidate)),
            *(Pair(other, None) for other in left.values())]  # fmt: skip


def _unplaced(finding: Finding) -> str:
    """The title without a line, which moves when lines are added above it."""
    return re.sub(r", [a-z ]+ at line \d+", "", finding.title)


def _without(side: Case | None, other: Case | None) -> list[Finding]:
    known = {finding.rule for finding in other.findings} if other else set()
    return [finding for finding in side.findings if finding.rule not in known] if side else []


def exact(cases: Iterable[Case], counted: Iterable[Case]) -> list[Case]:
    """The cases with the exact counts of ``counted`` in place of sampled ones, and with the faults that those found."""
    known = {tuple(case.names.values()): case for case in counted}
    found = []
    for case in cases:
        other = known.get(tuple(case.names.values()))
        if other and "sampled" in case.values and "sampled" not in other.values:
            values = {**{name: value for name, value in case.values.items() if name != "sampled"}, **other.values}
            rules = {finding.rule for finding in case.findings}
            faults = [finding for finding in other.findings if finding.fault and finding.rule not in rules]
            case = replace(case, values=values, findings=(*case.findings, *faults))  # noqa: PLW2901
        found.append(case)
    return found


def conditions(busy: float, before: float, pairs: Iterable[Pair], last: str) -> list[str]:
    """How the conditions of a version's times differ from those of the version ``last``, a line each.

    ``busy`` and ``before`` are what others used of the GPU (``hardware.device.busy``) when each began: a process that only waits
    changes no time. Empty where nothing was timed.
    """
    timed = [(pair.baseline, pair.candidate) for pair in pairs if pair.candidate and pair.candidate.spread]
    said = []
    if timed and busy > _BUSY:
        said.append(f"timed while others used the GPU, which was {busy:.0%} busy")
    elif timed and before > _BUSY:
        said.append(f"{last} was timed while others used the GPU")
    for one, other in timed:
        if one and other and one.clock and other.clock and abs(other.clock / one.clock - 1) > _CLOCK:
            clocks = (units.text(clock, "hertz") for clock in (other.clock, one.clock))
            said.append(f"{other.title}: timed at {next(clocks)}, {last} at {next(clocks)}")
    return said


def of_kernels(baseline: LoadedRun, candidate: LoadedRun, rows: pd.DataFrame) -> Iterator[str]:
    """``difference`` of the sources of each pair of kernels in the ``rows`` of ``compare.compare``.

    Files of other names are paired where each side has one of them, and shown once for all kernels in them. Declarations that
    Tilescope wrote are left out.
    """
    shown = list[tuple[dict[str, str], dict[str, str]]]()
    for kernel, before in rows[["kernel", "baseline_kernel"]].drop_duplicates().itertuples(index=False, name=None):
        old, new = (
            {name: text for name, text in side.sources.get(of, {}).items() if name != SPEC_FILE}
            for side, of in ((baseline, before), (candidate, kernel))
        )
        alone = [[name for name in one if name not in other] for one, other in ((old, new), (new, old))]
        if list(map(len, alone)) == [1, 1]:
            old[alone[1][0]] = old.pop(alone[0][0])
        if old and new and (old, new) not in shown:
            shown.append((old, new))
            yield from difference(old, new)


def difference(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[str]:
    """The lines of a unified diff of source files by name."""
    for name in dict.fromkeys([*baseline, *candidate]):
        before, after = baseline.get(name, ""), candidate.get(name, "")
        if before != after:
            yield from difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
