"""What each warp of a few programs does and waits for, by records in the compiled code. Not part of ``auto``.

The artefact is a Chrome trace that Perfetto opens: a process for each sampled program, a row for each warp. Beside the events it has
the recorded operations and the kernels' times with and without records.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tilescope.collectors.lanes import buffer, facts, records, trace
from tilescope.execution.not_applicable import NotApplicable
from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import line_values, schema
from tilescope.table.case import Case

if TYPE_CHECKING:
    from tilescope.collectors.lanes.recording import Launched

SUFFIX = ".trace.json.gz"

#: Programs of a launch that are sampled, and the most records of a launch that are kept.
SAMPLE, MOST = 8, 60_000
#: Calls that are timed with records and without.
REPETITIONS = 7
#: The most that a kernel may take with records over without.
SLOWDOWN = 2.0
_REFUSED = (
    "records slow {} down {:.1f}x, more than {:.0f}x even where only waits and products have them: profile a problem whose programs "
    "do more each"
)


def unavailable() -> str | None:
    """Why lanes cannot be recorded here, or None."""
    if reason := device.unavailable():
        return reason
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("triton.profiler") is None:
        return "lanes need Triton with Proton: pip install triton"
    return None


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Runs the case with records in its Triton kernels and writes the trace.

    Raises NotApplicable where the case launches no Triton kernel, where a kernel cannot have records, or where records slow it down
    more than ``SLOWDOWN`` times.
    """
    from tilescope.execution import execute, observe  # noqa: PLC0415 (they import torch)

    run = execute.prepare(spec, case, "cuda")
    run()
    observe.once(run, out, case)
    plain = _durations(run)
    try:
        found = recorded(run, plain, programs=_programs(run), name=case.kernel)
    except records.NotRecordable as error:
        raise NotApplicable(str(error)) from None
    out.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))


def recorded(run: Callable[[], Any], plain: Mapping[str, list[float]], programs: int, name: str) -> dict[str, Any]:
    """The trace of a call. ``plain`` has the seconds of its kernels without records. Raises NotApplicable, NotRecordable."""
    import torch  # noqa: PLC0415

    from tilescope.collectors.lanes import recording  # noqa: PLC0415

    slowdown, names = 1.0, set[str]()
    for kinds in records.LEVELS:
        with recording.recording(kinds, programs) as made:
            run()
            torch.cuda.synchronize()
            names = {launched.function for launched in made.launches}
            if not names:
                raise NotApplicable(f"{name} launches no Triton kernel")
            slow = _durations(run)
            made.launches.clear()
            run()
            torch.cuda.synchronize()
            slowdown = _sum(slow, names) / _sum(plain, names)
            if slowdown <= SLOWDOWN:
                return _trace(made.launches, plain, slow, sorted(kinds), made)
    raise NotApplicable(_REFUSED.format(name, slowdown, SLOWDOWN))


def _sum(seconds: Mapping[str, list[float]], names: set[str]) -> float:
    return sum(float(np.median(seconds[name])) for name in names if seconds.get(name)) or float("nan")


def _programs(run: Callable[[], Any]) -> int:
    """The programs of the largest launch of a call."""
    from tilescope.execution import observe  # noqa: PLC0415

    largest = [1]

    def note(_kernel: Any, grid: Any, *_: Any) -> None:
        largest.append(int(np.prod([int(n) for n in grid])))

    with observe.each_launch(note):
        run()
    return max(largest)


def _durations(run: Callable[[], Any]) -> dict[str, list[float]]:
    """Seconds of each kernel on the GPU by name: a call's sum, for each of several calls with a cold L2."""
    import torch  # noqa: PLC0415
    from torch.autograd.profiler import profile  # noqa: PLC0415

    from tilescope.collectors.lanes import recording  # noqa: PLC0415
    from tilescope.execution import cold  # noqa: PLC0415

    flush = cold.Flush()
    run()
    with profile(use_device="cuda", use_kineto=True) as profiler:
        for _ in range(REPETITIONS):
            with recording.unrecorded():
                flush()
            run()
            torch.cuda.synchronize()
    found: dict[str, list[float]] = {}
    for event in profiler.kineto_results.events():
        if event.device_type() == torch.autograd.DeviceType.CUDA:  # type: ignore[attr-defined]
            found.setdefault(event.name(), []).append(event.duration_ns() * 1e-9)
    # A kernel that a call launches several times counts with their sum.
    return {name: _by_call(times) for name, times in found.items()}


def _by_call(times: list[float]) -> list[float]:
    each = max(1, len(times) // REPETITIONS)
    return [sum(times[at : at + each]) for at in range(0, len(times) - each + 1, each)]


def _trace(
    launches: list[Launched],
    plain: Mapping[str, list[float]],
    slow: Mapping[str, list[float]],
    kinds: list[str],
    made: Any,
) -> dict[str, Any]:
    counts = Counter(launched.function for launched in launches)
    events: list[dict[str, Any]] = []
    told = []
    for number, launched in enumerate(launches):
        operations = {scope: asdict(one) for scope, one in launched.operations.items() if not isinstance(one, str)}
        scopes = {scope: one for scope, one in launched.operations.items() if isinstance(one, str)}
        each = counts[launched.function]
        times = {
            key: float(np.median(found[launched.function])) / each
            for key, found in (("plain", plain), ("recorded", slow))
            if found.get(launched.function)
        }
        sampled = _sampled(launched)
        clock = buffer.rate(sampled)
        if math.isnan(clock):
            clock = device.clocks().get("sm_clock", math.nan) * 1e-9
        told.append(
            {
                "function": launched.function, "file": launched.file, "grid": launched.grid, "warps": launched.warps,
                "kinds": kinds, **times, "clock": clock * 1e9, "operations": operations, "scopes": scopes,
                "programs": [program.number for program in sampled], "lost": sum(sum(p.lost) for p in sampled),
                "resident": _resident(launched),
            }
        )  # fmt: skip
        events += _events(number, launched, sampled, clock)
    return {"displayTimeUnit": "ns", "traceEvents": events, "tilescope": {"launches": told}}


def _heads(launched: Launched) -> np.ndarray:
    """The head of each program's part of the buffer."""
    words = launched.buffer.view(-1, launched.room)
    found: np.ndarray = words[:, : (buffer.HEAD + launched.warps) * 4].cpu().numpy().view(np.uint32)
    return found


def _resident(launched: Launched) -> int:
    """The most programs that ran on one SM at the same time."""
    heads = _heads(launched)
    most = 0
    for sm in np.unique(heads[:, 2]):
        own = heads[heads[:, 2] == sm]
        changes = np.concatenate([buffer.times(own, 4), buffer.times(own, 6)])
        steps = np.repeat([1, -1], len(own))
        # An end before a start at the same time.
        most = max(most, int(np.cumsum(steps[np.lexsort([steps, changes])]).max()))
    return most


def _sampled(launched: Launched) -> list[buffer.Program]:
    """Programs of a launch, evenly spaced by their starts: of the first wave, of the last, and between them."""
    words = launched.buffer.view(-1, launched.room)
    heads = _heads(launched)
    counts = heads[:, buffer.HEAD :]
    order = np.argsort(buffer.times(heads, 4), kind="stable")
    each = counts.max(axis=0).sum() // 4  # records of a start and an end have two words each
    fit = max(1, min(SAMPLE, int(MOST // max(1, each)), len(order)))
    places = np.unique(np.linspace(0, len(order) - 1, fit).round().astype(int))
    chosen = [words[int(order[at])].cpu().numpy().view(np.uint32) for at in places]
    return [buffer.program(own, launched.warps) for own in chosen]


def _events(number: int, launched: Launched, sampled: list[buffer.Program], clock: float) -> list[dict[str, Any]]:
    """Events of the Trace Event Format, with times in microseconds after the launch's first sampled program began.

    Of a program with more than its part of ``MOST`` records the first are kept.
    """
    events: list[dict[str, Any]] = []
    first = min((program.start for program in sampled), default=0)
    for program in sampled:
        process = number * 1_000_000 + program.number
        events.append(
            _name("process_name", process, 0, f"{launched.function}: program {program.number}, SM {program.sm}")
        )
        found = [(*span, warp) for warp, own in enumerate(program.warps) for span in buffer.spans(own)]
        found.sort(key=lambda span: (span[1], -span[2]))
        last = (
            found[MOST // len(sampled)][1]
            if len(found) > MOST // len(sampled)
            else max((s[2] for s in found), default=0)
        )
        zero, offset = min((span[1] for span in found), default=0), (program.start - first) * 1e-3
        for warp in sorted({span[3] for span in found}):
            events.append(_name("thread_name", process, warp, f"warp {warp}"))
        for scope, start, end, warp in found:
            if start > last:
                break
            known = launched.operations[scope]
            name, kind = (known, known) if isinstance(known, str) else (known.scope.rpartition(" #")[0], known.kind)
            events.append(
                {
                    "ph": "X", "cat": kind, "name": name, "pid": process, "tid": warp,
                    "ts": round(offset + (start - zero) / clock * 1e-3, 4),
                    "dur": round((min(end, last) - start) / clock * 1e-3, 4),
                    "args": {"launch": number, "program": program.number, "operation": scope},
                }
            )  # fmt: skip
    return events


def _name(kind: str, process: int, thread: int, text: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": text}}


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of each launch: how much records slow it down, the share of its warps' time in waits, and of its programs' time with a
    product in flight.
    """
    data = trace.load(artefact)
    found = trace.spans(data)
    rows = []
    for launch, told in enumerate(data["tilescope"]["launches"]):
        own = found[found["launch"] == launch]
        values = {"lanes_slowdown": told["recorded"] / told["plain"]} if "recorded" in told and "plain" in told else {}
        values |= facts.of_launch(own)
        if "resident" in told:
            values["lane_programs_per_sm"] = told["resident"]
        rows += [
            case.row(name, value, "lanes", launch=launch, function=told["function"]) for name, value in values.items()
        ]
    return schema.frame(rows)


@bounded_reading.parser
def parse_lines(artefact: Path, case: Case) -> tuple[pd.DataFrame, dict[str, str]]:
    """A warp's time at each source line, its waits there and their number, and no source files."""
    data = trace.load(artefact)
    told = data["tilescope"]["launches"]
    sums = trace.by_line(trace.spans(data))
    rows: list[dict[str, Any]] = []
    for (launch, line), own in sums[sums["line"] > 0].groupby(["launch", "line"]):
        values = {"lane_time": own["time"].sum(), "lane_wait": own["waits"].sum(), "lane_records": own["count"].sum()}
        place = {"launch": launch, "function": told[launch]["function"], "file": told[launch]["file"], "line": line}
        rows += line_values.rows(case, "lanes", values, **place)
    return line_values.frame(rows), {}
