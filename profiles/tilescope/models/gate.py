"""A gate: checks whether a change increases times, bytes or resources of launches beyond limits. Pure: runs -> checks.

Every case of the base is compared with the same case of the head, each quantity by the same source on both sides. A time
fails only if the whole 95 % interval of the ratio of medians (``compare.interval``) lies above the limit. If the interval
contains the limit, the check is undecided. Repetitions of one run share its conditions: the same code recorded twice on an
H200 differed by up to 1.5 % (12 pairs of recordings), so a limit below 2 % is within the noise between runs. The compiler's
values have no noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilescope.hardware import roofs
from tilescope.models import compare, impossible, traffic
from tilescope.models.compare import CompareError
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case import readable
from tilescope.table.case_table import CaseValues, gather
from tilescope.table.metrics import METRICS
from tilescope.table.run import Failure
from tilescope.table.schema import CASE_COLUMNS
from tilescope.table.sources import COUNTERS

PASS, FAIL, UNDECIDED, ABSENT = "pass", "fail", "undecided", "not compared"
#: Verdicts by rank: the gate's verdict is the first that any check has.
VERDICTS = (FAIL, UNDECIDED, ABSENT, PASS)

#: Times in the order of preference. Clocks are never mixed.
_CLOCKS = (
    ("gpu_time", "torch_profiler"),
    *(("gpu_time", source) for source in COUNTERS),
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

    ``slowdown``, ``bytes``, ``registers`` and ``shared_memory`` are growth as a share of the base (0.03 is 3 %), ``spills``
    bytes a thread, ``occupancy`` a difference of ratios (0.1 is ten percentage points).
    """

    slowdown: float = 0.03
    bytes: float = 0.02
    registers: float = 0.1
    shared_memory: float = 0.1
    spills: float = 0.0
    occupancy: float = 0.0


@dataclass(frozen=True)
class Check:
    """A check of one quantity of one case, or (``what`` is ``case``) of the case's presence. ``key`` has the values of KEY.

    ``base`` and ``head`` are in the metric's base unit, None where absent. A resource is that of the launch (``function``) that
    lost most. ``change``, which ``limit`` limits, is growth as a share, spilled bytes, or occupancy lost; ``low`` and ``high`` are
    the 95 % interval of a time's change. ``said`` explains the verdict.
    """

    key: tuple[str, ...]
    what: str
    verdict: str
    said: str
    base: float | None = None
    head: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    source: str = ""
    function: str = ""

    @property
    def case(self) -> str:
        """``softmax/triton/forward/1823x781-fp32``."""
        return "/".join(filter(None, self.key))


@dataclass(frozen=True)
class Gate:
    """The result of a gate. ``notes`` are lines about both runs: reasons not to compare times, and other changes.

    ``names`` identify the base and the head: a run's id, or a revision.
    """

    base: LoadedRun
    head: LoadedRun
    limits: Limits
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    names: tuple[str, str]

    @property
    def verdict(self) -> str:
        """``fail``, ``undecided``, ``not compared`` (of some quantity that the base has) or ``pass``."""
        found = {check.verdict for check in self.checks}
        return next((verdict for verdict in VERDICTS if verdict in found), PASS)

    def of(self, verdict: str) -> list[Check]:
        """The checks with that verdict."""
        return [check for check in self.checks if check.verdict == verdict]


def gate(
    base: LoadedRun,
    head: LoadedRun,
    limits: Limits,
    *,
    kernels: Sequence[str] = (),
    impls: Sequence[str] = (),
    allow_missing: bool = False,
    names: tuple[str, str] | None = None,
) -> Gate:
    """Checks every case of the base against the head's. Empty ``kernels`` and ``impls`` are all.

    A case that is absent in the head, or failed there and not in the base, fails unless ``allow_missing``. Raises
    CompareError where the base has no such case, or nothing at all can be compared.
    """
    ours, theirs = (_cases(loaded, kernels, impls) for loaded in (base, head))
    if not ours:
        what = " and ".join(filter(None, (", ".join(kernels), ", ".join(impls)))) or "case"
        raise CompareError(
            f"{base.run.id} has no {what} to compare with: 'tilescope show {base.run.id}' lists its cases"
        )
    obstacles = compare.obstacles(compare.Side(base), compare.Side(head))
    both = _Both(base, head, limits, obstacles, base.run.settings.get("target") == head.run.settings.get("target"))
    known = {(failure.case, failure.collector) for failure in base.run.failures}
    failures = [failure for failure in head.run.failures if (failure.case, failure.collector) not in known]
    checks: list[Check] = []
    for key, case in ours.items():
        failed = [failure for failure in failures if _concerns(failure, key)]
        checks += _presence(key, key in theirs, failed, allow_missing)
        if key in theirs:
            checks += both.checks(case, theirs[key])
    if all(check.verdict == ABSENT for check in checks):
        reasons = "; ".join(dict.fromkeys([*obstacles, *(check.said for check in checks)])) or "they share no quantity"
        raise CompareError(f"nothing of {base.run.id} and {head.run.id} can be compared: {reasons}")
    added = len(theirs.keys() - ours.keys())
    timed = any(check.what in _TIMES for check in checks)
    untimed = obstacles if timed else ["no case was timed in both runs"]
    notes = [
        *(f"no times are compared: {line}" for line in untimed if limits.slowdown < math.inf),
        *(f"changed: {line}" for line in compare.changes(compare.Side(base), compare.Side(head))),
    ]
    if added:
        found = units.several(added, "case of the head is", "cases of the head are")
        notes.append(f"{found} not in the base, and not judged")
    return Gate(base, head, limits, tuple(checks), tuple(notes), names or (base.run.id, head.run.id))


_TIMES = {clock for clock, _ in _CLOCKS}


def _cases(loaded: LoadedRun, kernels: Sequence[str], impls: Sequence[str]) -> dict[tuple[str, ...], CaseValues]:
    return {
        tuple(case.key[name] for name in KEY): case
        for case in gather(loaded.table)
        if (not kernels or case.key["kernel"] in kernels) and (not impls or case.key["impl"] in impls)
    }


def _concerns(failure: Failure, key: tuple[str, ...]) -> bool:
    """Whether the failure is of that case. Older runs name a person's own kernel by its variable."""
    return "/".join(filter(None, key)) in (readable(failure.case), failure.case.rpartition(".py:")[2])


def _presence(key: tuple[str, ...], there: bool, failed: list[Failure], allowed: bool) -> Iterator[Check]:
    """A failing check where the case is absent in the head or a collector failed on it; none otherwise."""
    if there and not failed:
        return
    said = "; ".join(f"failed: {f.collector}: {f.message}" for f in failed) or "absent in the head"
    yield Check(key, what="case", verdict=ABSENT if allowed else FAIL, said=said)


@dataclass(frozen=True)
class _Both:
    """The two runs, and the obstacles to comparing them."""

    base: LoadedRun
    head: LoadedRun
    limits: Limits
    obstacles: list[str]
    same_target: bool

    def checks(self, mine: CaseValues, other: CaseValues) -> Iterator[Check]:
        """Every check of a case that both runs have."""
        key = tuple(mine.key[name] for name in KEY)
        if other.wrong() and not mine.wrong():
            yield Check(
                key, what="result", verdict=FAIL, said="wrong results: the error against the reference is too large"
            )
        for found in (self._time(key, mine, other), self._bytes(key, mine, other)):
            yield from found
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
            said = self.obstacles[0] if self.obstacles else "the head has no time by a clock of the base"
            yield Check(key, what=clocks[0][0], verdict=ABSENT, said=said)
            return
        base, head = (np.array(case.totals[shared]) for case in (mine, other))
        medians = float(np.median(base)), float(np.median(head))
        if not medians[0] > 0:
            yield Check(key, what=shared[0], verdict=ABSENT, said="the base's time is shorter than the clock's tick")
            return
        low, high = compare.interval(base, head)
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
            key, what=shared[0], verdict=verdict, said=said, base=medians[0], head=medians[1],
            change=medians[1] / medians[0] - 1, low=low - 1, high=high - 1, limit=limit, source=shared[1],
        )  # fmt: skip

    def _believed(self, mine: CaseValues, other: CaseValues, verdict: str, said: str) -> tuple[str, str]:
        """The verdict, or FAIL where the head's measurement is impossible, or UNDECIDED where the base's is."""
        for side, case, then in ((self.head, other, FAIL), (self.base, mine, UNDECIDED)):
            wrong = impossible.reasons(case, side.run.device, roofs.pipe_of(case, side.run.kernels))
            if wrong:
                whose = "head" if then == FAIL else "base"
                return then, f"the {whose}'s measurement is impossible: {wrong[0].said}"
        return verdict, said

    def _bytes(self, key: tuple[str, ...], mine: CaseValues, other: CaseValues) -> Iterator[Check]:
        limit = self.limits.bytes
        for source in traffic.BYTES if limit < math.inf else ():
            base, head = (traffic.moved(case, source) for case in (mine, other))
            if base and head:
                yield self._grows(key, "bytes", (base.value, head.value), limit, source=source)
                return
        if limit < math.inf and any(traffic.moved(mine, source) for source in traffic.BYTES):
            yield Check(key, what="bytes", verdict=ABSENT, said="the head has no bytes by a source of the base")

    def _resource(
        self, key: tuple[str, ...], mine: CaseValues, other: CaseValues, metric: str, limit: float
    ) -> Iterator[Check]:
        """The check of the launch that lost most. Launches are paired by function and by their place among its launches."""
        for source in _SOURCES:
            base, head = (_of_launches(case, metric, source) for case in (mine, other))
            if base and head:
                break
        else:
            if any(_of_launches(mine, metric, source) for source in _SOURCES):
                yield Check(key, what=metric, verdict=ABSENT, said="the head has no value from a source of the base")
            return
        if source == "compiler" and not self.same_target:
            yield Check(key, what=metric, verdict=ABSENT, said="compiled for different targets")
            return
        loses = -1 if metric == "theoretical_occupancy" else 1
        pairs = [(base[place], head[place], place[0]) for place in base] if base.keys() == head.keys() else []
        if not pairs:
            worst = min if loses < 0 else max
            pairs = [(worst(base.values()), worst(head.values()), "")]
        found = [
            self._grows(key, metric, (one, two), limit, source=source, function=function)
            for one, two, function in pairs
        ]
        yield max(found, key=lambda check: (check.change or 0.0, abs(check.base or 0.0)))

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
        """The check of a quantity without noise; ``values`` are the base's and the head's."""
        base, head = values
        unit = METRICS[what].unit if what in METRICS else "byte"
        if what == "theoretical_occupancy":
            change = base - head
            said = f"{change * -100:+.1f} points, at most {limit * 100:.3g} may be lost"
        elif what == "spill_bytes":
            change, said = head - base, f"{head - base:+,.0f} B a thread, at most {limit:+,.0f} B allowed"
        else:
            change = head / base - 1 if base else math.inf if head else 0.0
            said = (
                f"{_grown(change)}, at most {_share(limit)} allowed"
                if base
                else f"0 before, {units.text(head, unit)} now"
            )
        # Allows for rounding.
        verdict = FAIL if change > limit + 1e-9 else PASS
        return Check(
            key, what=what, verdict=verdict, said="unchanged" if not change else said, base=base, head=head, change=change,
            limit=limit, source=source, function=function,
        )  # fmt: skip


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
    """A sentence where the head's lower SM clock may explain the whole slowdown; empty otherwise."""
    for source in ("torch_profiler", "events", *COUNTERS):
        base, head = (
            case.at("sm_clock", case.main_launch(source) if source in COUNTERS else None, source)
            for case in (mine, other)
        )
        if base and head and head.value > 0:
            ratio = base.value / head.value
            if ratio > _SAME_CLOCK and low / ratio <= 1 + limit:
                return (
                    f"the SM clock fell from {units.text(base.value, 'hertz')} to {units.text(head.value, 'hertz')}, "
                    "which may explain it"
                )
            return ""
    return ""


def _grown(change: float) -> str:
    return f"{change * 100:+.1f} %"


def _share(limit: float) -> str:
    return f"{limit * 100:.3g} %"
