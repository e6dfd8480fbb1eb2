"""One row a case: how fast it is, how fast it could be, and why, in one sentence.

Pure: frame -> frame. The *floor* is the time that the algorithm's bytes and operations take at the device's roofs
(measured ones where there are any). Where nothing was timed the row is a prediction and says so.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from tilescope.hardware import ceilings
from tilescope.models import preference, roofline, traffic
from tilescope.models.roofline import pipe_of
from tilescope.table import units
from tilescope.table.case_table import KEYS, Facts, Known, Spread, by_problem, gather, problem_of
from tilescope.table.schema import Device

#: From this share of a roof on, that roof is what holds a case back.
_SATURATED = 0.6
#: Kernels shorter than this spend a good part of their time starting and draining.
_SHORT = 5e-6
#: Launch overhead limits a call when the interval is both this much longer than the GPU time, and by this many seconds.
_LATE_RATIO, _LATE = 1.3, 10e-6
#: Bytes moved beyond the algorithm's that are worth a word: less is rounding, tails and metadata.
_EXTRA_BYTES = 1.1

#: Implementations that are libraries': the quickest of them stands for all. A matmul's ``eager`` is cuBLAS.
LIBRARIES = ("liger", "cublas", "cudnn", "fa2", "bitsandbytes", "cce", "aten")

COLUMNS = {
    **dict.fromkeys(KEYS, "str"),
    "measured": "bool",
    "launches": "Int32",
    "gpu_time": "float64",
    "gpu_time_low": "float64",
    "gpu_time_high": "float64",
    "time_source": "str",
    "interval": "float64",
    "graph_time": "float64",
    "cpu_bound": "bool",
    "floor": "float64",
    "floor_origin": "str",
    "floor_fraction": "float64",
    "memory_roof": "str",
    "roof": "str",
    "bound": "str",
    "pipe": "str",
    "bytes": "float64",
    "bytes_source": "str",
    "bytes_ratio": "float64",
    "bytes_cold": "bool",
    "bandwidth": "float64",
    "bandwidth_fraction": "float64",
    "performance": "float64",
    "performance_fraction": "float64",
    "registers": "float64",
    "shared_memory": "float64",
    "spill_bytes": "float64",
    "theoretical_occupancy": "float64",
    "achieved_occupancy": "float64",
    "limiter": "str",
    "blocks": "float64",
    "peak_memory": "float64",
    "relative_error": "float64",
    "tolerance": "float64",
    "speedup_eager": "float64",
    "speedup_compile": "float64",
    "library": "str",
    "speedup_library": "float64",
    "why": "str",
}


def summarise(
    table: pd.DataFrame, device: Device, kernels: Mapping[str, Mapping[str, object]] | None = None
) -> pd.DataFrame:
    """One row a case, in the order of the table.

    ``measured`` says whether GPU time is known. ``gpu_time`` is the median over repetitions of the sum over launches, ``gpu_time_low`` and ``gpu_time_high`` the 5 % and
    95 % quantiles (seconds). ``floor`` in seconds, ``floor_fraction`` = floor / gpu_time, and ``roof`` what it is a
    fraction of (``roofline.of_roof``). ``memory_roof`` names the roof of HBM
    that applies, ``hbm`` or ``hbm_read``. ``bound`` is ``memory``, ``compute``
    or ``latency``; empty where no cost is known. ``bytes`` are those of HBM, from ``bytes_source``, and ``bytes_ratio`` their ratio
    to the algorithm's; ``bytes_cold`` marks the sum of several launches that ncu counted with cold caches each, an upper bound.
    ``bandwidth`` and ``performance`` count what the algorithm needs, over the GPU time; their
    fractions are of the roofs. Resources are those of the longest launch. ``cpu_bound`` marks an interval well above the
    GPU time. ``library`` is the quickest other one of LIBRARIES on the same problem, empty where none was timed, and ``speedup_library`` its
    GPU time over the case's. ``why`` is a sentence for people. ``kernels`` is ``Run.kernels``.
    """
    cases = gather(table)
    problems = by_problem(cases)
    # A time of wrong results is no time to be compared with.
    right = {of: {name: case for name, case in found.items() if not case.wrong()} for of, found in problems.items()}
    rows = [_row(case, right[problem_of(case)], device, kernels) for case in cases]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def headline(headlines: pd.DataFrame) -> dict[str, Any] | None:
    """The case that stands for a kernel: the Triton implementation's largest, forward where there is one; else None.

    ``headlines`` is ``summarise``'s frame of one kernel. The largest is the one with the longest floor.
    """
    if headlines.empty:
        return None
    for column, wanted in (("impl", "triton"), ("pass", "forward")):
        preferred = headlines[headlines[column] == wanted]
        headlines = preferred if len(preferred) else headlines
    place = headlines["floor"].idxmax() if headlines["floor"].notna().any() else headlines.index[0]
    return {str(name): value for name, value in headlines.loc[place].items()}


def _row(
    case: Facts, others: Mapping[str, Facts], device: Device, kernels: Mapping[str, Mapping[str, object]] | None
) -> dict[str, Any]:
    time = case.gpu_time()
    seconds = time.value if time and time.value > 0 else math.nan
    row: dict[str, Any] = {
        **case.key,
        "measured": time is not None,
        "launches": _launch_count(case),
        "gpu_time": seconds,
        "gpu_time_low": time.low if time else math.nan,
        "gpu_time_high": time.high if time else math.nan,
        "time_source": time.source if time else "",
        "interval": _median(case.spread("interval", "events")),
        "graph_time": _median(case.spread("graph_time", "events")),
        "peak_memory": _value(case.total("peak_memory", "events")),
        "relative_error": _value(case.total("relative_error")),
        "tolerance": _value(case.total("tolerance")),
        **_floor(case, seconds, device, pipe_of(case, kernels)),
        **_resources(case, device),
        "speedup_eager": _speedup(case, others.get("eager")),
        "speedup_compile": _speedup(case, others.get("compile")),
        **_library(case, others),
    }
    late = row["interval"] - seconds
    row["cpu_bound"] = bool(late > _LATE and row["interval"] > _LATE_RATIO * seconds)
    row["bound"] = _bound(row)
    row["roof"] = roofline.of_roof(row, device).name
    row["why"] = _why(row, case, device)
    return row


def _floor(case: Facts, seconds: float, device: Device, pipe: str) -> dict[str, Any]:
    """The algorithm against the roofs, and what moved against the algorithm."""
    read, written = (case.total(f"algorithm_bytes_{way}", "model") for way in ("read", "written"))
    needed = read.value + written.value if read and written else math.nan
    flops = _value(case.total("algorithm_flops", "model"))
    memory = roofline.hbm_roof(case, functools.partial(roofline.roof, device))
    compute = roofline.roof(device, pipe)
    by_bytes = needed / memory.value if memory else math.nan
    by_flops = flops / compute.value if compute else math.nan
    floor = max((x for x in (by_bytes, by_flops) if not math.isnan(x)), default=math.nan)
    moved = traffic.moved(case, "ncu") or traffic.moved(case, "interpreter")
    binding = compute if by_flops > by_bytes else memory
    return {
        "pipe": pipe,
        "floor": floor,
        "floor_origin": binding.origin if binding else "",
        "floor_fraction": floor / seconds,
        "memory_roof": memory.name if memory else "",
        "bytes": _value(moved),
        "bytes_source": moved.source if moved else "",
        "bytes_ratio": moved.value / needed if moved and needed else math.nan,
        "bytes_cold": bool(moved and moved.source == "ncu" and traffic.cold_chain(case, device.l2_bytes)),
        "bandwidth": needed / seconds,
        "bandwidth_fraction": by_bytes / seconds,
        "performance": flops / seconds,
        "performance_fraction": by_flops / seconds,
        "bound": "" if math.isnan(floor) else "compute" if by_flops > by_bytes else "memory",
    }


def _resources(case: Facts, device: Device) -> dict[str, Any]:
    """Registers, shared memory, spills and occupancy of the launch that takes longest."""
    main = preference.main_resources(case, device.target)
    achieved = case.at("achieved_occupancy", main.launch, "ncu") if main and main.source == "ncu" else None
    values = {
        name: _known(getattr(main, name, None))
        for name in ("registers", "shared_memory", "spill_bytes", "theoretical_occupancy", "blocks")
    }
    return values | {"achieved_occupancy": _value(achieved), "limiter": main.limiter if main else ""}


def _launch_count(case: Facts) -> int | None:
    """Launches of the case, from the source that saw the real ones."""
    return next((len(n) for s in ("torch_profiler", "ncu", "compiler", "interpreter") if (n := case.launches(s))), None)


def _speedup(case: Facts, other: Facts | None) -> float:
    """GPU time of the other implementation over this case's, both from the same source."""
    if other is None or other is case:
        return math.nan
    for source in ("torch_profiler", "ncu"):
        mine, theirs = case.spread("gpu_time", source), other.spread("gpu_time", source)
        if mine and theirs and mine.value > 0:
            return theirs.value / mine.value
    return math.nan


def _library(case: Facts, others: Mapping[str, Facts]) -> dict[str, Any]:
    """The quickest of the libraries, the case itself left out, and the case's speed over it."""
    found = {name: ratio for name in LIBRARIES if (ratio := _speedup(case, others.get(name))) > 0}
    name = min(found, key=lambda known: found[known], default="")
    return {"library": name, "speedup_library": found.get(name, math.nan)}


def _bound(row: Mapping[str, Any]) -> str:
    """What holds the case back. Predicted: the larger of the two floors. Measured: the roof it comes close to, if any."""
    if not row["measured"] or not row["bound"]:
        return str(row["bound"])
    if max(_memory_use(row), _number(row["performance_fraction"])) < _SATURATED:
        return "latency"
    return "compute" if _number(row["performance_fraction"]) > _memory_use(row) else "memory"


def launch_bound(row: Mapping[str, Any]) -> bool:
    """Whether the case's launches are so short that starting and draining them is most of it: no roof is near."""
    return bool(row["bound"] == "latency" and row["gpu_time"] / (row["launches"] or 1) < _SHORT)


def _memory_use(row: Mapping[str, Any]) -> float:
    """Share of the HBM roof in use: by the bytes that really moved, where they were counted."""
    needed = _number(row["bandwidth_fraction"])
    counted = row["bytes_source"] == "ncu" and not row["bytes_cold"]
    moved = needed * _number(row["bytes_ratio"]) if counted else 0.0
    return max(needed, moved)


def _why(row: Mapping[str, Any], case: Facts, device: Device) -> str:
    """One plain sentence with figures; a second where launch overhead limits it or the result wrong."""
    sentences = []
    if row["relative_error"] > row["tolerance"]:
        sentences.append(
            f"Wrong: the error against the reference, {row['relative_error']:.2g}, is above {row['tolerance']:.2g}."
        )
    elif case.wrong():
        error, accepted = (_value(case.total(name)) for name in ("row_error", "row_tolerance"))
        sentences.append(f"Wrong: a row's error against the reference, {error:.2g}, is above {accepted:.2g}.")
    sentences.append(_explain(row, case, device))
    if row["cpu_bound"]:
        sentences.append(
            f"Launch overhead: the call takes {_text(row['interval'], 'second')} for {_text(row['gpu_time'], 'second')} of GPU time."
        )
    return " ".join(sentence for sentence in sentences if sentence)


def _explain(row: Mapping[str, Any], case: Facts, device: Device) -> str:
    if not row["measured"]:
        return _timed_only(row) or _predicted(row, device)
    if not row["bound"]:
        return f"Takes {_text(row['gpu_time'], 'second')} of GPU time; no cost is declared to compare it with."
    return {"memory": _memory, "compute": _compute, "latency": _latency}[row["bound"]](row, case, device)


def _timed_only(row: Mapping[str, Any]) -> str:
    """For a case with events and nothing else: a graph's replay is the closest they come to GPU time."""
    seconds = row["interval"] if math.isnan(row["graph_time"]) else row["graph_time"]
    if not seconds > 0:  # not measured, or shorter than the clock's tick
        return ""
    floor = row["floor"]
    against = f", where the floor is {_text(floor, 'second')} ({_percent(floor / seconds)})" if floor > 0 else ""
    return f"Timed by events only: {_text(seconds, 'second')} a call{against}; torch_profiler or ncu would say why."


def _predicted(row: Mapping[str, Any], device: Device) -> str:
    parts = []
    if row["bound"] and row["floor"] > 0:
        limit = "HBM bandwidth" if row["bound"] == "memory" else f"{row['pipe']} rate"
        parts.append(
            f"Predicted, not measured: {row['bound']}-bound, at least {_text(row['floor'], 'second')} at the {row['floor_origin']} "
            f"{limit} of {device.name}"
        )
    if not math.isnan(row["bytes_ratio"]):
        parts.append(f"its launches touch {row['bytes_ratio']:.2f}x the bytes the algorithm needs")
    if not math.isnan(row["blocks"]):
        parts.append(f"{row['limiter']} {_allow(row)}")
    if row["spill_bytes"] > 0:
        parts.append(f"it spills {_text(row['spill_bytes'], 'byte')} a thread")
    return _capital("; ".join(parts) + ".") if parts else ""


def _memory(row: Mapping[str, Any], case: Facts, device: Device) -> str:
    use, ratio = _memory_use(row), row["bytes_ratio"]
    roof = f"the {roofline.bandwidth(device, row['memory_roof'])}"
    if row["bytes_source"] != "ncu":
        return f"Memory-bound: the bytes the algorithm needs take {_percent(use)} of {roof}; no counters say what really moved."
    if row["bytes_cold"]:
        return (
            f"Memory-bound: the bytes the algorithm needs take {_percent(use)} of {roof}; its {row['launches']} launches move up to "
            f"{ratio:.2f}x of them, each launch counted with cold caches."
        )
    moved = f"Memory-bound: moves {ratio:.2f}x the bytes the algorithm needs at {_percent(use)} of {roof}"
    if ratio < 1 / _EXTRA_BYTES:
        return f"{moved}; the rest stayed in L2."
    if ratio <= _EXTRA_BYTES:
        rest = (
            "nothing left but to fuse with a neighbour" if use > 0.9 else "more bytes in flight would bring it closer"
        )
        return f"{moved}; {rest}."
    launches = row["launches"]
    # Whether one can do the work of all is not known: a scale of the whole tensor needs all of it before its first use.
    if launches and launches > 1:
        return f"{moved}; if its {launches} launches can be one, it could be up to {ratio:.1f}x faster."
    return f"{moved}; reading each byte once could make it up to {ratio:.1f}x faster."


def _compute(row: Mapping[str, Any], case: Facts, device: Device) -> str:
    rate = _text(row["performance"], ceilings.unit(row["pipe"]))
    found = roofline.roof(device, row["pipe"])
    what = f"{found.origin} {row['pipe']} rate" if found else f"{row['pipe']} rate"
    return f"Compute-bound: {rate} is {_percent(row['performance_fraction'])} of the {what}."


def _latency(row: Mapping[str, Any], case: Facts, device: Device) -> str:
    launches = row["launches"] or 1
    each = row["gpu_time"] / launches
    if launch_bound(row):
        count = "one launch" if launches == 1 else f"{launches} launches"
        return (
            f"Launch-bound: {count} of {_text(each, 'second')} where the work needs {_text(row['floor'], 'second')}; "
            "more work a launch, or fewer launches, is all that helps."
        )
    use = f"neither memory ({_percent(_memory_use(row))}) nor {row['pipe']} arithmetic ({_percent(row['performance_fraction'])}) is busy"
    parts = [use]
    if row["bytes_source"] == "ncu" and row["bytes_ratio"] > _EXTRA_BYTES:
        cold = ", each launch counted with cold caches" if row["bytes_cold"] else ""
        parts.append(f"moves {'up to ' * bool(cold)}{row['bytes_ratio']:.2f}x the bytes the algorithm needs{cold}")
    if row["theoretical_occupancy"] < 0.5:
        parts.append(f"{row['limiter']} {_allow(row)}")
    if row["spill_bytes"] > 0:
        parts.append(f"spills {_text(row['spill_bytes'], 'byte')} a thread")
    stall = _longest_stall(case)
    if stall:
        parts.append(f"warps wait longest on {stall}")
    return f"Latency-bound: {'; '.join(parts)}."


def _allow(row: Mapping[str, Any]) -> str:
    blocks = "block" if row["blocks"] == 1 else "blocks"
    verb = "allow" if "," in row["limiter"] or row["limiter"] != "shared memory" else "allows"
    return f"{verb} {row['blocks']:.0f} {blocks} per SM ({_percent(row['theoretical_occupancy'])} occupancy)"


#: What a stall means to a person. ``selected`` and ``not_selected`` are no stalls.
_STALLS = {
    "long_scoreboard": "data from L2 or HBM",
    "short_scoreboard": "shared memory or special functions",
    "barrier": "barriers",
    "lg_throttle": "the queue of global loads and stores",
    "mio_throttle": "the queue of shared-memory instructions",
    "math_pipe_throttle": "busy arithmetic pipes",
    "gmma": "tensor cores",
    "wait": "fixed instruction latency",
    "drain": "stores to drain at the end",
    "membar": "memory fences",
    "no_instruction": "instructions to fetch",
    "imc_miss": "constants to fetch",
    "tex_throttle": "the texture queue",
    "branch_resolving": "branches",
    "sleeping": "sleeping",
}


def _longest_stall(case: Facts) -> str | None:
    launch = case.main_launch("ncu")
    found = {n: k.value for n in _STALLS if (k := case.at(f"stall_{n}", launch, "ncu"))}
    longest = max(found, key=lambda name: found[name], default=None)
    return _STALLS[longest] if longest and found[longest] > 0 else None


def _median(spread: Spread | None) -> float:
    return spread.value if spread else math.nan


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _value(known: Known | None) -> float:
    return known.value if known else math.nan


def _number(value: float) -> float:
    return 0.0 if math.isnan(value) else value


def _text(value: float, unit: str) -> str:
    return units.text(value, unit)


def _percent(share: float) -> str:
    return "–" if math.isnan(share) else f"{share * 100:.0f} %"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]
