"""The race of configs: all are timed briefly, those certainly slower are dropped, and the close ones are timed further.

Decisions are made on logarithms of times, where a difference is a ratio. A config's variance is moderated, because few samples
may agree by chance: it is shrunk towards the variance of all configs together,

    s² = (d0 s0² + d s_i²) / (d0 + d),    t = (m_i - m_j) / sqrt(s_i²/n_i + s_j²/n_j),

with ``d0`` degrees of freedom for the common variance (G. K. Smyth, Linear models and empirical Bayes methods for assessing
differential expression in microarray experiments, Statistical Applications in Genetics and Molecular Biology 3 (2004), eq. 3).
Dropping by such bounds is a Hoeffding race (O. Maron, A. Moore, Hoeffding Races, NIPS 6 (1993)) with Student's bound instead of
Hoeffding's, because times have no upper limit. The error is divided over configs and rounds (Bonferroni), so that the best
config is dropped with a probability of at most ``error`` if logarithms of times are normal. Outliers are clipped to ``_CUT``
times the spread around the config's median.

Consecutive samples are not independent: an H200 that reads from HBM is 2 % slower for a millisecond or two, then faster again.
Therefore small differences drop no config early. The remaining configs take turns, one sample each in random order, and only
those samples decide between them. Pure.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

#: Takes a config's name and a count; returns as many samples in seconds, fewer or none where it fails.
Measure = Callable[[str, int], Sequence[float]]
_CUT = 3.0
#: The weight of the relative spread that is assumed before any measurement, in degrees of freedom.
_WEIGHT = 4.0


class ConfigFailed(Exception):
    """A config that does not compile, cannot be launched, or faults. The race continues without it. The message is one line."""


@dataclass(frozen=True)
class Rules:
    """The rules of a race.

    Each config takes up to ``first`` samples when it comes, and is dropped once it is certainly slower than the leader by the ratio
    ``least``. A single sample may be too long by chance: it drops a config that is slower by the ratio ``alone``. Those that remain
    take ``fewest`` turns, from which outliers are clipped, to ``turns``, or fewer once these take ``spent`` seconds in all. In the turns a
    config is dropped when it is certainly slower, and not timed again when it cannot be faster than the leader by the ratio
    ``close``. ``error`` is the accepted probability that the best is dropped. ``noise`` is the relative spread of a config's samples
    that is assumed before any.
    """

    first: int = 3
    least: float = 0.03
    alone: float = 1.0
    fewest: int = 5
    turns: int = 32
    spent: float = 0.1
    close: float = 0.005
    error: float = 0.05
    noise: float = 0.01


@dataclass
class Lane:
    """One config in the race: its ``samples`` in seconds, and the reason why it is ``out``, empty while it is in.

    ``like`` names a config with the same launches of the same code, whose time stands for this one's.
    """

    config: str
    samples: list[float] = field(default_factory=list)
    out: str = ""
    like: str = ""

    @property
    def median(self) -> float:
        """Seconds; infinite without samples."""
        return statistics.median(self.samples) if self.samples else math.inf

    @property
    def summary(self) -> Summary:
        return _summarised(tuple(self.samples))


@dataclass(frozen=True)
class Outcome:
    """The end of a race. ``winner`` is empty where no config could be timed.

    ``lanes`` has every config, the fastest first. ``clear`` is False where the race ended at the limit of turns. ``taken`` counts
    all samples, discarded ones too.
    """

    winner: str
    clear: bool
    lanes: tuple[Lane, ...]
    taken: int = 0


class Race:
    """A race over configs that come one by one, as they are compiled.

    ``entrants`` is the largest number of configs that may come; the error is divided over them. The ``baseline`` is a config that
    is never dropped, so that it takes turns with the winner.
    """

    def __init__(self, measure: Measure, entrants: int, rules: Rules | None = None, baseline: str = "") -> None:
        self.rules = rules or Rules()
        self.lanes: dict[str, Lane] = {}
        self.baseline = baseline
        self._measure = measure
        self._taken = 0
        self._error = self.rules.error / max(1, entrants * (1 + self.rules.turns))

    def offer(self, config: str, known: Sequence[float] = ()) -> Lane:
        """Takes the first samples of a new config, or its ``known`` ones, and drops configs that are certainly slower."""
        lane = self.lanes[config] = Lane(config, list(known))
        while not known and not lane.out and len(lane.samples) < self.rules.first:
            self._time(lane, 1)
            self._drop(self.rules.least if len(lane.samples) > 1 else self.rules.alone, lane)
        self._drop(self.rules.least)
        return lane

    def refuse(self, config: str, reason: str, like: str = "") -> None:
        """Notes a config that is not timed, with its reason. A config ``like`` the baseline takes its place."""
        self.lanes[config] = Lane(config, out=reason, like=like)
        if config == self.baseline and like:
            self.baseline = like
            if self.lanes[like].samples:
                self.lanes[like].out = ""

    def finish(self) -> Outcome:
        """Lets the remaining configs take turns until the leader is clear or the limit of turns is reached."""
        near = self._running()
        if len(near) < 2:
            return self.outcome(clear=True)
        again = Race(self._measure, len(near), self.rules, self.baseline)
        again.lanes = {lane.config: Lane(lane.config) for lane in near}
        turns = int(self.rules.spent / sum(lane.median for lane in near))
        clear = again._turns(min(self.rules.turns, max(self.rules.fewest, turns)))
        self.lanes |= again.lanes
        self._taken += again._taken
        return self.outcome(clear)

    def _turns(self, most: int) -> bool:
        """Times the possible winners once a turn, in random order so that drifts of the machine affect all alike.

        Returns whether the leader is clear.
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
        return min(self._running(), key=lambda lane: lane.summary.mean, default=None)

    def _drop(self, least: float, only: Lane | None = None) -> None:
        """Drops configs, or ``only`` one, that are certainly slower than the leader by more than the ratio ``least``."""
        leader, common = self._leader(), self._common()
        for lane in self._running():
            if leader is None or lane is leader or lane.config == self.baseline or lane is not (only or lane):
                continue
            difference, margin = self._difference(lane, leader, common)
            if difference > max(math.log1p(least), margin):
                lane.out = f"slower than the leader by {math.expm1(difference):.1%} ± {math.expm1(margin):.1%}"

    def _may_win(self) -> list[Lane]:
        """The leader, and configs that may be faster than it by more than the ratio ``close``."""
        leader, common = self._leader(), self._common()
        found: list[Lane] = []
        for lane in self._running():
            difference, margin = self._difference(lane, leader, common) if leader else (0.0, 0.0)
            if lane is leader or difference - margin < -math.log1p(self.rules.close):
                found.append(lane)
        return found

    def _difference(self, lane: Lane, leader: Lane, common: float) -> tuple[float, float]:
        """The logarithm of the ratio of times, and the half-width of its confidence interval."""
        ours, theirs = lane.summary, leader.summary
        degrees = _WEIGHT + ours.count + theirs.count - 2
        moderated = [(_WEIGHT * common + own.squares) / (_WEIGHT + own.count - 1) / own.count for own in (ours, theirs)]
        return ours.mean - theirs.mean, student(1 - self._error, degrees) * math.sqrt(sum(moderated))

    def _common(self) -> float:
        """The variance of all configs together, with the assumed noise at its weight."""
        every = [lane.summary for lane in self.lanes.values() if lane.samples]
        degrees = sum(own.count - 1 for own in every)
        return (_WEIGHT * self.rules.noise**2 + sum(own.squares for own in every)) / (_WEIGHT + degrees)

    def outcome(self, clear: bool = False) -> Outcome:
        """The present state as an outcome, without further samples."""
        lanes = tuple(sorted(self.lanes.values(), key=lambda lane: (bool(lane.out), lane.median)))
        leader = self._leader()
        return Outcome(leader.config if leader else "", clear and leader is not None, lanes, self._taken)


def leads(times: Mapping[str, Sequence[float]], rules: Rules) -> bool:
    """Whether no config can be faster, after these times of each, than the leader by more than the ratio ``rules.close``.

    Each has one time a round. They are compared in pairs within their round, because the clock drifts from round to round for all alike.
    """
    logs = {config: [math.log(time) for time in samples] for config, samples in times.items()}
    leader = min(logs, key=lambda config: statistics.fmean(logs[config]))
    error = rules.error / (len(logs) * (1 + rules.turns))
    for config in logs.keys() - {leader}:
        apart = [own - best for own, best in zip(logs[config], logs[leader], strict=True)]
        mean, degrees = statistics.fmean(apart), _WEIGHT + len(apart) - 1
        # A difference has the noise of two times.
        squares = 2 * _WEIGHT * rules.noise**2 + sum((value - mean) ** 2 for value in apart)
        margin = student(1 - error, degrees) * math.sqrt(squares / degrees / len(apart))
        if mean - margin < -math.log1p(rules.close):
            return False
    return True


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
    """The count of a config's samples, the mean of their logarithms, and the sum of squared distances from it."""

    count: int
    mean: float
    squares: float


@functools.lru_cache(maxsize=4096)
def _summarised(samples: tuple[float, ...]) -> Summary:
    """The summary of samples; outliers are clipped where there are at least five."""
    logs = [math.log(value) for value in samples]
    middle = statistics.median(logs)
    spread = 1.4826 * statistics.median(abs(value - middle) for value in logs)
    if len(logs) >= 5 and spread:
        logs = [min(max(value, middle - _CUT * spread), middle + _CUT * spread) for value in logs]
    mean = sum(logs) / len(logs)
    return Summary(len(logs), mean, sum((value - mean) ** 2 for value in logs))
