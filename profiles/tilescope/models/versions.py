"""Two versions of the same code: which cases belong together, and what changed. Pure: runs -> values."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilescope.models import advice, summary
from tilescope.models.advice import Finding
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case_table import gather

#: What two versions are compared by: the summary's column, or a metric of the case, its label and its unit.
COMPARED = (
    ("gpu_time", "GPU time", "second"),
    ("interval", "interval", "second"),
    ("dram", "HBM bytes", "byte"),
    ("unique", "distinct bytes", "byte"),
    ("requested", "requested bytes", "byte"),
    ("sampled", "requested bytes, sampled", "byte"),
    ("registers", "registers", "count"),
    ("spill_bytes", "spilled bytes", "byte"),
    ("shared_memory", "shared memory", "byte"),
    ("theoretical_occupancy", "occupancy", "ratio"),
    ("sector_efficiency_read", "used part of loaded sectors", "ratio"),
    ("sector_efficiency_written", "used part of stored sectors", "ratio"),
    ("relative_error", "relative error", "ratio"),
)
_PROBLEM = ("impl", "pass", "workload")


@dataclass(frozen=True)
class Case:
    """A case of one version: its place in the run, its names, its values by the keys of ``COMPARED``, and its findings.

    ``spread`` is the 5 % and the 95 % quantile of the GPU time. An absent value is missing.
    """

    names: Mapping[str, str]
    values: Mapping[str, float]
    findings: tuple[Finding, ...]
    spread: tuple[float, float] | None = None

    @property
    def kernel(self) -> str:
        return self.names["kernel"]

    @property
    def title(self) -> str:
        """``softmax 64x64-fp32``."""
        return f"{self.kernel} {self.names['workload']}"


@dataclass(frozen=True)
class Pair:
    """Two cases that belong together, by their ``name`` or by their ``place``. One side is None where a case came or went."""

    baseline: Case | None
    candidate: Case | None
    how: str = ""


@dataclass(frozen=True)
class Change:
    """One value in both versions; None where it is absent. ``noise``: the spreads of the repetitions overlap."""

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

    def texts(self) -> tuple[str, str, str]:
        """Baseline, candidate and change, as people read them."""
        sides = ["–" if side is None else units.text(side, self.unit) for side in (self.baseline, self.candidate)]
        if self.baseline == self.candidate:
            return sides[0], sides[1], ""
        said = "" if self.relative is None else f"{self.relative * 100:+.1f} %"
        return sides[0], sides[1], f"{said}, within noise" if self.noise else said


def cases(loaded: LoadedRun) -> list[Case]:
    """The cases of a version, in their order; those of a kernel without any row come last, by its faults."""
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
        spread = row["gpu_time_low"], row["gpu_time_high"]
        known.append(Case(
            {name: str(row[name]) for name in ("kernel", *_PROBLEM)},
            {name: value for name, value in values.items() if not math.isnan(value)},
            tuple(finding for finding in found if _concerns(finding, row)),
            None if math.isnan(spread[0]) else spread,
        ))  # fmt: skip
    names = {case.kernel for case in known}
    for finding in found:
        if finding.kernel not in names:
            of = {
                "kernel": finding.kernel,
                "impl": finding.impl,
                "pass": finding.direction,
                "workload": finding.workload,
            }
            known.append(Case(of, {}, (finding,)))
    return known


def _value(row: Mapping[Any, Any], name: str) -> float:
    if name in ("dram", "unique", "requested", "sampled"):
        return float(row[f"{name}_bytes_read"] + row[f"{name}_bytes_written"])
    return float(row.get(name, math.nan))


def _concerns(finding: Finding, row: Mapping[Any, Any]) -> bool:
    of = (finding.kernel, finding.impl, finding.direction, finding.workload)
    return of == tuple(row[name] for name in ("kernel", *_PROBLEM))


def pairs(baseline: list[Case], candidate: list[Case]) -> list[Pair]:
    """The cases that belong together: those of one name and problem, then those at the same place among the rest."""
    left, found = list(baseline), dict[int, Pair]()
    for place, case in enumerate(candidate):
        same = next((other for other in left if other.names == case.names), None)
        if same:
            left.remove(same)
            found[place] = Pair(same, case, "name")
    for place, case in enumerate(candidate):
        if place not in found:
            alike = [other for other in left if baseline.index(other) == place] or left[:1]
            if alike:
                left.remove(alike[0])
            found[place] = Pair(alike[0], case, "place") if alike else Pair(None, case)
    return [*(found[place] for place in range(len(candidate))), *(Pair(other, None) for other in left)]


def changes(pair: Pair) -> list[Change]:
    """The values that either side of the pair has."""
    before, after = (side.values if side else {} for side in (pair.baseline, pair.candidate))
    spreads = [side.spread for side in (pair.baseline, pair.candidate) if side and side.spread]
    overlap = len(spreads) == 2 and spreads[0][0] <= spreads[1][1] and spreads[1][0] <= spreads[0][1]
    return [
        Change(label, unit, before.get(name), after.get(name), overlap and name == "gpu_time")
        for name, label, unit in COMPARED
        if name in before or name in after
    ]


def came_and_went(pair: Pair) -> tuple[list[Finding], list[Finding]]:
    """The findings that only the candidate has, and those that only the baseline has."""
    before, after = (side.findings if side else () for side in (pair.baseline, pair.candidate))
    return [f for f in after if f.rule not in {o.rule for o in before}], [
        f for f in before if f.rule not in {o.rule for o in after}
    ]


def difference(baseline: Mapping[str, str], candidate: Mapping[str, str]) -> Iterator[str]:
    """The lines of a unified diff of source files by name."""
    for name in dict.fromkeys([*baseline, *candidate]):
        before, after = baseline.get(name, ""), candidate.get(name, "")
        if before != after:
            yield from difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
