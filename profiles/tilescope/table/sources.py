"""Where values come from: a line for each collector, from which everything else finds it, and the model. Pure."""

from __future__ import annotations

from dataclasses import dataclass

_FLUSHED = "L2 flushed by reading before each call"


@dataclass(frozen=True)
class Collector:
    """One collector.

    ``doing`` is what a progress line says of it, ``finds`` what the form says that it finds out. ``module`` is where it is
    below ``tilescope.collectors``, if not under its name, or its whole path. ``measured`` collectors observe hardware, the
    others predict; those ``on_gpu`` need the GPU to themselves. ``caches`` says what is done to the GPU's caches before a call
    or launch that is timed or counted.
    """

    name: str
    doing: str
    finds: str
    module: str = ""
    measured: bool = False
    on_gpu: bool = False
    caches: str = ""


#: In the order they run. ``check`` compares results with the reference before anything is timed; of those that measure,
#: the last is the most direct.
COLLECTORS = (
    Collector("check", "comparing with the reference", "are the results right?", measured=True),
    Collector("compiler", "compiling", "registers, occupancy"),
    Collector("interpreter", "interpreting", "bytes, traffic"),
    Collector("events", "timing", "time, peak memory", measured=True, on_gpu=True, caches=_FLUSHED),
    Collector("torch_profiler", "tracing", "every launch", measured=True, on_gpu=True, caches=_FLUSHED),
    Collector("cupti", "counting", "bytes moved", "cupti.counters", measured=True, on_gpu=True,
              caches="L2 flushed by reading before the case, kept between its launches"),
    Collector("ncu", "counting", "hardware counters", "ncu.counters", measured=True, on_gpu=True,
              caches="all caches emptied before each launch and replay pass"),
)  # fmt: skip
#: Run only when they are named, and give no rows of the table, or rows of another source.
OPTIONAL = (
    Collector("ncu_rules", "running", "NVIDIA's own advice", "ncu.rules", on_gpu=True),
    Collector("ncu_source", "sampling", "stalls of each line", "ncu.source", on_gpu=True),
    Collector("race", "racing", "the fastest config", "tilescope.tuning.race", on_gpu=True, caches=_FLUSHED),
)
#: Other tools that see launches, whose files ``tilescope open`` reads; ``chrome_trace`` is one that its trace does not name.
#: Values from files of ncu and torch.profiler have the source of our collectors of those names.
TOOLS = ("chrome_trace", "proton", "tritonparse", "inductor", "helion")
#: All of them by name.
KNOWN = {collector.name: collector for collector in (*COLLECTORS, *OPTIONAL)}

#: Those that read hardware counters, the one that reads most of them first.
COUNTERS = ("ncu", "cupti")
_MEASURED = [collector.name for collector in COLLECTORS if collector.measured]
#: Sources that observed hardware; the others predict.
MEASURED = frozenset([*_MEASURED, *TOOLS])
#: Provenance of a value, most direct first. ``model`` is a formula over declared costs.
SOURCES = (*reversed(_MEASURED), *TOOLS, *(one.name for one in COLLECTORS if not one.measured), "model")
