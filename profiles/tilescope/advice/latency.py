"""Rules on waiting: launches too small to matter, a CPU that is late, and what warps wait for. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tilescope.advice.finding import Bound, Finding
from tilescope.advice.subject import Launch, Subject
from tilescope.metrics import METRICS

#: Launches shorter than this, in seconds, spend a good part of their time starting and draining.
_SHORT = 5e-6
#: Below this share of the floor a launch does something else than its work.
_IDLE = 0.6
#: A stall below this share of a warp's time explains nothing.
_SHARE = 0.3

#: Why a warp waits, and what helps, by ncu's name of the stall (Nsight Compute, Kernel Profiling Guide, "Warp Stall
#: Reasons"). ``selected`` and ``not_selected`` are warps that could run.
_STALLS = {
    "long_scoreboard": (
        "data from L2 or HBM",
        "Have more loads in flight: more num_stages in a loop that loads, more warps (num_warps, or a smaller BLOCK "
        "that lets more blocks fit), or all loads of an iteration before the first use.",
    ),
    "short_scoreboard": (
        "shared memory or special functions",
        "Exchange less between threads: fewer tl.trans, tl.sum across warps and layout changes, and cheaper functions "
        "(tl.exp2 for tl.exp, with log2(e) folded into a factor).",
    ),
    "barrier": (
        "the other warps of their block",
        "Make the block smaller: fewer num_warps, so that a reduction stays in one warp, or combine several reductions "
        "into one.",
    ),
    "lg_throttle": (
        "the queue of global loads and stores",
        "Issue fewer and wider loads: 16 bytes a thread, and none of what is loaded already.",
    ),
    "mio_throttle": (
        "the queue of shared-memory instructions",
        "Issue fewer shared-memory instructions: larger tiles, wider accesses, fewer reductions.",
    ),
    "math_pipe_throttle": (
        "busy arithmetic pipes",
        "Do less arithmetic: hoist what does not change out of the loop, and use tl.dot for products.",
    ),
    "gmma": ("the tensor cores", "Larger tiles, or more num_stages, keep the tensor cores fed."),
    "wait": (
        "the fixed latency of instructions",
        "Give each thread more independent work: a larger BLOCK a warp, or an unrolled loop (tl.static_range).",
    ),
    "drain": ("stores to leave at the end", "Store less at the end of a program, or make fewer, longer programs."),
    "membar": ("memory fences", "Use fewer atomics and fences: relaxed ones (sem='relaxed'), or partial sums."),
    "no_instruction": (
        "instructions to fetch",
        "Make the code shorter: unroll less (tl.range for tl.static_range), smaller tiles.",
    ),
    "imc_miss": ("constants to fetch", "Very short programs wait for their arguments: more work a program."),
    "branch_resolving": ("branches", "Replace branches by masks (tl.where), or decide with tl.constexpr."),
    "sleeping": ("a sleep of their own", "Spin less: a lock or a flag makes warps wait for another program."),
}  # fmt: skip
_REASONS = tuple(name.removeprefix("stall_") for name in METRICS if name.startswith("stall_"))


def launch_bound(subject: Subject) -> Iterator[Finding]:
    """Work that is small beside a launch. Bound: launches / 1, were they one; a single one cannot be bounded."""
    count, time = subject.row["launches"], subject.row["gpu_time"]
    if not subject.measured or not count or time / count >= _SHORT or not subject.row["floor_fraction"] < _IDLE:
        return
    many = f"{count} launches" if count > 1 else "The launch"
    each = " each" if count > 1 else ""
    yield subject.finding(
        "launch-bound",
        f"{many} of {time / count * 1e6:.1f} µs{each}, for work of {subject.row['floor'] * 1e6:.2f} µs",
        "Starting and draining is most of it: do more in a launch (fuse the operations, batch several problems in one "
        "grid), and replay the sequence as a CUDA graph.",
        [subject.of_row("gpu_time", subject.row["time_source"]), subject.total("algorithm_bytes_read", "model")],
        subject.bound(float(count), "launches / 1") if count > 1 else None,
    )


def late_cpu(subject: Subject) -> Iterator[Finding]:
    """The CPU launches too late. Bound, on the interval: interval / graph replay, else interval / GPU time."""
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
        f"The CPU is late: the call takes {interval.value / against.value:.1f}× what the GPU needs",
        "Replay the call as a CUDA graph, or keep the GPU ahead by launching without waiting; in Triton's launch "
        "itself, fewer arguments and a precompiled kernel (fn.warmup) help. In a model that queues work ahead this "
        "does not show.",
        [interval, graph, time],
        Bound(interval.value / against.value, formula, "interval"),
    )


def longest_stall(subject: Subject) -> Iterator[Finding]:
    """What warps wait for most, where no roof is near. Bound: 1 / (1 - its share of a warp's cycles)."""
    if not subject.measured or subject.row["bound"] != "latency":
        return
    for launch in subject.launches:
        found = {reason: value for reason in _REASONS if (value := launch.get(f"stall_{reason}", "ncu"))}
        cycles = sum(value.value for value in found.values())
        reason = max(_STALLS.keys() & found.keys(), key=lambda name: (found[name].value, name), default=None)
        if reason is None or not cycles or found[reason].value / cycles < _SHARE:
            continue
        yield _stalled(subject, launch, reason, found[reason].value / cycles)


def _stalled(subject: Subject, launch: Launch, reason: str, share: float) -> Finding:
    meaning, remedy = _STALLS[reason]
    return subject.finding(
        "longest-stall",
        f"Warps wait {share * 100:.0f} % of their cycles for {meaning}",
        remedy,
        [launch.get(f"stall_{reason}", "ncu"), launch.get("achieved_occupancy", "ncu")],
        subject.bound(1 / (1 - share), "1 / (1 - share of the stall)", launch) if share < 1 else None,
        launch=launch,
    )
