"""The race of configs: each is timed a little, what is surely slower is dropped, and time goes to those that are close.

Every decision is on logarithms of times, so that a difference is a ratio. A config's spread is moderated: few samples may
agree by chance, so its variance is drawn towards that of all configs together,

    s² = (d0 s0² + d s_i²) / (d0 + d),    t = (m_i - m_j) / sqrt(s_i²/n_i + s_j²/n_j),

with ``d0`` degrees of freedom for what is known of all (G. K. Smyth, Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments, Statistical Applications in Genetics and Molecular Biology 3 (2004), eq. 3).
Dropping by such bounds is a Hoeffding race (O. Maron, A. Moore, Hoeffding Races, NIPS 6 (1993)) with Student's bound in the place of
Hoeffding's, as times have no upper limit. The error is shared out over configs and rounds (Bonferroni): the best is
dropped at any time of the race with a probability of at most ``error``, as far as logarithms of times are normal. Outliers
are not: a sample counts as at most ``_CUT`` times the spread away from the config's median.

Samples that are taken one after the other are no independent ones: an H200 that reads from HBM is 2 % slower for a millisecond or two,
then quicker again. So nobody is dropped early for a small difference, and configs that are close at the end race once more, a sample
each in turns of random order, and only that counts between them. Pure.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

#: Next samples of a config, in seconds, as many as are asked for; fewer, or none, where it fails.
Measure = Callable[[str, int], Sequence[float]]
_CUT = 3.0
#: The part of the margin of who is surely slower beyond which one most likely is.
_LIKELY = 0.75
#: Fewest samples of each in the last race.
_FEWEST = 8


class ConfigFailed(Exception):
    """A config that does not compile, cannot be launched, or faults; its message is one line. The race goes on without it."""


@dataclass(frozen=True)
class Rules:
    """How a race is run.

    ``first`` samples of every config, then ``batch`` a round up to ``most``. ``error`` is the probability with which the best
    may be dropped, and ``least`` the ratio that it must be slower by; ``close`` is the ratio that is not worth more samples: the race
    ends when no other config can, with that confidence, be quicker than the leader by more. Those within ``near`` of the leader then
    race once more, up to ``last`` samples each (0: they do not), fewer where these take more than ``spent`` seconds in all. ``noise``
    is the relative spread to expect before any is measured, and counts as ``weight`` degrees of freedom.
    """

    first: int = 3
    batch: int = 4
    most: int = 12
    least: float = 0.03
    near: float = 0.04
    last: int = 48
    spent: float = 0.1
    error: float = 0.05
    close: float = 0.0025
    noise: float = 0.01
    weight: float = 4.0


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
        self._numbers = random.Random(0)  # noqa: S311 - no secret
        rounds = 1 + math.ceil((max(self.rules.most, self.rules.last) - self.rules.first) / self.rules.batch)
        self._error = self.rules.error / max(1, entrants * rounds)

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
        self._drop()
        return lane

    def refuse(self, config: str, reason: str, like: str = "") -> None:
        """Notes a config that is not timed, and why; ``like`` as a lane has it."""
        self.lanes[config] = Lane(config, out=reason, like=like)

    def finish(self) -> Outcome:
        """Spends samples on the configs that are left until the leader is clear, or each has the most of them."""
        clear = self._spend()
        if self.rules.last:
            self._drop(self.rules.near)
            if len(near := self._running()) > 1:
                clear = self._last(near)
        return self.outcome(clear)

    def _last(self, near: Sequence[Lane]) -> bool:
        """Races these once more. Whether the leader is clear."""
        most = min(self.rules.last, max(_FEWEST, int(self.rules.spent / sum(lane.median for lane in near))))
        rules = replace(self.rules, first=0, batch=1, most=most, least=0.0, last=0)
        again = Race(self._measure, len(near), rules)
        again.lanes = {lane.config: Lane(lane.config) for lane in near}
        for _ in range(_FEWEST):
            again._turn(again._running())
        clear = again._spend()
        self.lanes |= again.lanes
        self._known.clear()
        self._taken += again._taken
        return clear

    def _spend(self) -> bool:
        """Times those that may win, in turn. Whether the leader is clear."""
        clear = False
        while leader := self._leader():
            rivals = [lane for lane in self._running() if lane is not leader]
            common = self._common()
            close = [lane for lane in rivals if self._may_win(lane, leader, common)]
            clear = not close
            short = [lane for lane in (leader, *close) if len(lane.samples) < self.rules.most]
            if clear or not short:
                break
            self._turn(short)
            self._drop()
        return clear

    def _turn(self, lanes: Sequence[Lane]) -> None:
        """Times each of them, in random order: whatever comes and goes in the machine meets all alike."""
        for lane in self._numbers.sample(lanes, len(lanes)):
            self._time(lane, min(self.rules.batch, self.rules.most - len(lane.samples)))

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

    def _drop(self, near: float = math.inf) -> None:
        """Drops who is surely slower than the leader, and who most likely is, by more than ``near``."""
        leader, common = self._leader(), self._common()
        for lane in self._running():
            if leader is None or lane is leader:
                continue
            difference, margin = self._difference(lane, leader, common)
            if difference > max(math.log1p(self.rules.least), min(margin, max(_LIKELY * margin, math.log1p(near)))):
                lane.out = f"slower than the leader by {math.expm1(difference):.1%} ± {math.expm1(margin):.1%}"

    def _may_win(self, lane: Lane, leader: Lane, common: float) -> bool:
        """Whether it may be quicker than the leader by more than the rules call close."""
        difference, margin = self._difference(lane, leader, common)
        return difference - margin < -math.log1p(self.rules.close)

    def _difference(self, lane: Lane, leader: Lane, common: float) -> tuple[float, float]:
        """The logarithm of the ratio of times, and the margin within which it is not known."""
        ours, theirs = self._summary(lane), self._summary(leader)
        degrees = self.rules.weight + ours.count + theirs.count - 2
        error = math.sqrt(self._variance(ours, common) / ours.count + self._variance(theirs, common) / theirs.count)
        return ours.mean - theirs.mean, student(1 - self._error, degrees) * error

    def _variance(self, own: Summary, common: float) -> float:
        """The moderated variance of a config's samples."""
        return (self.rules.weight * common + own.squares) / (self.rules.weight + own.count - 1)

    def _common(self) -> float:
        """The variance of all configs together; what the rules expect counts among it."""
        every = [self._summary(lane) for lane in self.lanes.values() if lane.samples]
        weight, degrees = self.rules.weight, sum(own.count - 1 for own in every)
        return (weight * self.rules.noise**2 + sum(own.squares for own in every)) / (weight + degrees)

    def outcome(self, clear: bool = False) -> Outcome:
        """How things stand, without further samples."""
        lanes = tuple(sorted(self.lanes.values(), key=lambda lane: (bool(lane.out), lane.median)))
        leader = self._leader()
        if leader is None:
            return Outcome("", math.nan, math.nan, False, lanes, self._taken)
        own = self._summary(leader)
        quantile = student(1 - self.rules.error / 2, self.rules.weight + own.count - 1)
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
