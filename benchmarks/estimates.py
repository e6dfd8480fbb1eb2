"""How good the estimate is by which ``tilescope tune`` ranks configs without a GPU: ``python -m benchmarks.estimates``.

Weights are fitted to the recorded sweeps of all families but one, and judged on the sweeps of that family. The first line of each sweep
is the time of the config that the estimate puts first, over the best config's; the second is that of the best of the first five.
The last lines are the weights fitted to all sweeps, which ``tilescope.models.config_estimate.WEIGHTS`` holds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from tilescope.models import config_estimate
from tilescope.runs import recordings
from tilescope.table.case_table import gather

#: How much less a config counts in the fit, for each doubling of its time over the best.
_LESS = 1.0
#: Keeps weights of costs that hardly vary near 0.
_RIDGE = 0.01


@dataclass(frozen=True)
class Config:
    """One config of a sweep: its GPU time in seconds, and its costs."""

    time: float
    costs: Mapping[str, float]


@dataclass(frozen=True)
class Sweep:
    """A recorded sweep of one kind of kernel."""

    family: str
    name: str
    kind: str
    configs: tuple[Config, ...]

    def judged(self, weights: Mapping[str, Mapping[str, float]]) -> tuple[float, float]:
        """The time of the first config by the estimate, and of the best of the first five, over the best config's time.

        Configs with the same estimate share their place: the mean of their times counts.
        """
        best = min(config.time for config in self.configs)
        ranked = sorted(self.configs, key=lambda config: estimate(weights[self.kind], config))
        least = estimate(weights[self.kind], ranked[0])
        first = statistics.mean(c.time for c in ranked if estimate(weights[self.kind], c) <= least + 1e-9)
        return first / best, min(config.time for config in ranked[:5]) / best


def estimate(weights: Mapping[str, float], config: Config) -> float:
    """The weighted sum of the config's costs."""
    return sum(weights[name] * value for name, value in config.costs.items())


def recorded() -> list[Sweep]:
    """The recorded sweeps of at least three timed configs."""
    found: dict[tuple[str, ...], list[tuple[str, Config]]] = {}
    for family, loaded in recordings.sweeps():
        for case in gather(loaded.table[loaded.table["config"] != ""]):
            time, costs = case.gpu_time(), config_estimate.costs(case, loaded.run.device.multiprocessors)
            if time and costs:
                name = " ".join(case.key[part] for part in recordings.OF_SWEEP)
                found.setdefault((family, name, costs[0]), []).append(Config(time.value, costs[1]))
    return [Sweep(*key, tuple(configs)) for key, configs in found.items() if len(configs) > 2]


def fitted(sweeps: Iterable[Sweep]) -> dict[str, dict[str, float]]:
    """Weights by kind and cost, none below 0: least squares within sweeps, each sweep counting the same."""
    by_kind: dict[str, list[Sweep]] = {}
    for sweep in sweeps:
        by_kind.setdefault(sweep.kind, []).append(sweep)
    return {kind: _fitted(list(config_estimate.WEIGHTS[kind]), of_kind) for kind, of_kind in by_kind.items()}


def _fitted(names: Sequence[str], sweeps: Sequence[Sweep]) -> dict[str, float]:
    squares, products = _RIDGE * np.eye(len(names)), np.zeros(len(names))
    for sweep in sweeps:
        times = np.array([math.log2(config.time) for config in sweep.configs])
        counts = np.exp(-_LESS * (times - times.min()))
        counts /= counts.sum()
        costs = np.array([[config.costs[name] for name in names] for config in sweep.configs])
        costs, times = costs - counts @ costs, times - counts @ times
        squares += costs.T @ (counts[:, None] * costs)
        products += costs.T @ (counts * times)
    weights = np.zeros(len(names))
    for _ in range(1000):
        for place in range(len(names)):
            rest = products[place] - squares[place] @ weights + squares[place, place] * weights[place]
            weights[place] = max(0.0, rest / squares[place, place])
    return dict(zip(names, (float(weight) for weight in weights), strict=True))


def held_out(sweeps: Sequence[Sweep]) -> dict[str, tuple[float, float]]:
    """``Sweep.judged`` by name, each with weights of the other families."""
    found = {}
    for family in dict.fromkeys(sweep.family for sweep in sweeps):
        weights = fitted(sweep for sweep in sweeps if sweep.family != family)
        found |= {sweep.name: sweep.judged(weights) for sweep in sweeps if sweep.family == family}
    return found


def main(write: Callable[[str], object] = print) -> int:
    """Prints a line a sweep, the means, and the weights."""
    sweeps = recorded()
    judged = held_out(sweeps)
    write("| sweep | configs | first | best of five | mean of all |\n|---|---|---|---|---|")
    for sweep in sweeps:
        first, five = judged[sweep.name]
        times = [config.time for config in sweep.configs]
        write(f"| {sweep.name} | {len(times)} | {first:.3f} | {five:.3f} | {statistics.mean(times) / min(times):.3f} |")
    first, five = (statistics.mean(found) for found in zip(*judged.values(), strict=True))
    write(f"\nmean of {len(sweeps)} sweeps: first {first:.3f}, best of five {five:.3f}")
    for kind, weights in fitted(sweeps).items():
        write(f"{kind}: {', '.join(f'{name} {weight:.3f}' for name, weight in weights.items())}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
