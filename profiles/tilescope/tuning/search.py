"""One search: races configs as the compiler finishes them, skips those that cannot win, and remembers the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from tilescope.tuning import racing
from tilescope.tuning.memory import LIKE, Memory, Problem, Timing

Kernels = Sequence[Mapping[str, Any]]
#: The least possible time of a config in seconds, from its kernels; 0 where it is not known.
Floor = Callable[[Kernels], float]
#: A text that is equal for configs with the same launches of the same code; empty where these are not known.
Launched = Callable[[str, Kernels], str]


class Compiled(Protocol):
    """The compiler's answer for a config: the reason why it cannot run well, or empty, and each kernel's resources.

    A reason that is not ``certain`` is not remembered.
    """

    @property
    def reason(self) -> str: ...

    @property
    def kernels(self) -> Sequence[Mapping[str, Any]]: ...

    @property
    def certain(self) -> bool: ...


def run(
    race: racing.Race,
    known: Mapping[str, Timing],
    compiled: Iterable[tuple[str, Compiled]],
    *,
    floor: Floor = lambda kernels: 0.0,
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
        elif reason := found.reason or hopeless(race, floor(found.kernels)):
            race.refuse(config, reason)
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

    A known timing that was not made again keeps its date.
    """
    lanes = [lane for lane in found_out(race, known) if certain(lane)]
    for lane in lanes:
        facts[lane.config].update({LIKE: lane.like} if lane.like else {})
    kept.keep(problem, {lane.config: (lane.samples, lane.out) for lane in lanes}, facts)


def hopeless(race: racing.Race, floor: float) -> str:
    """The reason why a config with a least time of ``floor`` seconds cannot win; empty where it may."""
    best = race.best
    if best is None or not floor > 0 or floor <= best:
        return ""
    return f"not timed: at best {floor * 1e6:.4g} µs, and the leader takes {best * 1e6:.4g} µs"


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
    """The names of the configs in the order to compile them: those that take longest first."""
    return sorted(configs, key=lambda name: -work(configs[name]))
