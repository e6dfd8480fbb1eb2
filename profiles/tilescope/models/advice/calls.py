"""Rules on the call as a whole: short launches, launch overhead, a config of a sweep that is faster than the default. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilescope.models import compare
from tilescope.models.advice.finding import Bound, Finding
from tilescope.models.advice.subject import Subject
from tilescope.table import units
from tilescope.table.case import parse_config
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues

#: The least ratio that makes a finding. Configs that run the same code, because they differ only in parameters of another pass,
#: differed by up to 0.8 %, and the interval of every fifth such pair excludes 1 (norms, H200, 2026-11-24).
_WORTH = 1.01


def launch_bound(subject: Subject) -> Iterator[Finding]:
    """Launches that are too short for their overhead. Bound: launches / the fewest possible, usually one.

    It has no bound where the launches are already the fewest.
    """
    if not subject.launch_bound:
        return
    count, time, fewest = subject.row["launches"], subject.row["gpu_time"], 1 + subject.two_passes
    many = f"{count} launches" if count > 1 else "The launch"
    each = " each" if count > 1 else ""
    yield subject.finding(
        "launch-bound",
        f"{many} of {time / count * 1e6:.1f} µs{each}, for work of {subject.row['floor'] * 1e6:.2f} µs",
        "Starting and draining is most of it: do more in a launch (fuse the operations, batch several problems in one "
        "grid), and replay the sequence as a CUDA graph.",
        [subject.of_row("gpu_time", subject.row["time_source"]), subject.total("algorithm_bytes_read", "model")],
        subject.bound(count / fewest, f"launches / {fewest}") if count > fewest else None,
    )


def late_cpu(subject: Subject) -> Iterator[Finding]:
    """Launch overhead: the GPU waits on the CPU. Bound of the interval: interval / graph replay, or interval / GPU time."""
    if not subject.row["cpu_bound"]:
        return
    interval, graph = subject.of_row("interval", "events"), subject.of_row("graph_time", "events")
    time = subject.of_row("gpu_time", subject.row["time_source"])
    against = graph or time
    if not (interval and against) or not against.value:
        return
    formula = "interval / CUDA-graph replay" if graph else "interval / GPU time"
    yield subject.finding(
        "late-cpu",
        f"Launch overhead: the call takes {units.times(interval.value / against.value)} its "
        + ("CUDA-graph replay" if graph else "GPU time"),
        "Replay the call as a CUDA graph, or keep the GPU ahead by launching without waiting; in Triton's launch "
        "itself, fewer arguments and a precompiled kernel (fn.warmup) help. In a model that queues work ahead this "
        "does not show.",
        [interval, graph, time],
        Bound(interval.value / against.value, formula, "interval", timed=graph is not None),
    )


def quicker_config(subject: Subject) -> Iterator[Finding]:
    """A config that is significantly faster than the default of the same sweep. Bound: the ratio of their times.

    It is significant if the interval of the ratio of medians excludes 1. A sweep without the default yields nothing,
    because the default may depend on the shape.
    """
    clocks = (("gpu_time", source) for source in GPU_TIME_SOURCES)
    clock = next((known for known in clocks if subject.case.totals.get(known)), None)
    if subject.case.key["config"] or clock is None:
        return
    timed = [(np.array(totals), other) for other in subject.configs if (totals := other.totals.get(clock))]
    times, best = min(timed, key=lambda known: float(np.median(known[0])), default=(np.array([]), None))
    if best is None or np.median(times) <= 0:
        return
    own = np.array(subject.case.totals[clock])
    ratio = float(np.median(own) / np.median(times))
    low, high = compare.interval(baseline=own, candidate=times)
    if low <= 1 or ratio < _WORTH:
        return
    config, key = parse_config(best.key["config"]), subject.case.key
    yield subject.finding(
        "quicker-config",
        f"A config of the sweep takes {_text(best, clock[1])}, the default {_text(subject.case, clock[1])}",
        f"Pass config={config} at {key['workload']}, or make it the default for such shapes. Only the {key['pass']} pass "
        "was timed with it here.",
        [subject.of_row("gpu_time", clock[1])],
        Bound(ratio, f"the default's median / the config's, 95 % interval {low:.3f} to {high:.3f}", timed=True),
    )


def _text(case: CaseValues, source: str) -> str:
    found = case.spread("gpu_time", source)
    return "{} ({} to {})".format(*(units.text(v, "second", 4) for v in found[:3])) if found else ""
