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
from typing import Any

import numpy as np

from tilescope.hardware import roofs
from tilescope.models import compare, faults, function_names, impossible, renaming, step_changes, traffic
from tilescope.models.compare import CompareError
from tilescope.models.documents import GateCheck as Check
from tilescope.models.documents import GateLimits, Verdict
from tilescope.models.step_changes import StepPair
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case import readable
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues, gather
from tilescope.table.metrics import METRICS
from tilescope.table.schema import NAMED
from tilescope.table.sources import COUNTERS

Limits = GateLimits

#: Verdicts by rank: the gate's verdict is the first that any check has.
VERDICTS: tuple[Verdict, Verdict, Verdict, Verdict] = ("fail", "undecided", "not compared", "pass")
FAIL, UNDECIDED, ABSENT, PASS = VERDICTS

#: Times in the order of preference. Clocks are never mixed.
_CLOCKS = (*(("gpu_time", source) for source in GPU_TIME_SOURCES), ("graph_time", "events"), ("interval", "events"))
#: Sources of a launch's resources. The compiler comes first: it needs no GPU and has no noise.
_SOURCES = ("compiler", "ncu", "torch_profiler")
#: Most kernels of a step that are named.
_KERNELS = 5
#: Ratio of two readings of the SM clock up to which they count as equal.
_SAME_CLOCK = 1.005


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
    sides, titles = (compare.Side(baseline), compare.Side(candidate)), names or (baseline.run.id, candidate.run.id)
    if not (kernels or impls) and (pair := step_changes.of(*sides)):
        return _of_step(pair, sides, limits, titles)
    called = renaming.renamed(baseline, candidate)
    ours, theirs = _cases(baseline, kernels, impls, {}), _cases(candidate, kernels, impls, called)
    if not ours:
        what = " and ".join(filter(None, (", ".join(kernels), ", ".join(impls)))) or "case"
        raise CompareError(
            f"{baseline.run.id} has no {what} to compare with: 'tilescope show {baseline.run.id}' lists its cases"
        )
    obstacles = [*_elsewhere(*sides), *compare.obstacles(*sides)]
    known = {(failure.case, failure.collector) for failure in baseline.run.failures}
    failures = [failure for failure in candidate.run.failures if (failure.case, failure.collector) not in known]
    checks: list[Check] = []
    kept = {key[0] for key in theirs}
    new = [name for name in sorted(kept - {key[0] for key in ours}) if renaming.may_be(candidate, name)]
    renamed = f": renamed? It has {', '.join(map(function_names.said, new[:3]))}" if new else ""
    for key, case in ours.items():
        called_so = (key[0], *(name for name, old in called.items() if old == key[0]))
        own = {"/".join(filter(None, (name, *key[1:]))) for name in called_so}
        # Older runs name a person's own kernel by its variable.
        failed = [one for one in failures if own & {readable(one.case), one.case.rpartition(".py:")[2]}]
        if failed or key not in theirs:
            absent = "absent in the candidate" + (renamed if key[0] not in kept else "")
            said = "; ".join(f"failed: {one.collector}: {faults.plain(one.message)}" for one in failed) or absent
            checks.append(Check(*key, what="case", verdict=ABSENT if allow_missing else FAIL, said=said))
        if key in theirs:
            checks += _Pair((baseline, candidate), (case, theirs[key]), limits, obstacles).checks(told=bool(failed))
    if all(check.verdict == ABSENT for check in checks):
        reasons = "; ".join(dict.fromkeys([*obstacles, *(check.said for check in checks)])) or "they share no quantity"
        raise CompareError(f"nothing of {baseline.run.id} and {candidate.run.id} can be compared: {reasons}")
    added = len(theirs.keys() - ours.keys())
    timed = any(check.what in {clock for clock, _ in _CLOCKS} for check in checks)
    untimed = obstacles if timed else ["no case was timed in both runs"]
    notes = [
        *renaming.told(called),
        *(f"no times are compared: {line}" for line in untimed if limits.slowdown is not None),
        *(f"changed: {line}" for line in compare.changes(*sides)),
    ]
    if added:
        found = units.several(added, "case of the candidate is", "cases of the candidate are")
        notes.append(f"{found} not in the baseline, and not judged")
    return Gate(baseline, candidate, limits, tuple(checks), tuple(notes), titles)


def _of_step(pair: StepPair, sides: tuple[compare.Side, compare.Side], limits: Limits, names: tuple[str, str]) -> Gate:
    """The gate of two steps of a model: of the time in which the GPU ran something, and of the whole step, whose noise is unknown."""
    baseline, candidate = (side.loaded for side in sides)
    reasons = [*_elsewhere(*sides), *pair.obstacles] or ["a step has times alone, whose limit is off"] * (
        limits.slowdown is None
    )
    if reasons or limits.slowdown is None:
        raise CompareError(f"nothing of {baseline.run.id} and {candidate.run.id} can be compared: {'; '.join(reasons)}")
    checks = []
    for what, (before, after), noise in (("gpu_time", pair.busy, compare.DRIFT), ("interval", pair.seconds, math.inf)):
        grown = after / before - 1 if before else 0.0
        # Allows for rounding.
        above, surely = grown > limits.slowdown + 1e-9, (1 + grown) / (1 + noise) > 1 + limits.slowdown
        verdict, why = (
            (FAIL, "") if surely else (UNDECIDED, "not decided, as two steps show no noise: ") if above else (PASS, "")
        )
        said = f"{why}{_grown(grown)}, at most {_share(limits.slowdown)} allowed"
        checks.append(
            Check("step", "", "", "", "", what=what, verdict=verdict, said=said, baseline=before, candidate=after, change=grown,
                  limit=limits.slowdown)
        )  # fmt: skip
    kernels = [f"{one.change} {one.name} ({one.module}, {one.direction})" for one in pair.moved[:_KERNELS]]
    notes = [pair.sentence, *kernels, *(f"changed: {line}" for line in compare.changes(*sides))]
    return Gate(baseline, candidate, limits, tuple(checks), tuple(notes), names)


def _elsewhere(baseline: compare.Side, candidate: compare.Side) -> list[str]:
    """That times of two devices cannot be compared, where it is so."""
    apart = compare.devices(baseline, candidate)
    return [f"measured on different devices: {' and '.join(apart)}"] if apart else []


def _cases(
    loaded: LoadedRun, kernels: Sequence[str], impls: Sequence[str], called: Mapping[str, str]
) -> dict[tuple[str, ...], CaseValues]:
    """The run's cases by their key; ``called`` are names of kernels in the other run."""
    found: dict[tuple[str, ...], CaseValues] = {}
    for case in gather(loaded.table):
        name = called.get(case.key["kernel"], case.key["kernel"])
        if (not kernels or {name, case.key["kernel"]} & {*kernels}) and (not impls or case.key["impl"] in impls):
            found[name, *(case.key[column] for column in NAMED[1:])] = case
    return found


@dataclass(frozen=True)
class _Pair:
    """A case of the baseline's run and of the candidate's, and the obstacles to comparing their times."""

    runs: tuple[LoadedRun, LoadedRun]
    cases: tuple[CaseValues, CaseValues]
    limits: Limits
    obstacles: list[str]

    def check(self, what: str, verdict: Verdict, said: str, **more: Any) -> Check:
        return Check(*(self.cases[0].key[name] for name in NAMED), what=what, verdict=verdict, said=said, **more)

    def checks(self, *, told: bool) -> Iterator[Check]:
        """Every check of the case. Nothing is checked of a new fault (``faults``), and no time of an old one.

        ``told`` says that another check has the failure that makes the fault.
        """
        before, after = (
            faults.Faults(side.run.failures).of(case) for side, case in zip(self.runs, self.cases, strict=True)
        )
        if after and not before:
            if not told:
                yield self.check("result", FAIL, after.title)
            return
        if before:
            yield self.check("result", ABSENT, f"the baseline is wrong: {before.title}")
        elif self.limits.slowdown is not None:
            yield from self._time(self.limits.slowdown)
        if self.limits.bytes is not None:
            yield from self._bytes(self.limits.bytes)
        for metric, limit in (
            ("registers", self.limits.registers), ("shared_memory", self.limits.shared_memory),
            ("spill_bytes", self.limits.spills), ("theoretical_occupancy", self.limits.occupancy),
        ):  # fmt: skip
            if limit is not None:
                yield from self._resource(metric, limit)

    def _time(self, limit: float) -> Iterator[Check]:
        clocks = [clock for clock in _CLOCKS if self.cases[0].totals.get(clock)]
        shared = next((clock for clock in clocks if self.cases[1].totals.get(clock)), None)
        if not clocks:
            return
        if shared is None or self.obstacles:
            said = self.obstacles[0] if self.obstacles else "the candidate has no time by a clock of the baseline"
            yield self.check(clocks[0][0], ABSENT, said)
            return
        before, after = (
            compare.repetitions(case, shared, side) for side, case in zip(self.runs, self.cases, strict=True)
        )
        medians = float(np.median(before)), float(np.median(after))
        if not medians[0] > 0:
            yield self.check(shared[0], ABSENT, "the baseline's time is shorter than the clock's tick")
            return
        # The growth of the time is the inverse of the speedup.
        ends = compare.interval(baseline=before, candidate=after)
        low, high = (1 / end if end else math.inf for end in reversed(ends))
        verdict = PASS if high <= 1 + limit else FAIL if low > 1 + limit else UNDECIDED
        within = f" ({_grown(low - 1)} to {_grown(high - 1)})" if math.isfinite(high) else ""
        said = f"{_grown(medians[1] / medians[0] - 1)}{within}, at most {_share(limit)} allowed"
        if verdict == UNDECIDED:
            said = f"not decided: {'too noisy' if math.isfinite(high) else 'one repetition shows no noise'}: {said}"
        elif verdict == FAIL and (clock := _slower_clock(*self.cases, low, limit)):
            verdict, said = UNDECIDED, f"not decided: {clock}: {said}"
        # An impossible measurement decides.
        for place, whose, then in ((1, "candidate", FAIL), (0, "baseline", UNDECIDED)):
            run, case = self.runs[place].run, self.cases[place]
            if wrong := impossible.reasons(case, run.device, roofs.pipe_of(case, run.kernels)):
                verdict, said = then, f"the {whose}'s measurement is impossible: {wrong[0].said}"
                break
        yield self.check(
            shared[0], verdict, said, baseline=medians[0], candidate=medians[1], change=medians[1] / medians[0] - 1,
            low=low - 1, high=high - 1, limit=limit, source=shared[1],
        )  # fmt: skip

    def _bytes(self, limit: float) -> Iterator[Check]:
        for source in traffic.BYTES:
            before, after = (
                _bytes_of_repetition(case, source, side) for side, case in zip(self.runs, self.cases, strict=True)
            )
            if before and after:
                yield self._grows("bytes", (before, after), limit, source)
                return
        if any(traffic.moved(self.cases[0], source) for source in traffic.BYTES):
            yield self.check("bytes", ABSENT, "the candidate has no bytes by a source of the baseline")

    def _resource(self, metric: str, limit: float) -> Iterator[Check]:
        """The check of the launch that lost most. Launches are paired by function and by their place among its launches."""
        known = {source: [_of_launches(case, metric, source) for case in self.cases] for source in _SOURCES}
        source = next((source for source, sides in known.items() if all(sides)), "")
        targets = {side.run.settings.get("target") for side in self.runs}
        if not source:
            if any(before for before, _ in known.values()):
                yield self.check(metric, ABSENT, "the candidate has no value from a source of the baseline")
        elif source == "compiler" and len(targets) > 1:
            yield self.check(metric, ABSENT, "compiled for different targets")
        else:
            before, after = known[source]
            worst = min if metric == "theoretical_occupancy" else max
            pairs = [(worst(before.values()), worst(after.values()), "")]
            if before.keys() == after.keys():
                pairs = [(before[place], after[place], place[0]) for place in before]
            found = [self._grows(metric, (one, two), limit, source, function) for one, two, function in pairs]
            yield max(found, key=lambda check: (check.change or 0.0, abs(check.baseline or 0.0)))

    def _grows(self, what: str, values: tuple[float, float], limit: float, source: str, function: str = "") -> Check:
        """The check of a quantity without noise; ``values`` are the baseline's and the candidate's."""
        before, after = values
        if what == "theoretical_occupancy":
            change = before - after
            said = f"{change * -100:+.1f} points, at most {limit * 100:.3g} may be lost"
        elif what == "spill_bytes":
            change, said = after - before, f"{after - before:+,.0f} B a thread, at most {limit:+,.0f} B allowed"
        elif before:
            change = after / before - 1
            said = f"{_grown(change)}, at most {_share(limit)} allowed"
        else:
            unit = METRICS[what].unit if what in METRICS else "byte"
            change, said = math.inf if after else 0.0, f"0 before, {units.text(after, unit)} now"
        # Allows for rounding.
        return self.check(
            what, FAIL if change > limit + 1e-9 else PASS, said if change else "unchanged", baseline=before, candidate=after,
            change=change, limit=limit, source=source, function=function,
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
