"""Sources of values: the collectors, other tools and the model. Each collector has one line here. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

_FLUSHED = "L2 flushed before each call, by reads that are evicted last"


@dataclass(frozen=True)
class Collector:
    """One collector.

    ``doing`` is its text in a progress line, ``finds`` its text in the profile form. ``module`` is its module below
    ``tilescope.collectors`` where that is not ``name``, or a whole dotted path. ``measured`` collectors observe hardware; the
    others predict. Those ``on_gpu`` need the GPU to themselves; beside those ``timed`` the CPU rests, too. ``caches`` says how the GPU's caches are prepared before each
    timed or counted call or launch.
    """

    name: str
    doing: str
    finds: str
    module: str = ""
    measured: bool = False
    on_gpu: bool = False
    caches: str = ""
    timed: bool = False


#: In the order they run. ``check`` comes before all timing. Of those that measure, the last is the most direct.
COLLECTORS = (
    Collector("check", "comparing with the reference", "are the results right?", measured=True),
    Collector("compiler", "compiling", "registers, occupancy"),
    Collector("interpreter", "interpreting", "bytes, traffic"),
    Collector("events", "timing", "time, peak memory", measured=True, on_gpu=True, caches=_FLUSHED, timed=True),
    Collector("torch_profiler", "tracing", "every launch", measured=True, on_gpu=True, caches=_FLUSHED, timed=True),
    Collector("cupti", "counting", "bytes moved", "cupti.counters", measured=True, on_gpu=True,
              caches="L2 flushed before the case, by reads that are evicted last; kept between its launches"),
    Collector("ncu", "counting", "hardware counters", "ncu.counters", measured=True, on_gpu=True,
              caches="all caches emptied before each launch and replay pass"),
)  # fmt: skip
#: Run only on request. They give no rows of the table, or rows of another source.
OPTIONAL = (
    Collector("ncu_rules", "running", "NVIDIA's own advice", "ncu.rules", on_gpu=True),
    Collector("ncu_source", "sampling", "stalls of each line", "ncu.source", on_gpu=True),
    Collector("ncu_activity", "sampling", "activity over a launch's time", "ncu.activity", on_gpu=True),
    Collector("lanes", "recording", "waits of each warp", "lanes.collector", measured=True, on_gpu=True,
              caches=_FLUSHED),
    Collector("energy", "repeating", "joules of a call", measured=True, on_gpu=True,
              caches="as calls one after the other leave them"),
    Collector("race", "racing", "the fastest config", "tilescope.tuning.race", on_gpu=True, caches=_FLUSHED, timed=True),
)  # fmt: skip
#: Other tools whose files ``tilescope open`` reads. ``chrome_trace`` is the unknown tool of a trace that does not name one.
#: Values from files of ncu and torch.profiler have the source of the collectors of those names.
TOOLS = ("chrome_trace", "proton", "tritonparse", "inductor", "helion")
#: All of them by name.
KNOWN = {collector.name: collector for collector in (*COLLECTORS, *OPTIONAL)}

#: Collectors of hardware counters, the one with the most counters first.
COUNTERS = ("ncu", "cupti")
#: Collectors that rules of the advice read.
_READ = ("compiler", "interpreter", "ncu")
_MEASURED = [collector.name for collector in (*OPTIONAL, *COLLECTORS) if collector.measured]
#: Sources that observe hardware; the others predict.
MEASURED = frozenset([*_MEASURED, *TOOLS])
#: Every source, most direct first. ``model`` is a formula over declared costs.
SOURCES = (*reversed(_MEASURED), *TOOLS, *(one.name for one in COLLECTORS if not one.measured), "model")


def lacking(known: Collection[str]) -> list[str]:
    """The collectors that rules of the advice read and that are not among the sources ``known``. One that counts is enough."""
    counted = COUNTERS if {*COUNTERS} & {*known} else ()
    return [name for name in _READ if name not in (*known, *counted)]
