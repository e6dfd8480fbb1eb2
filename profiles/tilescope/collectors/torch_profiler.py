"""Durations, resources and order of every launch of a case, by torch.profiler.

The artefact is a Chrome trace that opens in any trace viewer. It is trimmed to the ranges around the repetitions, the launches in
them, and the operators of the first one.
"""

from __future__ import annotations

import gzip
import json
import math
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors import check
from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import absent, schema
from tilescope.table.case import Case

SUFFIX = ".trace.json.gz"

REPETITIONS, WARMUP = 50, 10
ROTATE = 3
#: Name of the range around one repetition, followed by its number.
RANGE = "tilescope.sample"

#: Categories of work on the GPU. Copies and fills count as launches: they take time.
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})


def _product(sides: list[float]) -> float:
    if len(sides) > len("xyz"):
        raise ValueError(f"a launch of {len(sides)} dimensions")
    return math.prod(sides)


#: Metrics of a launch and their argument in the trace. They are the same in all repetitions and stored once.
_RESOURCES: dict[str, tuple[str, Callable[[Any], float]]] = {
    "registers": ("registers per thread", float), "shared_memory": ("shared memory", float),
    "block_threads": ("block", _product), "grid_blocks": ("grid", _product),
    "estimated_occupancy": ("est. achieved occupancy %", lambda percent: float(percent) / 100),
}  # fmt: skip

Event = dict[str, Any]


def unavailable() -> str | None:
    """Says why there is no GPU; None if there is one."""
    return device.unavailable()


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Profiles the case's repetitions, each with a cold L2 and after a rest if it is long, and writes the trimmed trace.

    With ``settings["check_first"]``, as in sweeps, the result is first compared with the reference. Raises CheckFailed for a wrong
    one, which is not timed.
    """
    import torch  # noqa: PLC0415 - only the worker may import torch
    from torch.autograd.profiler import profile, record_function  # noqa: PLC0415

    from tilescope.execution import cold, execute, observe  # noqa: PLC0415

    checked = check.require(case, spec) if settings.get("check_first") else {}
    run = execute.prepare(spec, case, "cuda", rotate=int(settings.get("rotate", ROTATE)))
    for _ in range(int(settings.get("warmup", WARMUP))):
        run()
    flush = cold.Flush(cold.rest(run))
    observe.once(run, out, case)
    torch.cuda.synchronize()
    # What torch.profiler wraps: the wrapper imports PyTorch's compiler, which takes seconds.
    with profile(use_device="cuda", use_kineto=True) as profiler:
        # The profiler starts up during the first calls.
        for _ in range(2):
            flush()
            run()
        for sample in range(settings.get("repetitions") or flush.repetitions(REPETITIONS)):
            flush()
            torch.cuda.synchronize()
            with record_function(f"{RANGE}#{sample}"):
                run()
                # Autograd launches from another thread: all of that must be within the range.
                torch.cuda.synchronize()
        clocks = device.clocks()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(whole))
        trace = json.loads(whole.read_text())
    told = {"checked": checked, "clocks": clocks, "rest": flush.rest}
    out.write_bytes(gzip.compress(json.dumps(trim(trace) | told, separators=(",", ":")).encode(), mtime=0))


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of the case.

    Each launch of each repetition has ``gpu_time``, ``launch_start`` and, where the trace has it, ``launch_call``, the start of the
    CPU's call; all in seconds. Starts and calls are relative to the start of the repetition's first launch on the GPU, so the first
    call is negative. Each launch has its resources, and ``estimated_occupancy``, the profiler's estimate as a ratio. The case has
    ``sm_clock`` at the end, in hertz.
    """
    trace = bounded_reading.data_of(artefact)
    called = _calls(_complete(trace))
    rows = [case.row(metric, value, "check") for metric, value in trace.get("checked", {}).items()]
    rows += [case.row(metric, value, "torch_profiler") for metric, value in trace.get("clocks", {}).items()]
    described: set[int] = set()
    for sample, launches in samples(trace).items():
        for launch, event in enumerate(launches):
            where = {"launch": launch, "function": event["name"]}
            first, call = launches[0]["ts"], called.get(event.get("args", {}).get("correlation"))
            times = {"gpu_time": event["dur"] * 1e-6, "launch_start": _after(event["ts"], first)}
            if call is not None:
                times["launch_call"] = _after(call, first)
            rows += [case.row(m, v, "torch_profiler", sample=sample, **where) for m, v in times.items()]
            if launch not in described:
                described.add(launch)
                rows += [case.row(m, v, "torch_profiler", **where) for m, v in _resources(event)]
    return absent.without(schema.frame(rows))


def _after(moment: float, first: float) -> float:
    """Seconds from ``first`` to ``moment``, both in microseconds, rounded to the trace's resolution of a nanosecond."""
    return round((moment - first) * 1e-6, 9)


def _calls(events: Iterable[Event]) -> dict[Any, float]:
    """Start of the CPU's call in the trace's microseconds, by correlation id."""
    return {
        e["args"]["correlation"]: e["ts"]
        for e in events
        if e.get("cat") in _RUNTIME and "correlation" in e.get("args", {})
    }


def samples(trace: Mapping[str, Any]) -> dict[int, list[Event]]:
    """Launches of each repetition, in the order of their starts on the GPU.

    A launch belongs to the repetition in whose range the CPU called it. If the trace lacks the call, the launch's own start
    counts: a range ends with a synchronisation and so covers its launches.
    """
    events = _complete(trace)
    ranges = sorted(
        (e["ts"], e["ts"] + e["dur"], int(e["name"].partition("#")[2]))
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith(RANGE + "#")
    )
    starts = [start for start, _, _ in ranges]
    called = _calls(events)
    found: dict[int, list[Event]] = {sample: [] for _, _, sample in ranges}
    for event in events:
        if event.get("cat") not in _GPU:
            continue
        moment = called.get(event.get("args", {}).get("correlation"), event["ts"])
        index = bisect_right(starts, moment) - 1
        if index >= 0 and moment <= ranges[index][1]:
            found[ranges[index][2]].append(event)
    return {sample: sorted(launches, key=lambda e: float(e["ts"])) for sample, launches in found.items()}


def trim(trace: Mapping[str, Any]) -> dict[str, Any]:
    """The Chrome trace with the events of the case only."""
    events = _complete(trace)
    launches = [event for found in samples(trace).values() for event in found]
    correlations = {event.get("args", {}).get("correlation") for event in launches} - {None}
    ranges = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith(RANGE + "#")]
    calls = [e for e in events if e.get("cat") in _RUNTIME and e.get("args", {}).get("correlation") in correlations]
    operators: list[Event] = []
    if ranges:
        first = min(ranges, key=lambda e: float(e["ts"]))
        end = first["ts"] + first["dur"]
        operators = [e for e in events if e.get("cat") == "cpu_op" and first["ts"] <= e["ts"] <= end]
    kept = [
        {**event, "args": {key: value for key, value in event.get("args", {}).items() if key in _KEPT_ARGUMENTS}}
        for event in (*ranges, *operators, *calls, *launches)
    ]
    names = [e for e in trace.get("traceEvents", ()) if e.get("ph") == "M"]
    head = {key: trace[key] for key in ("schemaVersion", "deviceProperties", "displayTimeUnit") if key in trace}
    return {**head, "traceEvents": [*names, *sorted(kept, key=lambda e: float(e["ts"]))]}


def _complete(trace: Mapping[str, Any]) -> list[Event]:
    return [e for e in trace.get("traceEvents", ()) if e.get("ph") == "X"]


_KEPT_ARGUMENTS = frozenset(
    {
        "correlation", "stream", "device", "grid", "block", "registers per thread", "shared memory", "blocks per SM",
        "warps per SM", "est. achieved occupancy %", "bytes", "External id",
    }
)  # fmt: skip


def _resources(event: Event) -> Iterable[tuple[str, float]]:
    arguments = event.get("args", {})
    for metric, (name, convert) in _RESOURCES.items():
        if name in arguments:
            yield metric, float(convert(arguments[name]))
