"""Summary of a run: one row a case with its time, its floor, its resources, and a sentence on its bound.

Pure: frame -> frame. The *floor* is the time that the algorithm's bytes and operations take at the device's roofs
(measured ones where there are any). A row without times is a prediction, and ``measured`` is False.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tilescope.hardware import roofs
from tilescope.hardware.ceilings import DATASHEET
from tilescope.models import baseline, bound, faults, impossible, preference, sampled, traffic
from tilescope.runs.store import LoadedRun
from tilescope.table import launch_configs
from tilescope.table.case_table import KEYS, CaseValues, by_problem, gather, gpu_times, problem_of, value_of
from tilescope.table.run import Device, Failure
from tilescope.table.sources import COUNTERS

#: Launch overhead limits a call when the interval exceeds the GPU time by this ratio and by this many seconds.
_LATE_RATIO, _LATE = 1.3, 10e-6
#: Implementations of libraries, of which the fastest is compared with. A matmul's ``eager`` is cuBLAS.
LIBRARIES = ("liger", "cublas", "cudnn", "fa2", "bitsandbytes", "cce", "aten")

#: Metrics of bytes by the sources that count them.
_BYTES = {
    ("interpreter",): tuple(f"{kind}_bytes_{way}" for kind in ("requested", "unique") for way in ("read", "written")),
    COUNTERS: ("dram_bytes_read", "dram_bytes_written"),
}
#: The fields of ``sampled.Sampled`` that have a column.
_SAMPLED = {
    "sampled_bytes_read": "read",
    "sampled_bytes_written": "written",
    "sampled_programs": "counted",
    "programs": "programs",
}
#: Errors against the reference, and their tolerances.
_CHECKED = ("relative_error", "tolerance", "row_error", "row_tolerance")

#: The limit of the column ``launches`` (Int32).
_MOST_LAUNCHES = 1 << 31
#: Sources that count launches, the most reliable first.
_LAUNCH_SOURCES = ("torch_profiler", "chrome_trace", "ncu", "cupti", "compiler", "interpreter", "tritonparse")

#: The types of the columns that are no numbers.
_TYPES = {
    **dict.fromkeys([
        *KEYS, "time_source", "floor_origin", "memory_roof", "roof", "bound", "pipe", "bytes_source", "limiter", "baseline", "library",
        "chosen", "fault", "why",
    ], "str"),
    **dict.fromkeys(["measured", "cpu_bound", "bytes_cold"], "bool"), "launches": "Int32",
}  # fmt: skip
COLUMNS = {name: _TYPES.get(name, "float64") for name in (
    *KEYS, "measured", "launches", "gpu_time", "gpu_time_low", "gpu_time_high", "time_source", "interval", "graph_time", "cpu_bound",
    "floor", "floor_origin", "floor_fraction", "least_time", "memory_roof", "roof", "bound", "pipe", "bytes", "bytes_source",
    "bytes_ratio", "bytes_cold", "bandwidth", "bandwidth_fraction", "performance", "performance_fraction", "registers", "shared_memory",
    "spill_bytes", "theoretical_occupancy", "achieved_occupancy", "limiter", "blocks", "peak_memory", "energy", "power", "power_limit",
    "power_clock", *_CHECKED, *itertools.chain(*_BYTES.values()), *_SAMPLED, "speedup_eager", "speedup_compile", "speedup_baseline",
    "baseline", "library", "speedup_library", "chosen", "fault", "why",
)}  # fmt: skip


def of_run(loaded: LoadedRun, table: pd.DataFrame) -> pd.DataFrame:
    """``summarise`` of ``table``, which is the run's or a part of it."""
    run = loaded.run
    return summarise(table, run.device, run.kernels, loaded.configs, run.failures)


def summarise(
    table: pd.DataFrame,
    device: Device,
    kernels: Mapping[str, Mapping[str, object]] | None = None,
    launched: pd.DataFrame | None = None,
    failures: Iterable[Failure] = (),
) -> pd.DataFrame:
    """One row a case, in the order of the table. An absent number is NaN, an absent text empty.

    ``measured``: GPU time is known. ``gpu_time`` (seconds) is the median over repetitions of the sum over
    launches, ``gpu_time_low`` and ``gpu_time_high`` its 5 % and 95 % quantiles. ``cpu_bound`` marks an interval well
    above the GPU time.

    ``floor`` is in seconds, ``floor_fraction`` = floor / gpu_time, and ``roof`` names the roof of that fraction
    (``roofs.of_roof``). ``least_time`` is the floor at the datasheet's rates, which no implementation can pass. ``memory_roof`` is the roof of HBM that applies, ``hbm`` or ``hbm_read``. ``bound`` is
    ``memory``, ``compute`` or ``latency``; empty where no cost is known. ``bandwidth`` (byte/s) and ``performance`` (flop/s) are
    the algorithm's bytes and operations over the GPU time; their fractions are of the roofs.

    ``bytes`` are those of HBM, from ``bytes_source``, and ``bytes_ratio`` is their ratio to the algorithm's.
    ``bytes_cold`` marks an upper bound: the sum of several launches that ncu counted with cold caches each.
    ``requested_*`` and ``unique_*`` are bytes from the interpreter, ``dram_*`` from ncu or CUPTI; ``sampled_bytes_*`` are
    estimated from ``sampled_programs`` of the ``programs``. Resources are those of the longest launch.

    ``baseline`` names the usual baseline (``tilescope.models.baseline``), and ``speedup_baseline`` is its GPU time over the
    case's. ``library`` names the fastest other implementation of LIBRARIES on the same problem, and ``speedup_library`` its GPU
    time over the case's; there is none where either time is impossible (``impossible``). ``chosen`` is the config that the
    case ran with where none was given (``launch_configs.chosen``). ``why`` is a sentence on the bound. A case with a fault
    (``faults``) has no bound and no speedup: ``fault`` is the rule, and ``why`` says what is wrong. The argument ``kernels`` is
    ``Run.kernels``, ``launched`` is ``LoadedRun.configs``, ``failures`` is ``Run.failures``.
    """
    cases = gather(table)
    problems = by_problem(cases)
    known = faults.Faults(failures)
    faulty = {id(case): fault for case in cases if (fault := known.of(case))}
    doubted = {id(case) for case in cases if impossible.reasons(case, device, roofs.pipe_of(case, kernels))} | set(
        faulty
    )
    # Times of wrong results and impossible times are not compared with.
    right = {of: {n: case for n, case in found.items() if id(case) not in doubted} for of, found in problems.items()}
    rows = [
        {**_row(case, {} if id(case) in doubted else right[problem_of(case)], device, kernels), "chosen": chosen}
        | _of_fault(faulty.get(id(case)))
        for case, chosen in zip(cases, launch_configs.chosen(cases, launched), strict=True)
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _of_fault(fault: faults.Fault | None) -> dict[str, str]:
    return {"fault": fault.rule, "bound": "", "why": f"{fault.title}. {fault.text}"} if fault else {"fault": ""}


def representative(rows: pd.DataFrame) -> dict[str, Any] | None:
    """The case that represents a kernel, from ``summarise``'s ``rows`` of it; None where there are none.

    It is the Triton implementation's case with the longest floor, forward where there is one.
    """
    if rows.empty:
        return None
    for column, wanted in (("impl", "triton"), ("pass", "forward")):
        preferred = rows[rows[column] == wanted]
        rows = preferred if len(preferred) else rows
    place = rows["floor"].idxmax() if rows["floor"].notna().any() else rows.index[0]
    return {str(name): value for name, value in rows.loc[place].items()}


def _row(
    case: CaseValues,
    others: Mapping[str, CaseValues],
    device: Device,
    kernels: Mapping[str, Mapping[str, object]] | None,
) -> dict[str, Any]:
    time = case.gpu_time()
    seconds = time.value if time and time.value > 0 else math.nan
    of_sample = sampled.of_case(case)
    declared = baseline.declarations((kernels or {}).get(case.key["kernel"]))
    row: dict[str, Any] = {
        **case.key,
        "measured": time is not None,
        "launches": _launch_count(case),
        "gpu_time": seconds,
        "gpu_time_low": time.low if time else math.nan,
        "gpu_time_high": time.high if time else math.nan,
        "time_source": time.source if time else "",
        "interval": value_of(case.spread("interval", "events", "inductor", "helion")),
        "graph_time": value_of(case.spread("graph_time", "events")),
        "peak_memory": value_of(case.total("peak_memory", "events")),
        **{name: value_of(case.total(name, "energy")) for name in ("energy", "power", "power_limit")},
        "power_clock": value_of(case.total("sm_clock", "energy")),
        **{name: value_of(case.total(name)) for name in _CHECKED},
        **{name: value_of(case.total(name, *sources)) for sources, names in _BYTES.items() for name in names},
        **{name: getattr(of_sample, field) if of_sample else math.nan for name, field in _SAMPLED.items()},
        **_floor(case, seconds, device, roofs.pipe_of(case, kernels)),
        **_resources(case, device),
        "speedup_eager": _speedup(case, others.get("eager")),
        "speedup_compile": _speedup(case, others.get("compile")),
        **_library(case, others, declared),
        **_baseline(case, others, declared),
    }
    late = row["interval"] - seconds
    row["cpu_bound"] = bool(late > _LATE and row["interval"] > _LATE_RATIO * seconds)
    row["bound"] = bound.bound(row)
    row["roof"] = roofs.of_roof(row, device).name
    row["why"] = bound.sentence(row, case, device)
    return row


def _floor(case: CaseValues, seconds: float, device: Device, pipe: str) -> dict[str, Any]:
    needed = value_of(case.needed_bytes())
    flops = value_of(case.total("algorithm_flops", "model"))
    memory = roofs.hbm_roof(case, functools.partial(roofs.roof, device))
    compute = roofs.roof(device, pipe)
    by_bytes = needed / memory.value if memory else math.nan
    by_flops = flops / compute.value if compute else math.nan
    floor = _longer(by_bytes, by_flops)
    limits = [device.ceiling(name, DATASHEET) or known for name, known in (("hbm", memory), (pipe, compute))]
    least = [work / limit.value if limit else math.nan for work, limit in zip((needed, flops), limits, strict=True)]
    moved = next(filter(None, (traffic.moved(case, source) for source in traffic.BYTES)), None)
    binding = compute if by_flops > by_bytes else memory
    return {
        "pipe": pipe, "floor": floor, "floor_origin": binding.origin if binding else "", "floor_fraction": floor / seconds,
        "least_time": _longer(*least), "memory_roof": memory.name if memory else "", "bytes": value_of(moved),
        "bytes_source": moved.source if moved else "", "bytes_ratio": moved.value / needed if moved and needed else math.nan,
        "bytes_cold": bool(moved and moved.source == "ncu" and traffic.cold_chain(case, device.l2_bytes)), "bandwidth": needed / seconds,
        "bandwidth_fraction": by_bytes / seconds, "performance": flops / seconds, "performance_fraction": by_flops / seconds,
        "bound": "" if math.isnan(floor) else "compute" if by_flops > by_bytes else "memory",
    }  # fmt: skip


def _longer(*times: float) -> float:
    return max((time for time in times if not math.isnan(time)), default=math.nan)


def _resources(case: CaseValues, device: Device) -> dict[str, Any]:
    main = preference.main_resources(case, device.target)
    alike = main and case.launch_count(main.source) == case.launch_count(case.counted_by)
    achieved = case.at("achieved_occupancy", main.launch, case.counted_by) if main and alike else None
    values = {
        name: math.nan if (value := getattr(main, name, None)) is None else value
        for name in ("registers", "shared_memory", "spill_bytes", "theoretical_occupancy", "blocks")
    }
    return values | {"achieved_occupancy": value_of(achieved), "limiter": main.limiter if main else ""}


def _launch_count(case: CaseValues) -> int | None:
    """The number of the case's launches, from the most reliable source."""
    together = case.total("launches")
    if together:
        return int(together.value) if 0 <= together.value < _MOST_LAUNCHES else None
    return next((len(n) for s in _LAUNCH_SOURCES if (n := case.launches(s))), None)


def _speedup(case: CaseValues, other: CaseValues | None) -> float:
    """GPU time of the other implementation over this case's, both from the same source."""
    times = gpu_times(case, other) if other and other is not case else None
    return times[1].value / times[0].value if times and times[0].value > 0 else math.nan


def _baseline(case: CaseValues, others: Mapping[str, CaseValues], declared: Mapping[str, str]) -> dict[str, Any]:
    impl = baseline.usual(others, declared)
    ratio = _speedup(case, others.get(impl))
    return {"baseline": baseline.called(impl, declared) if ratio > 0 else "", "speedup_baseline": ratio}


def _library(case: CaseValues, others: Mapping[str, CaseValues], declared: Mapping[str, str]) -> dict[str, Any]:
    found = {name: ratio for name in LIBRARIES if (ratio := _speedup(case, others.get(name))) > 0}
    name = min(found, key=lambda known: found[known], default="")
    return {"library": baseline.called(name, declared), "speedup_library": found.get(name, math.nan)}
