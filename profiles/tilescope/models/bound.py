"""The bound of a case (memory, compute or latency), and the sentence that explains it. Pure: row of ``summarise`` -> text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tilescope.hardware import ceilings, roofs
from tilescope.models import impossible
from tilescope.table import units
from tilescope.table.case_table import CaseValues, value_of
from tilescope.table.run import Device
from tilescope.table.sources import COUNTERS

#: From this share of a roof on, that roof bounds the case.
_SATURATED = 0.6
#: From this share of a roof on, the case counts as having reached it.
AT_ROOF = 0.85
#: Launches shorter than this, in seconds, spend much of their time on starting and draining.
_SHORT = 5e-6
#: Ratio of moved bytes to the algorithm's that is worth mentioning: below it are rounding, tails and metadata.
_EXTRA_BYTES = 1.1
#: The same ratio, below which bytes are missing: the last to be written are in L2 still when the launch ends.
_ALL_BYTES = 0.995
#: The states of a warp in which it waits: what it waits for, and a remedy where there is one.
WAITS: dict[str, tuple[str, str]] = {
    "long_scoreboard": ("data from L2 or HBM", "Have more loads in flight: more num_stages in a loop that loads, more warps (num_warps, or a "
        "smaller BLOCK that lets more blocks fit), or all loads of an iteration before the first use."),
    "short_scoreboard": ("shared memory or special functions", "Exchange less between threads: fewer tl.trans, tl.sum across warps and layout "
        "changes, and cheaper functions (tl.exp2 for tl.exp, with log2(e) folded into a factor)."),
    "barrier": ("the other warps of their block", "Make the block smaller: fewer num_warps, so that a reduction stays in one warp, or combine "
        "several reductions into one."),
    "lg_throttle": ("the queue of global loads and stores", "Issue fewer and wider loads: 16 bytes a thread, and none of what is loaded already."),
    "mio_throttle": ("the queue of shared-memory instructions", "Issue fewer shared-memory instructions: larger tiles, wider accesses, fewer "
        "reductions."),
    "math_pipe_throttle": ("busy arithmetic pipes", "Do less arithmetic: hoist what does not change out of the loop, and use tl.dot for products."),
    "gmma": ("the tensor cores", "Larger tiles, or more num_stages, keep the tensor cores fed."),
    "wait": ("the fixed latency of instructions", "Give each thread more independent work: a larger BLOCK a warp, or an unrolled loop "
        "(tl.static_range)."),
    "not_selected": ("their turn, as another warp was issued", "Instruction issue is the limit, and more warps do not help: execute fewer "
        "instructions a byte (wider accesses, what does not change hoisted out of the loop, a cheaper formula)."),
    "drain": ("stores to leave at the end", "Store less at the end of a program, or make fewer, longer programs."),
    "membar": ("memory fences", "Use fewer atomics and fences: relaxed ones (sem='relaxed'), or partial sums."),
    "no_instruction": ("instructions to fetch", "Make the code shorter: unroll less (tl.range for tl.static_range), smaller tiles."),
    "imc_miss": ("constants to fetch", "Very short programs wait for their arguments: more work a program."),
    "tex_throttle": ("the texture queue", ""),
    "branch_resolving": ("branches", "Replace branches by masks (tl.where), or decide with tl.constexpr."),
    "sleeping": ("a sleep of their own", "Spin less: a lock or a flag makes warps wait for another program."),
}  # fmt: skip


def bound(row: Mapping[str, Any]) -> str:
    """The case's bound: ``memory``, ``compute`` or ``latency``; empty where no cost is known.

    A prediction takes the larger of the two floors. A measurement takes the roof that the case comes close to, or latency
    where it is close to neither.
    """
    if not row["measured"] or not row["bound"]:
        return str(row["bound"])
    if max(memory_use(row), or_zero(row["performance_fraction"])) < _SATURATED:
        return "latency"
    return "compute" if or_zero(row["performance_fraction"]) > memory_use(row) else "memory"


def launch_bound(row: Mapping[str, Any]) -> bool:
    """Whether launches are so short that starting and draining dominate, and no roof is near."""
    return bool(row["bound"] == "latency" and row["gpu_time"] / (row["launches"] or 1) < _SHORT)


def memory_use(row: Mapping[str, Any]) -> float:
    """The share of the HBM roof in use, by the counted bytes where there are any."""
    needed = or_zero(row["bandwidth_fraction"])
    counted = row["bytes_source"] in COUNTERS and not row["bytes_cold"]
    moved = needed * or_zero(row["bytes_ratio"]) if counted else 0.0
    return max(needed, moved)


def sentence(row: Mapping[str, Any], case: CaseValues, device: Device) -> str:
    """A sentence on the case's bound with figures, and another for launch overhead.

    A case with impossible measurements gets only the reasons for that.
    """
    if wrong := impossible.reasons(case, device, str(row["pipe"])):
        return f"Impossible: {'; '.join(reason.said for reason in wrong)}."
    sentences = [_explain(row, case, device)]
    if row["cpu_bound"]:
        sentences.append(
            f"Launch overhead: the call takes {units.text(row['interval'], 'second')} for {units.text(row['gpu_time'], 'second')} of GPU time."
        )
    return " ".join(sentence for sentence in sentences if sentence)


def _explain(row: Mapping[str, Any], case: CaseValues, device: Device) -> str:
    if not row["measured"]:
        return _timed_only(row) or _predicted(row, device)
    if not row["bound"]:
        return f"Takes {units.text(row['gpu_time'], 'second')} of GPU time; no cost is declared to compare it with."
    return {"memory": _memory, "compute": _compute, "latency": _latency}[row["bound"]](row, case, device)


def _timed_only(row: Mapping[str, Any]) -> str:
    """The sentence for a case that only events timed, by graph replay where there is one, which is closest to GPU time."""
    seconds = row["interval"] if math.isnan(row["graph_time"]) else row["graph_time"]
    if not seconds > 0:  # not measured, or below the clock's resolution
        return ""
    floor = row["floor"]
    against = f", where the floor is {units.text(floor, 'second')} ({_percent(floor / seconds)})" if floor > 0 else ""
    return (
        f"Timed by events only: {units.text(seconds, 'second')} a call{against}; torch_profiler or ncu would say why."
    )


def _predicted(row: Mapping[str, Any], device: Device) -> str:
    parts = []
    if row["bound"] and row["floor"] > 0:
        limit = "HBM bandwidth" if row["bound"] == "memory" else f"{row['pipe']} rate"
        parts.append(
            f"Predicted, not measured: {row['bound']}-bound, at least {units.text(row['floor'], 'second')} at the {row['floor_origin']} "
            f"{limit} of {device.name}"
        )
    if not math.isnan(row["bytes_ratio"]):
        parts.append(f"its launches touch {units.times(row['bytes_ratio'])} the bytes the algorithm needs")
    if not math.isnan(row["blocks"]):
        parts.append(_occupancy(row))
    if row["spill_bytes"] > 0:
        parts.append(f"it spills {units.text(row['spill_bytes'], 'byte')} a thread")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if parts else ""


def above_roof(use: float, row: Mapping[str, Any], case: CaseValues) -> str:
    """The reasons, in brackets, why a case reaches more than 100 % of its HBM roof (``use``); empty where it does not."""
    if not _passes(use):
        return ""
    read, written = (value_of(known) for known in case.algorithm_bytes() or (None, None))
    counted = row["bytes_source"] in COUNTERS
    reasons = ["part of its results stayed in L2"] if counted and row["bytes_ratio"] < _ALL_BYTES else []
    reasons += ["part of its results may have stayed in L2"] if not counted and written > 0 else []
    reasons += ["it reads more than it writes, which is faster than a copy"] if read > written else []
    return f" ({' and '.join(reasons or ['the program that measured the roof is not the fastest'])})"


def above_rate(row: Mapping[str, Any]) -> str:
    """The same of a case's rate of operations."""
    return " (cuBLAS, which measured it, is not the fastest here)" if _passes(row["performance_fraction"]) else ""


def _passes(use: float) -> bool:
    """Whether a share of a roof is written as more than 100 %."""
    return use >= 1.005


def _memory(row: Mapping[str, Any], case: CaseValues, device: Device) -> str:
    use, ratio = memory_use(row), row["bytes_ratio"]
    roof = f"the {roofs.bandwidth(device, row['memory_roof'])}{above_roof(use, row, case)}"
    if row["bytes_source"] not in COUNTERS:
        return f"Memory-bound: the bytes the algorithm needs take {_percent(use)} of {roof}; no counters say what really moved."
    if row["bytes_cold"]:
        return (
            f"Memory-bound: the bytes the algorithm needs take {_percent(use)} of {roof}; its {row['launches']} launches move up to "
            f"{units.times(ratio)} of them, each launch counted with cold caches."
        )
    needed = f"{units.times(ratio)} the bytes the algorithm needs"
    if ratio < _ALL_BYTES:
        needed = f"{units.text(1 - ratio, 'ratio', 2)} less than its inputs and outputs: that part was still in L2"
    moved = f"Memory-bound: it reaches {_percent(use)} of {roof}. It moves {needed}"
    if ratio < 1 / _EXTRA_BYTES:
        return f"{moved}."
    if ratio <= _EXTRA_BYTES:
        rest = (
            "Only fusing with the operation before or after would make it faster"
            if use >= AT_ROOF
            else "More bytes in flight would bring it closer"
        )
        return f"{moved}. {rest}."
    launches = row["launches"]
    # One launch may not be able to do the work: a scale of the whole tensor needs all of it before its first use.
    if launches and launches > 1:
        most = units.times(row["gpu_time"] / row["least_time"])
        return f"{moved}. If its {launches} launches can be one, it could be up to {most} faster."
    return f"{moved}. Reading each byte once would by itself make it {units.times(ratio)} faster."


def _compute(row: Mapping[str, Any], case: CaseValues, device: Device) -> str:
    rate = units.text(row["performance"], ceilings.unit(row["pipe"]))
    found = roofs.roof(device, row["pipe"])
    what = f"{found.origin} {row['pipe']} rate" if found else f"{row['pipe']} rate"
    return f"Compute-bound: {rate} is {_percent(row['performance_fraction'])} of the {what}{above_rate(row)}."


def _latency(row: Mapping[str, Any], case: CaseValues, device: Device) -> str:
    launches = row["launches"] or 1
    each = row["gpu_time"] / launches
    if launch_bound(row):
        count = "one launch" if launches == 1 else f"{launches} launches"
        return (
            f"Launch-bound: {count} of {units.text(each, 'second')} where the work needs {units.text(row['floor'], 'second')}; "
            "only more work a launch, or fewer launches, would make it faster."
        )
    use = f"neither memory ({_percent(memory_use(row))}) nor {row['pipe']} arithmetic ({_percent(row['performance_fraction'])}) is busy"
    parts = [use]
    if row["bytes_source"] in COUNTERS and row["bytes_ratio"] > _EXTRA_BYTES:
        cold = ", each launch counted with cold caches" if row["bytes_cold"] else ""
        parts.append(
            f"moves {'up to ' * bool(cold)}{units.times(row['bytes_ratio'])} the bytes the algorithm needs{cold}"
        )
    if row["theoretical_occupancy"] < 0.5:
        parts.append(_occupancy(row))
    if row["spill_bytes"] > 0:
        parts.append(f"spills {units.text(row['spill_bytes'], 'byte')} a thread")
    stall = _longest_stall(case)
    if stall:
        parts.append(f"warps wait longest on {stall}")
    return f"Latency-bound: {'; '.join(parts)}."


def _occupancy(row: Mapping[str, Any]) -> str:
    """``50 % occupancy: 4 blocks an SM, limited by registers``."""
    blocks = "block" if row["blocks"] == 1 else "blocks"
    limiter = row["limiter"].replace(", ", " and ")
    return (
        f"{_percent(row['theoretical_occupancy'])} occupancy: {row['blocks']:.0f} {blocks} an SM, limited by {limiter}"
    )


def _longest_stall(case: CaseValues) -> str | None:
    source = case.counted_by
    launch = case.main_launch(source)
    found = {n: k.value for n in WAITS if n != "not_selected" and (k := case.at(f"stall_{n}", launch, source))}
    longest = max(found, key=lambda name: found[name], default=None)
    return WAITS[longest][0] if longest and found[longest] > 0 else None


def or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _percent(share: float) -> str:
    return units.text(share, "ratio")
