"""How far the race's winner is from the best config of an exhaustive search: ``make bench-regret``.

Every sweep among the recordings was timed exhaustively on a real GPU. Here its samples are dealt out to the engine
(``tilescope.tuning.racing``) as it asks for them: in the recorded order first, then shuffled anew for each further trial; a
config that wants more than were recorded is dealt them again. The regret is the recorded median of the config that the race chose
over the best recorded median of all. No GPU takes part, so neither compiling nor the time of launches is in it.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tilescope.runs import recordings
from tilescope.table.case_table import gather
from tilescope.tuning import racing


@dataclass(frozen=True)
class Sweep:
    """One recorded sweep: its device, and each config's GPU times in seconds, in the recorded order."""

    name: str
    device: str
    times: dict[str, list[float]]

    @property
    def best(self) -> float:
        """The least median, in seconds."""
        return min(statistics.median(times) for times in self.times.values())

    def regret(self, config: str) -> float:
        """How much slower the config is than the best, as a ratio less 1."""
        return statistics.median(self.times[config]) / self.best - 1


def recorded(family: str = "") -> Iterator[Sweep]:
    """Every sweep of at least three timed configs among the recordings, or those of one family of kernels."""
    for of_family, loaded in recordings.sweeps():
        if not of_family.startswith(family):
            continue
        table = loaded.table[loaded.table["config"] != ""]
        found: dict[str, Sweep] = {}
        for case in gather(table):
            times = next((t for (metric, _), t in case.totals.items() if metric == "gpu_time" and len(t) > 1), None)
            if times:
                name = " ".join(case.key[part] for part in recordings.OF_SWEEP)
                sweep = found.setdefault(name, Sweep(name, loaded.run.device.name, {}))
                sweep.times[case.key["config"]] = list(times)
        yield from (sweep for sweep in found.values() if len(sweep.times) > 2)


def replayed(sweep: Sweep, numbers: random.Random | None) -> racing.Measure:
    """A ``measure`` that deals the sweep's samples out, in their order, or shuffled by ``numbers``."""
    decks = {config: list(times) for config, times in sweep.times.items()}
    for deck in decks.values():
        if numbers:
            numbers.shuffle(deck)
    dealt = dict.fromkeys(decks, 0)

    def measure(config: str, count: int) -> Sequence[float]:
        deck, start = decks[config], dealt[config]
        dealt[config] += count
        return [deck[place % len(deck)] for place in range(start, start + count)]

    return measure


@dataclass(frozen=True)
class Trial:
    """One replay: ``regret`` as a ratio, ``launches`` over those of the exhaustive search, ``time`` likewise.

    ``turns`` is the GPU time in seconds of the samples that were taken in turns, ``clear`` whether the leader was that.
    """

    regret: float
    launches: float
    time: float
    turns: float
    clear: bool


def trial(sweep: Sweep, numbers: random.Random | None, rules: racing.Rules | None = None) -> Trial:
    """One race over the sweep."""
    deal, spent = replayed(sweep, numbers), 0.0

    def measure(config: str, count: int) -> Sequence[float]:
        nonlocal spent
        dealt = deal(config, count)
        spent += sum(dealt)
        return dealt

    race = racing.Race(measure, len(sweep.times), rules)
    for config in sweep.times:
        race.offer(config)
    before = spent
    outcome = race.finish()
    return Trial(
        sweep.regret(outcome.winner),
        outcome.taken / sum(len(times) for times in sweep.times.values()),
        spent / sum(sum(times) for times in sweep.times.values()),
        spent - before,
        outcome.clear,
    )


def main(argv: Sequence[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Prints one line a sweep, and status 1 where a winner was further than 1 % from the best."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=20, help="replays of each sweep; the first in the recorded order")
    trials = parser.parse_args(argv).trials
    write("| sweep | configs | launches | GPU time | regret, median | regret, most | within 1 % |")
    write("|---|---|---|---|---|---|---|")
    missed = total = 0
    every: list[Trial] = []
    sweeps = list(recorded())
    for sweep in sweeps:
        found = [trial(sweep, random.Random(number) if number else None) for number in range(trials)]  # noqa: S311
        within = sum(one.regret <= 0.01 for one in found)
        missed, total, every = missed + trials - within, total + trials, every + found
        launches, time = (statistics.mean(getattr(one, name) for one in found) for name in ("launches", "time"))
        median, most = (take(one.regret for one in found) for take in (statistics.median, max))
        write(
            f"| {sweep.name} | {len(sweep.times)} | {launches:.0%} | {time:.0%} | {median:.2%} | {most:.2%} "
            f"| {within}/{trials} |"
        )
    launches, time = (statistics.mean(getattr(one, name) for one in every) for name in ("launches", "time"))
    devices = ", ".join(sorted({sweep.device for sweep in sweeps}))
    write(
        f"\n{len(sweeps)} sweeps recorded on {devices}: {total - missed} of {total} races within 1 % of the best, "
        f"with {launches:.0%} of the launches and {time:.0%} of the GPU time of timing every config as often as was recorded."
    )
    turns = sorted(one.turns for one in every)
    write(
        f"Turns took {statistics.median(turns) * 1e3:.0f} ms of the kernels' own time, nine in ten at most "
        f"{turns[int(0.9 * len(turns))] * 1e3:.0f} ms, each launch with a cold L2, which takes its own time."
    )
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
