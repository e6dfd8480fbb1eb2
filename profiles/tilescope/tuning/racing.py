"""The race of configs: each is timed a little, what is surely slower is dropped, and time goes to those that are close.

Every decision is on logarithms of times, so that a difference is a ratio. A config's spread is moderated: few samples may
agree by chance, so its variance is drawn towards that of all configs together,

    s² = (d0 s0² + d s_i²) / (d0 + d),    t = (m_i - m_j) / sqrt(s_i²/n_i + s_j²/n_j),

with ``d0`` degrees of freedom for what is known of all (G. K. Smyth, Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments, Statistical Applications in Genetics and Molecular Biology 3 (2004), eq. 3).
Dropping by such bounds is a Hoeffding race (O. Maron, A. Moore, Hoeffding Races, NIPS 6 (1993)) with Student's bound in the
place of Hoeffding's, as times have no upper limit. The error is shared out over configs and rounds (Bonferroni): the best is
dropped at any time of the race with a probability of at most ``error``, as far as logarithms of times are normal. Outliers are
not: a sample counts as at most ``_CUT`` times the spread away from the config's median.

Samples that are taken one after the other are no independent ones: an H200 that reads from HBM is 2 % slower for a millisecond
or two, then quicker again. So nobody is dropped early for a small difference. What is left when all have come takes turns, a
sample each in random order, and only that counts between them. Pure.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

#: Next samples of a config, in seconds, as many as are asked for; fewer, or none, where it fails.
Measure = Callable[[str, int], Sequence[float]]
_CUT = 3.0
#: The relative spread to expect before any is measured, and for how many degrees of freedom it counts.
_NOISE, _WEIGHT = 0.01, 4.0


class ConfigFailed(Exception):
    """A config that does not compile, cannot be launched, or faults; its message is one line. The race goes on without it."""


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    ``first`` samples of every config as it comes; who is surely slower than the leader by the ratio ``least`` is dropped. The
    others take ``fewest`` to ``turns`` turns, fewer where those take more than ``spent`` seconds in all; who is surely slower
    is dropped there, and who cannot be quicker than the leader by more than the ratio ``close`` is not timed again. ``error``
    is the probability with which the best may be dropped.
    """

    first: int = 3
    least: float = 0.03
    fewest: int = 4
    turns: int = 32
    spent: float = 0.1
    close: float = 0.005
    error: float = 0.05


@dataclass
class Lane:
    """What is known of one config: its ``samples`` in seconds, and why it is out, empty while it is in the race.

    ``like`` names the config whose time stands for its own, where another launches the same code alike.
    """

    config: str
    samples: list[float] = field(default_factory=list)
    out: str = ""
    like: str = ""

    @property
    def median(self) -> float:
        """Seconds; infinite without samples."""
        return statistics.median(self.samples) if self.samples else math.inf


@dataclass(frozen=True)
class Outcome:
    """The end of a race. ``winner`` is empty where no config could be timed.

    ``lanes`` has every config that was offered, quickest first. ``low`` and ``high`` bound the winner's time in seconds, at the
    confidence of the rules. ``clear`` says whether the race ended by confidence rather than by the most samples.
    """

    winner: str
    low: float
    high: float
    clear: bool
    lanes: tuple[Lane, ...]
    #: How many samples were taken in all, those that no longer count, too.
    taken: int = 0


class Race:
    """A race over configs that come one by one, as they are compiled.

    ``measure`` times; ``entrants`` is how many configs may come, over which the error is shared out.
    """

    def __init__(self, measure: Measure, entrants: int, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.lanes: dict[str, Lane] = {}
        self._measure = measure
        self._known: dict[str, tuple[int, Summary]] = {}
        self._taken = 0
        self._error = self.rules.error / max(1, entrants * (1 + self.rules.turns))

    @property
    def best(self) -> float | None:
        """The leader's median in seconds; None before any config is timed."""
        leader = self._leader()
        return leader.median if leader else None

    def offer(self, config: str, known: Iterable[float] = ()) -> Lane:
        """Times a new config a little, or takes the ``known`` samples for it, and drops whoever is surely slower now."""
        lane = self.lanes[config] = Lane(config, list(known))
        if not lane.samples:
            self._time(lane, self.rules.first)
        self._drop(self.rules.least)
        return lane

    def refuse(self, config: str, reason: str, like: str = "") -> None:
        """Notes a config that is not timed, and why; ``like`` as a lane has it."""
        self.lanes[config] = Lane(config, out=reason, like=like)

    def finish(self) -> Outcome:
        """Has those that are left take turns until the leader is clear, or each has had the most of them."""
        near = self._running()
        if len(near) < 2:
            return self.outcome(clear=True)
        again = Race(self._measure, len(near), self.rules)
        again.lanes = {lane.config: Lane(lane.config) for lane in near}
        turns = int(self.rules.spent / sum(lane.median for lane in near))
        clear = again._turns(min(self.rules.turns, max(self.rules.fewest, turns)))
        self.lanes |= again.lanes
        self._known.clear()
        self._taken += again._taken
        return self.outcome(clear)

    def _turns(self, most: int) -> bool:
        """Times those that may win once a turn, in random order: whatever comes and goes in the machine meets all alike.

        Whether the leader is clear.
        """
        numbers, wanted = random.Random(0), self._running()  # noqa: S311 - no secret
        for turn in range(1, most + 1):
            for lane in numbers.sample(wanted, len(wanted)):
                self._time(lane, 1)
            wanted = self._running()
            if turn >= self.rules.fewest:
                self._drop(0.0)
                wanted = self._may_win()
            if len(wanted) < 2:
                return True
        return False

    def _time(self, lane: Lane, count: int) -> None:
        try:
            found = [float(value) for value in self._measure(lane.config, count)]
        except ConfigFailed as failure:
            lane.out = str(failure)
            return
        if not found or not all(math.isfinite(value) and value > 0 for value in found):
            lane.out = "no time could be taken"
            return
        self._taken += len(found)
        lane.samples += found

    def _running(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if not lane.out]

    def _leader(self) -> Lane | None:
        return min(self._running(), key=lambda lane: self._summary(lane).mean, default=None)

    def _summary(self, lane: Lane) -> Summary:
        """The lane's summary, computed once for the samples that it has."""
        count, summary = self._known.get(lane.config, (0, None))
        if summary is None or count != len(lane.samples):
            summary = _summarised(lane.samples)
            self._known[lane.config] = len(lane.samples), summary
        return summary

    def _drop(self, least: float) -> None:
        """Drops who is surely slower than the leader by that ratio at least."""
        leader, common = self._leader(), self._common()
        for lane in self._running():
            if leader is None or lane is leader:
                continue
            difference, margin = self._difference(lane, leader, common)
            if difference > max(math.log1p(least), margin):
                lane.out = f"slower than the leader by {math.expm1(difference):.1%} ± {math.expm1(margin):.1%}"

    def _may_win(self) -> list[Lane]:
        """The leader, and who may be quicker than it by more than the rules call close."""
        leader, common = self._leader(), self._common()
        found: list[Lane] = []
        for lane in self._running():
            difference, margin = self._difference(lane, leader, common) if leader else (0.0, 0.0)
            if lane is leader or difference - margin < -math.log1p(self.rules.close):
                found.append(lane)
        return found

    def _difference(self, lane: Lane, leader: Lane, common: float) -> tuple[float, float]:
        """The logarithm of the ratio of times, and the margin within which it is not known."""
        ours, theirs = self._summary(lane), self._summary(leader)
        degrees = _WEIGHT + ours.count + theirs.count - 2
        error = math.sqrt(self._variance(ours, common) / ours.count + self._variance(theirs, common) / theirs.count)
        return ours.mean - theirs.mean, student(1 - self._error, degrees) * error

    def _variance(self, own: Summary, common: float) -> float:
        """The moderated variance of a config's samples."""
        return (_WEIGHT * common + own.squares) / (_WEIGHT + own.count - 1)

    def _common(self) -> float:
        """The variance of all configs together; what the rules expect counts among it."""
        every = [self._summary(lane) for lane in self.lanes.values() if lane.samples]
        degrees = sum(own.count - 1 for own in every)
        return (_WEIGHT * _NOISE**2 + sum(own.squares for own in every)) / (_WEIGHT + degrees)

    def outcome(self, clear: bool = False) -> Outcome:
        """How things stand, without further samples."""
        lanes = tuple(sorted(self.lanes.values(), key=lambda lane: (bool(lane.out), lane.median)))
        leader = self._leader()
        if leader is None:
            return Outcome("", math.nan, math.nan, False, lanes, self._taken)
        own = self._summary(leader)
        quantile = student(1 - self.rules.error / 2, _WEIGHT + own.count - 1)
        margin = quantile * math.sqrt(self._variance(own, self._common()) / own.count)
        return Outcome(
            leader.config, math.exp(own.mean - margin), math.exp(own.mean + margin), clear, lanes, self._taken
        )


def student(probability: float, degrees: float) -> float:
    """Student's quantile, by the expansion of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5."""
    z = statistics.NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees ** (power + 1) for power, term in enumerate(terms))


@dataclass(frozen=True)
class Summary:
    """What the test needs of a config: the mean of its samples' logarithms, and their squared distances from it."""

    count: int
    mean: float
    squares: float


def _summarised(samples: Sequence[float]) -> Summary:
    """The summary of samples; those far from their median are drawn in, once there are enough to tell."""
    logs = [math.log(value) for value in samples]
    middle = statistics.median(logs)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in logs)
    if len(logs) >= 5 and spread:
        logs = [min(max(value, middle - _CUT * spread), middle + _CUT * spread) for value in logs]
    mean = sum(logs) / len(logs)
    return Summary(len(logs), mean, sum((value - mean) ** 2 for value in logs))
