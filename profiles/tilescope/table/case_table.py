"""Values of each case, gathered from the table for the models by metric, source and launch.

Values are medians over repetitions. An absent value is None, never 0. Pure: frame -> plain objects.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tilescope.table.schema import CASE_COLUMNS
from tilescope.table.sources import COUNTERS, SOURCES

#: What identifies a case across runs.
KEYS = ["run_id", *CASE_COLUMNS]

#: Sources of GPU time, best first. ncu comes late because it changes clocks and caches.
GPU_TIME_SOURCES = ("torch_profiler", "chrome_trace", "proton", "ncu", "cupti")
#: Requested bytes over the bytes of whole tensors: below the first, programs use parts of the tensors; above the second, they use
#: them repeatedly.
_PARTS, _REPEATS = 0.67, 4.0


class Known(NamedTuple):
    """A value and the source it comes from."""

    value: float
    source: str


class Spread(NamedTuple):
    """Median, 5 % and 95 % quantile over repetitions, and the source."""

    value: float
    low: float
    high: float
    source: str


@dataclass
class CaseValues:
    """One case. ``key`` holds its identifying columns.

    ``values`` maps (metric, source) to launch -> median; launch None is the whole case. ``functions`` maps a source to
    launch -> kernel function. ``totals`` maps (metric, source) to each repetition's sum over launches.
    """

    key: dict[str, str]
    values: dict[tuple[str, str], dict[int | None, float]] = field(default_factory=dict)
    functions: dict[str, dict[int, str]] = field(default_factory=dict)
    totals: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    #: Cache of ``launch_time``: for each source, the sources that timed as many launches.
    _clocks: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)

    def launches(self, source: str) -> list[int]:
        """The launches that a source saw, in order."""
        return sorted(self.functions.get(source, {}))

    def launch_count(self, source: str) -> int:
        """How many launches a source saw."""
        return len(self.functions.get(source, {}))

    @functools.cached_property
    def counted_by(self) -> str:
        """The one source that all hardware counters of the case are taken from: the first of COUNTERS that has any."""
        known = {source for _, source in self.values}
        return next((source for source in COUNTERS if source in known), COUNTERS[0])

    def total(self, metric: str, *sources: str) -> Known | None:
        """The metric summed over launches, from the first of ``sources`` (default: all) that has it for every launch."""
        for source in sources or SOURCES:
            found = self.values.get((metric, source))
            if found and (None in found or found.keys() >= self.functions.get(source, {}).keys()):
                return Known(found[None] if None in found else sum(found.values()), source)
        return None

    def at(self, metric: str, launch: int | None, *sources: str) -> Known | None:
        """The metric of one launch (None: of the whole case), from the first source that has it."""
        for source in sources or SOURCES:
            found = self.values.get((metric, source))
            if found is not None and (value := found.get(launch)) is not None:
                return Known(value, source)
        return None

    def spread(self, metric: str, *sources: str) -> Spread | None:
        """The metric's distribution over repetitions, each summed over its launches."""
        for source in sources or SOURCES:
            found = self.totals.get((metric, source))
            if found:
                value, low, high = map(float, np.quantile(found, (0.5, 0.05, 0.95)))
                return Spread(value, low, high, source)
        return None

    def gpu_time(self) -> Spread | None:
        """GPU time of the case in seconds."""
        return self.spread("gpu_time", *GPU_TIME_SOURCES)

    def algorithm_bytes(self) -> tuple[Known, Known] | None:
        """Bytes that the algorithm must read and write, as the kernel's cost declares them.

        None where only the sizes of whole tensors are known, and a sample of programs requests much more or less than that. The
        tensors' sizes then say nothing of what must move.
        """
        read, written = (self.total(f"algorithm_bytes_{way}", "model") for way in ("read", "written"))
        asked = [self.total(f"sampled_bytes_{way}", "interpreter") for way in ("read", "written")]
        if not (read and written):
            return None
        if self.total("tensor_bytes", "model") and all(asked):
            whole, sample = read.value + written.value, sum(known.value for known in asked if known)
            if not _PARTS * whole <= sample <= _REPEATS * whole:
                return None
        return read, written

    def needed_bytes(self) -> Known | None:
        """``algorithm_bytes``, read and written together."""
        known = self.algorithm_bytes()
        return Known(known[0].value + known[1].value, "model") if known else None

    def wrong(self) -> bool:
        """Whether the check found wrong results. The times are then those of another function."""
        pairs = (("relative_error", "tolerance"), ("row_error", "row_tolerance"))
        found = [(self.total(error), self.total(accepted)) for error, accepted in pairs]
        return any(error.value > accepted.value for error, accepted in found if error and accepted)

    def launch_time(self, launch: int, seen_by: str) -> Known | None:
        """GPU time of launch number ``launch`` of the source ``seen_by``, from a source that saw as many launches."""
        alike = self._clocks.get(seen_by)
        if alike is None:
            count = self.launch_count(seen_by)
            alike = tuple(source for source in GPU_TIME_SOURCES if self.launch_count(source) == count)
            self._clocks[seen_by] = alike
        return self.at("gpu_time", launch, *alike) if alike else None

    def main_launch(self, source: str) -> int | None:
        """The longest launch, or the first where no time is known; None without launches."""
        launches = self.launches(source)
        times = {n: known.value for n in launches if (known := self.launch_time(n, source))}
        return max(times, key=lambda n: times[n]) if times else launches[0] if launches else None


#: Results for the last ``_MOST`` tables: views ask several models about one table, and 100,000 launches take seconds to gather.
_last: tuple[tuple[weakref.ref[pd.DataFrame], list[CaseValues]], ...] = ()
_MOST = 3


def gather(table: pd.DataFrame) -> list[CaseValues]:
    """Every case of the table, in the order of its first row. The table must not be changed afterwards."""
    global _last  # noqa: PLW0603 - replaced as a whole, so that threads may gather at the same time
    known = next((facts for of, facts in _last if of() is table), None)
    if known is None:
        known = _gather(table)
        others = [entry for entry in _last if entry[0]() is not None]
        _last = (*others[1 - _MOST :], (weakref.ref(table), known))
    return list(known)


def _gather(table: pd.DataFrame) -> list[CaseValues]:
    numbers = table.groupby(KEYS, sort=False).ngroup()
    rows = table[["metric", "source", "launch", "sample", "function", "value"]].assign(case=numbers)
    keys = table.loc[~numbers.duplicated(), KEYS].itertuples(index=False, name=None)
    cases = [CaseValues(dict(zip(KEYS, key, strict=True))) for key in keys]
    for (case, metric, source, launch), median in _by(rows, "launch").median().items():
        cases[case].values.setdefault((metric, source), {})[None if pd.isna(launch) else launch] = median
    launches = rows.loc[rows["launch"].notna(), ["case", "source", "launch", "function"]]
    named = launches.drop_duplicates(["case", "source", "launch"])
    for case, source, launch, function in zip(*(named[name].tolist() for name in named), strict=True):
        cases[case].functions.setdefault(source, {})[launch] = function
    for one in cases:
        _take_counts(one)
    repeated = rows[rows["metric"].isin(["gpu_time", "interval", "graph_time"])]
    for (case, metric, source, _), total in _by(repeated, "sample").sum().items():
        cases[case].totals.setdefault((metric, source), []).append(total)
    return cases


def _by(rows: pd.DataFrame, last: str) -> Any:
    """The values grouped by case, metric, source and a last column, in the order of the table."""
    return rows.groupby(["case", "metric", "source", last], sort=False, dropna=False)["value"]


def _take_counts(case: CaseValues) -> None:
    """Replaces a cost that has only the sizes of whole tensors by what the interpreter counted, if it did."""
    counted = {
        f"algorithm_{name}": case.total(f"{kind}_{name}", "interpreter")
        for kind, name in (("unique", "bytes_read"), ("unique", "bytes_written"), ("requested", "flops"))
    }
    if ("tensor_bytes", "model") in case.values and all(counted.values()):
        del case.values["tensor_bytes", "model"]
        for metric, known in counted.items():
            case.values[metric, "model"] = {None: known.value if known else 0.0}


def value_of(known: Known | Spread | None) -> float:
    """The value, NaN where it is absent."""
    return known.value if known else math.nan


def gpu_times(case: CaseValues, other: CaseValues) -> tuple[Spread, Spread] | None:
    """GPU times of two cases from the first source that has both, so that the clock is the same; None where none has."""
    for source in GPU_TIME_SOURCES:
        mine, theirs = case.spread("gpu_time", source), other.spread("gpu_time", source)
        if mine and theirs:
            return mine, theirs
    return None


def declared_pipe(case: CaseValues, kernels: Mapping[str, Mapping[str, Any]] | None) -> str | None:
    """The pipe that the kernel's cost declares for the case. ``kernels`` is ``Run.kernels``. None where none is declared."""
    costs = (kernels or {}).get(case.key["kernel"], {}).get("cost", {}).get(case.key["workload"], {})
    pipe: str | None = costs.get(case.key["pass"], {}).get("pipe")
    return pipe


def by_problem(cases: Iterable[CaseValues]) -> dict[tuple[str, ...], dict[str, CaseValues]]:
    """Cases by problem (run, kernel, pass, workload), then by implementation.

    The case without a config stands for its implementation, or else the fastest config.
    """
    problems: dict[tuple[str, ...], dict[str, CaseValues]] = {}
    for case in cases:
        problem = problem_of(case)
        others = problems.setdefault(problem, {})
        impl = case.key["impl"]
        if impl not in others or _rank(case) < _rank(others[impl]):
            others[impl] = case
    return problems


def problem_of(case: CaseValues) -> tuple[str, ...]:
    """The problem that the case solves: run, kernel, pass, workload."""
    return tuple(case.key[name] for name in ("run_id", "kernel", "pass", "workload"))


def _rank(case: CaseValues) -> tuple[bool, float]:
    time = case.gpu_time()
    return (bool(case.key["config"]), time.value if time else float("inf"))
