"""Rules on launches that are too short, and on launch overhead. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.models.advice.finding import Bound, Finding
from tilescope.models.advice.subject import Subject
from tilescope.table import units


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
