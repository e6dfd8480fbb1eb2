"""One search: races configs as the compiler finishes them, and remembers the results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tilescope.tuning import racing
from tilescope.tuning.memory import DEFAULT, LIKE, Memory, Problem, Timing, WinnersError

Kernels = Sequence[Mapping[str, Any]]
#: A text that is equal for configs with the same launches of the same code; empty where these are not known.
Launched = Callable[[str, Kernels], str]


@dataclass(frozen=True)
class Compiled:
    """The result for a config: the reason why it cannot run well, or empty, and the resources of each kernel that it launches.

    A reason is ``certain`` unless the machine's state may have caused it. An uncertain one is not remembered.
    """

    reason: str = ""
    kernels: Kernels = ()
    certain: bool = True

    def again(self) -> Compiled:
        """The same result for another config, without the time of compiling."""
        kernels = [{name: value for name, value in kernel.items() if name != "compile_time"} for kernel in self.kernels]
        return replace(self, kernels=kernels)


def run(
    race: racing.Race,
    known: Mapping[str, Timing],
    compiled: Iterable[tuple[str, Compiled]],
    *,
    launched: Launched = lambda config, kernels: "",
    on_compiled: Callable[[str, Compiled], None] = lambda config, found: None,
    more: bool = True,
) -> racing.Outcome:
    """Races the ``known`` configs and then the ``compiled`` ones. ``on_compiled`` is called with each of these before it is timed.

    Of configs with the same launches only the first is timed. Nothing is timed unless there is ``more`` than what is known.
    """
    first: dict[str, str] = {}
    for config, timing in known.items():
        if timing.samples:
            race.offer(config, timing.samples)
            first.setdefault(launched(config, timing.facts.get("kernels", ())), config)
        else:
            race.refuse(config, timing.reason, str(timing.facts.get(LIKE, "")))
    for config, found in compiled:
        on_compiled(config, found)
        made = "" if found.reason else launched(config, found.kernels)
        twin = first.setdefault(made, config) if made else config
        if twin != config:
            race.refuse(config, f"not timed: the same code, launched alike, as {twin}", twin)
        elif found.reason:
            race.refuse(config, found.reason)
        else:
            race.offer(config)
    return race.finish() if more else race.outcome()


def found_out(race: racing.Race, known: Mapping[str, Timing]) -> list[racing.Lane]:
    """The configs with a new result: those that were not ``known`` before, and those that were timed again."""
    return [
        lane
        for name, lane in race.lanes.items()
        if name not in known or (lane.samples and tuple(lane.samples) != known[name].samples)
    ]


def keep(
    kept: Memory,
    problem: Problem,
    race: racing.Race,
    known: Mapping[str, Timing],
    *,
    facts: Mapping[str, dict[str, Any]],
    certain: Callable[[racing.Lane], object],
) -> None:
    """Stores the race's new results with each config's ``facts``, except those that are not ``certain``.

    A known timing that was not made again keeps its date. Warns where nothing can be stored.
    """
    at, timings = datetime.now(UTC).isoformat(timespec="seconds"), dict[str, Timing]()
    for lane in filter(certain, found_out(race, known)):
        facts[lane.config].update({LIKE: lane.like} if lane.like else {})
        timings[lane.config] = Timing(tuple(lane.samples), lane.out, at, facts[lane.config])
    try:
        kept.keep(problem, timings)
    except WinnersError as error:
        warnings.warn(str(error), stacklevel=2)


def work(config: Mapping[str, int]) -> float:
    """A relative estimate (log2) of a config's compile time: elements of its blocks a thread, weighed by stages.

    Compilers unroll a thread's elements, so the code grows with them.
    """
    blocks = [math.log2(value) for name, value in config.items() if name not in _LAUNCH and value > 1]
    return (
        sum(blocks)
        - math.log2(max(1, config.get("num_warps", 4)))
        + 0.5 * math.log2(max(1, config.get("num_stages", 1)))
    )


_LAUNCH = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg"})


def order(configs: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The names of the configs in the order to compile them: the default, then those that take longest."""
    return sorted(configs, key=lambda name: (name != DEFAULT, -work(configs[name])))
