"""A gate: checks whether a change increases times, bytes or resources of launches beyond limits. Pure: runs -> checks.

Every case of the baseline is compared with the same case of the candidate, each quantity by the same source on both sides. A
time fails only if the whole 95 % interval of its growth (``compare.interval``) lies above the limit. If the interval contains the
limit, the check is undecided. Repetitions of one run share its conditions, so a limit below 2 % is within the noise between
runs. The compiler's values have no noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilescope.hardware import roofs
from tilescope.models import compare, faults, impossible, renaming, traffic
from tilescope.models.compare import CompareError
from tilescope.models.documents import GateCheck as Check
from tilescope.models.documents import Verdict
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case import readable
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues, gather
from tilescope.table.metrics import METRICS
from tilescope.table.run import Failure
from tilescope.table.schema import CASE_COLUMNS
from tilescope.table.sources import COUNTERS

#: Verdicts by rank: the gate's verdict is the first that any check has.
VERDICTS: tuple[Verdict, Verdict, Verdict, Verdict] = ("fail", "undecided", "not compared", "pass")
FAIL, UNDECIDED, ABSENT, PASS = VERDICTS

#: Times in the order of preference. Clocks are never mixed.
_CLOCKS = (
    *(("gpu_time", source) for source in GPU_TIME_SOURCES),
    ("graph_time", "events"),
    ("interval", "events"),
)
#: Sources of a launch's resources. The compiler comes first: it needs no GPU and has no noise.
_SOURCES = ("compiler", "ncu", "torch_profiler")
#: Ratio of two readings of the SM clock up to which they count as equal.
_SAME_CLOCK = 1.005
#: Columns that identify a case within a run. The dtype is part of the workload's name.
KEY = tuple(name for name in CASE_COLUMNS if name != "dtype")


@dataclass(frozen=True)
class Limits:
    """The largest accepted losses; infinity leaves a quantity out.

    ``slowdown``, ``bytes``, ``registers`` and ``shared_memory`` are growth as a share of the baseline (0.03 is 3 %), ``spills``
    bytes a thread, ``occupancy`` a difference of ratios (0.1 is ten percentage points).
    """

    slowdown: float = 0.03
    bytes: float = 0.02
    registers: float = 0.1
    shared_memory: float = 0.1
    spills: float = 0.0
    occupancy: float = 0.0


@dataclass(frozen=True)
class Gate:
    """The result of a gate. ``notes`` are lines about both runs: reasons not to compare times, and other changes.

    ``names`` identify the baseline and the candidate: a run's id, or a revision.
    """

    baseline: LoadedRun
    candidate: LoadedRun
    limits: Limits
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    names: tuple[str, str]

    @property
    def verdict(self) -> Verdict:
        """``fail``, ``undecided``, ``not compared`` (of some quantity that the baseline has) or ``pass``."""
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in VERDICTS if verdict in found), PASS)

    def of(self, verdict: Verdict) -> list[Check]:
        """The checks with that verdict."""
        return [check for check in self.checks if check.verdict == verdict]


def gate(
    baseline: LoadedRun,
    candidate: LoadedRun,
    limits: Limits,
    *,
    kernels: Sequence[str] = (),
    impls: Sequence[str] = (),
    allow_missing: bool = False,
    names: tuple[str, str] | None = None,
) -> Gate:
    """Checks every case of the baseline against the candidate's. Empty ``kernels`` and ``impls`` are all.

    A case that is absent in the candidate, or failed there and not in the baseline, fails unless ``allow_missing``. Raises
    CompareError where the baseline has no such case, or nothing at all can be compared.
    """
    called = renaming.renamed(baseline, candidate)
    ours, theirs = _cases(baseline, kernels, impls, {}), _cases(candidate, kernels, impls, called)
    if not ours:
        what = " and ".join(filter(None, (", ".join(kernels), ", ".join(impls)))) or "case"
        raise CompareError(
            f"{baseline.run.id} has no {what} to compare with: 'tilescope show {baseline.run.id}' lists its cases"
        )
    sides = compare.Side(baseline), compare.Side(candidate)
    obstacles = compare.obstacles(*sides)
    if apart := compare.devices(*sides):
        obstacles.insert(0, f"measured on different devices: {' and '.join(apart)}")
    both = _Both(
        baseline,
        candidate,
        limits,
        obstacles,
        baseline.run.settings.get("target") == candidate.run.settings.get("target"),
    )
    known = {(failure.case, failure.collector) for failure in baseline.run.failures}
    failures = [failure for failure in candidate.run.failures if (failure.case, failure.collector) not in known]
    checks: list[Check] = []
    new = sorted({key[0] for key in theirs} - {key[0] for key in ours})
    absent = f"absent in the candidate: renamed? It has {', '.join(new[:3])}" if new else "absent in the candidate"
    for key, case in ours.items():
        keys = [(name, *key[1:]) for name in (key[0], *(name for name, old in called.items() if old == key[0]))]
        failed = [failure for failure in failures if any(_concerns(failure, one) for one in keys)]
        checks += _presence(key, key in theirs, failed, allow_missing, absent)
        if key in theirs:
            checks += both.checks(case, theirs[key], told=bool(failed))
    if all(check.verdict == ABSENT for check in checks):
        reasons = "; ".join(dict.fromkeys([*obstacles, *(check.said for check in checks)])) or "they share no quantity"
        raise CompareError(f"nothing of {baseline.run.id} and {candidate.run.id} can be compared: {reasons}")
    added = len(theirs.keys() - ours.keys())
    timed = any(check.what in _TIMES for check in checks)
    untimed = obstacles if timed else ["no case was timed in both runs"]
    notes = [
        *(f"renamed: {old} → {name}, which has the same cases" for name, old in called.items()),
        *(f"no times are compared: {line}" for line in untimed if limits.slowdown < math.inf),
        *(f"changed: {line}" for line in compare.changes(compare.Side(baseline), compare.Side(candidate))),
    ]
    if added:
        found = units.several(added, "case of the candidate is", "cases of the candidate are")
        notes.append(f"{found} not in the baseline, and not judged")
    return Gate(baseline, candidate, limits, tuple(checks), tuple(notes), names or (baseline.run.id, candidate.run.id))


_TIMES = {clock for clock, _ in _CLOCKS}


def _cases(
    loaded: LoadedRun, kernels: Sequence[str], impls: Sequence[str], called: Mapping[str, str]
) -> dict[tuple[str, ...], CaseValues]:
    """The run's cases by their key; ``called`` are names of kernels in the other run."""
    found: dict[tuple[str, ...], CaseValues] = {}
    for case in gather(loaded.table):
        name = called.get(case.key["kernel"], case.key["kernel"])
        if (not kernels or {name, case.key["kernel"]} & {*kernels}) and (not impls or case.key["impl"] in impls):
            found[name, *(case.key[column] for column in KEY[1:])] = case
    return found


def _concerns(failure: Failure, key: tuple[str, ...]) -> bool:
    """Whether the failure is of that case. Older runs name a person's own kernel by its variable."""
    return "/".join(filter(None, key)) in (readable(failure.case), failure.case.rpartition(".py:")[2])


def _presence(key: tuple[str, ...], there: bool, failed: list[Failure], allowed: bool, absent: str) -> Iterator[Check]:
    """A failing check where the case is absent in the candidate or a collector failed on it; none otherwise."""
    if there and not failed:
        return
    said = "; ".join(f"failed: {f.collector}: {f.message}" for f in failed) or absent
    yield Check(*key, what="case", verdict=ABSENT if allowed else FAIL, said=said)


@dataclass(frozen=True)
class _Both:
    """The two runs, and the obstacles to comparing them."""

    baseline: LoadedRun
    candidate: LoadedRun
    limits: Limits
    obstacles: list[str]
    same_target: bool

    def checks(self, mine: CaseValues, other: CaseValues, *, told: bool) -> Iterator[Check]:
        """Every check of a case that both runs have. Nothing is checked of a new fault (``faults``), and no time of an old one.

        ``told`` says that another check has the failure that makes the fault.
        """
        key = tuple(mine.key[name] for name in KEY)
        before, after = (
            faults.Faults(side.run.failures).of(case) for side, case in ((self.baseline, mine), (self.candidate, other))
        )
        if after and not before:
            if not told:
                yield Check(*key, what="result", verdict=FAIL, said=after.title)
            return
        if before:
            yield Check(*key, what="result", verdict=ABSENT, said=f"the baseline is wrong: {before.title}")
        else:
            yield from self._time(key, mine, other)
        yield from self._bytes(key, mine, other)
        for metric, limit in (
            ("registers", self.limits.registers), ("shared_memory", self.limits.shared_memory),
            ("spill_bytes", self.limits.spills), ("theoretical_occupancy", self.limits.occupancy),
        ):  # fmt: skip
            if limit < math.inf:
                yield from self._resource(key, mine, other, metric, limit)

    def _time(self, key: tuple[str, ...], mine: CaseValues, other: CaseValues) -> Iterator[Check]:
        limit = self.limits.slowdown
        clocks = [clock for clock in _CLOCKS if mine.totals.get(clock)]
        shared = next((clock for clock in clocks if other.totals.get(clock)), None)
        if not clocks or limit == math.inf:
            return
        if shared is None or self.obstacles:
            said = self.obstacles[0] if self.obstacles else "the candidate has no time by a clock of the baseline"
            yield Check(*key, what=clocks[0][0], verdict=ABSENT, said=said)
            return
        sides = ((self.baseline, mine), (self.candidate, other))
        before, after = (compare.repetitions(case, shared, side) for side, case in sides)
        medians = float(np.median(before)), float(np.median(after))
        if not medians[0] > 0:
            yield Check(
                *key, what=shared[0], verdict=ABSENT, said="the baseline's time is shorter than the clock's tick"
            )
            return
        # The growth of the time is the inverse of the speedup.
        low, high = (
            1 / end if end else math.inf for end in reversed(compare.interval(baseline=before, candidate=after))
        )
        verdict = PASS if high <= 1 + limit else FAIL if low > 1 + limit else UNDECIDED
        said = f"{_grown(medians[1] / medians[0] - 1)}, at most {_share(limit)} allowed"
        if math.isfinite(high):
            said = f"{_grown(low - 1)} to {_grown(high - 1)} by a median of {said}"
        if verdict == UNDECIDED:
            said = f"not decided: {'too noisy' if math.isfinite(high) else 'one repetition shows no noise'}: {said}"
        elif verdict == FAIL and (clock := _slower_clock(mine, other, low, limit)):
            verdict, said = UNDECIDED, f"not decided: {clock}: {said}"
        verdict, said = self._believed(mine, other, verdict, said)
        yield Check(
            *key, what=shared[0], verdict=verdict, said=said, baseline=medians[0], candidate=medians[1],
            change=medians[1] / medians[0] - 1, low=low - 1, high=high - 1, limit=limit, source=shared[1],
        )  # fmt: skip

    def _believed(self, mine: CaseValues, other: CaseValues, verdict: Verdict, said: str) -> tuple[Verdict, str]:
        """The verdict, or FAIL where the candidate's measurement is impossible, or UNDECIDED where the baseline's is."""
        for side, case, then in ((self.candidate, other, FAIL), (self.baseline, mine, UNDECIDED)):
            wrong = impossible.reasons(case, side.run.device, roofs.pipe_of(case, side.run.kernels))
            if wrong:
                whose = "candidate" if then == FAIL else "baseline"
                return then, f"the {whose}'s measurement is impossible: {wrong[0].said}"
        return verdict, said

    def _bytes(self, key: tuple[str, ...], mine: CaseValues, other: CaseValues) -> Iterator[Check]:
        limit = self.limits.bytes
        for source in traffic.BYTES if limit < math.inf else ():
            sides = ((self.baseline, mine), (self.candidate, other))
            before, after = (_bytes_of_repetition(case, source, side) for side, case in sides)
            if before and after:
                yield self._grows(key, "bytes", (before, after), limit, source=source)
                return
        if limit < math.inf and any(traffic.moved(mine, source) for source in traffic.BYTES):
            yield Check(
                *key, what="bytes", verdict=ABSENT, said="the candidate has no bytes by a source of the baseline"
            )

    def _resource(
        self, key: tuple[str, ...], mine: CaseValues, other: CaseValues, metric: str, limit: float
    ) -> Iterator[Check]:
        """The check of the launch that lost most. Launches are paired by function and by their place among its launches."""
        for source in _SOURCES:
            before, after = (_of_launches(case, metric, source) for case in (mine, other))
            if before and after:
                break
        else:
            if any(_of_launches(mine, metric, source) for source in _SOURCES):
                yield Check(
                    *key, what=metric, verdict=ABSENT, said="the candidate has no value from a source of the baseline"
                )
            return
        if source == "compiler" and not self.same_target:
            yield Check(*key, what=metric, verdict=ABSENT, said="compiled for different targets")
            return
        loses = -1 if metric == "theoretical_occupancy" else 1
        pairs = [(before[place], after[place], place[0]) for place in before] if before.keys() == after.keys() else []
        if not pairs:
            worst = min if loses < 0 else max
            pairs = [(worst(before.values()), worst(after.values()), "")]
        found = [
            self._grows(key, metric, (one, two), limit, source=source, function=function)
            for one, two, function in pairs
        ]
        yield max(found, key=lambda check: (check.change or 0.0, abs(check.baseline or 0.0)))

    def _grows(
        self,
        key: tuple[str, ...],
        what: str,
        values: tuple[float, float],
        limit: float,
        *,
        source: str,
        function: str = "",
    ) -> Check:
        """The check of a quantity without noise; ``values`` are the baseline's and the candidate's."""
        before, after = values
        unit = METRICS[what].unit if what in METRICS else "byte"
        if what == "theoretical_occupancy":
            change = before - after
            said = f"{change * -100:+.1f} points, at most {limit * 100:.3g} may be lost"
        elif what == "spill_bytes":
            change, said = after - before, f"{after - before:+,.0f} B a thread, at most {limit:+,.0f} B allowed"
        else:
            change = after / before - 1 if before else math.inf if after else 0.0
            said = (
                f"{_grown(change)}, at most {_share(limit)} allowed"
                if before
                else f"0 before, {units.text(after, unit)} now"
            )
        # Allows for rounding.
        verdict = FAIL if change > limit + 1e-9 else PASS
        return Check(
            *key, what=what, verdict=verdict, said="unchanged" if not change else said, baseline=before, candidate=after, change=change,
            limit=limit, source=source, function=function,
        )  # fmt: skip


def _bytes_of_repetition(case: CaseValues, source: str, loaded: LoadedRun) -> float | None:
    """The bytes that the case moves, from that source; in another tool's file the median of the launches', which are repetitions."""
    moved = traffic.moved(case, source)
    if moved is None or not compare.of_file(loaded):
        return moved and moved.value
    return float(np.median(list(traffic.by_launch(case, source).values())))


def _of_launches(case: CaseValues, metric: str, source: str) -> dict[tuple[str, int], float]:
    """A metric of each launch, by its function and its place among launches of that function; empty unless all have it."""
    names = ("spill_bytes_stored", "spill_bytes_loaded") if metric == "spill_bytes" else (metric,)
    found: dict[tuple[str, int], float] = {}
    for launch in case.launches(source):
        values = [case.at(name, launch, source) for name in names]
        if not all(values):
            return {}
        function = case.functions[source][launch]
        before = sum(name == function for name, _ in found)
        found[function, before] = sum(known.value for known in values if known)
    return found


def _slower_clock(mine: CaseValues, other: CaseValues, low: float, limit: float) -> str:
    """A sentence where the candidate's lower SM clock may explain the whole slowdown; empty otherwise."""
    for source in ("torch_profiler", "events", *COUNTERS):
        before, after = (
            case.at("sm_clock", case.main_launch(source) if source in COUNTERS else None, source)
            for case in (mine, other)
        )
        if before and after and after.value > 0:
            ratio = before.value / after.value
            if ratio > _SAME_CLOCK and low / ratio <= 1 + limit:
                return (
                    f"the SM clock fell from {units.text(before.value, 'hertz')} to {units.text(after.value, 'hertz')}, "
                    "which may explain it"
                )
            return ""
    return ""


def _grown(change: float) -> str:
    return f"{change * 100:+.1f} %"


def _share(limit: float) -> str:
    return f"{limit * 100:.3g} %"
