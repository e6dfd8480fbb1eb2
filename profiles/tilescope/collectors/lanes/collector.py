"""What each warp of a few programs does and waits for, by records in the compiled code. Not part of ``auto``.

The artefact is a Chrome trace that Perfetto opens: a process for each sampled program, a row for each warp. Beside the events it has
the recorded operations and the kernels' times with and without records.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import importlib.util
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilescope.collectors.lanes import facts, records, sampling, trace
from tilescope.execution.not_applicable import NotApplicable
from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import line_values, schema
from tilescope.table.case import Case

SUFFIX = ".trace.json.gz"
#: The newest Triton whose compiler takes the records.
NEWEST_TRITON = (3, 9)

#: Seconds of each kernel on the GPU by name: a call's sum, for each of several calls.
Durations = Mapping[str, list[float]]
#: Calls that are timed with records and without.
REPETITIONS = 7
#: The most that a kernel should take with records over without: above it fewer kinds have records (the setting ``lanes_slowdown``).
AIM = 1.15
#: The most that it may take with the fewest kinds.
SLOWDOWN = 2.0
_REFUSED = (
    "records slow {} down {:.1f}×, more than {:.0f}× even where few kinds of operations have them: profile a problem whose programs "
    "do more each"
)


def unavailable() -> str | None:
    """Why lanes cannot be recorded here, or None."""
    if reason := device.unavailable():
        return reason
    if importlib.util.find_spec("triton") is None:
        return "lanes need Triton: pip install triton"
    return unserved(importlib.metadata.version("triton"))


def unserved(triton: str) -> str | None:
    """Why lanes cannot be recorded with this release of Triton, or None: no later one was compiled with records yet."""
    if tuple(map(int, triton.split(".")[:2])) <= NEWEST_TRITON:
        return None
    newest = ".".join(map(str, NEWEST_TRITON))
    return f"lanes need Triton {newest} or older, here is {triton}: pip install 'triton<={newest}'"


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Runs the case with records in its Triton kernels and writes the trace.

    Raises NotApplicable where the case launches no Triton kernel, where a kernel cannot have records, or where records slow it down
    more than ``SLOWDOWN`` times.
    """
    from tilescope.execution import execute, observe  # noqa: PLC0415 (they import torch)

    run = execute.prepare(spec, case, "cuda")
    run()
    observe.once(run, out, case)
    found = recorded(run, case.kernel, Machine(), float(settings.get("lanes_slowdown", AIM)))
    out.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0))


def recorded(run: Callable[[], Any], name: str, gpu: Machine, aim: float = AIM) -> dict[str, Any]:
    """The trace of a call of the kernel ``name``, with a cold L2. Raises NotApplicable.

    The kinds with records are the most with which the kernels take up to ``aim`` times as long; the fewest where none do.
    """
    import torch  # noqa: PLC0415

    from tilescope.collectors.lanes import recording  # noqa: PLC0415

    plain = gpu.timed(run)
    levels, slowdown = list(records.LEVELS), 1.0
    room, most, packed = recording.ROOM, recording.LARGEST, False
    while levels:
        kinds = levels[0]
        with recording.recording(kinds, room) as made:
            try:
                run()
            except recording.TooLarge as error:
                room = most = error.room
                continue
            torch.cuda.synchronize()
            if not made.launches:
                raise NotApplicable(f"{name} launches no Triton kernel")
            wanted = min(recording.room_of(made.launches), most)
            # Records close together cost a short kernel less memory traffic. Another call may need a little more.
            if wanted > room or (wanted * 4 <= room and not packed):
                room, packed = wanted if wanted > room else 2 * wanted, True
                continue
            made.keeping = False
            slow = gpu.timed(run)
            names = {launched.function for launched in made.launches}
            slowdown = _sum(slow, names) / _sum(plain, names)
            levels = records.fewer(levels, recording.operations(made.launches))
            if slowdown > (aim if levels else max(aim, SLOWDOWN)):
                continue
            made.launches.clear()
            made.keeping, made.left_out = True, 0
            run()
            clock = gpu.clock()
            return sampling.trace(made.launches, plain, slow, sorted(kinds), left_out=made.left_out, clock=clock)
    raise NotApplicable(_REFUSED.format(name, slowdown, SLOWDOWN))


def _sum(seconds: Durations, names: set[str]) -> float:
    return sum(float(np.median(seconds[name])) for name in names if seconds.get(name)) or float("nan")


class Machine:
    """The GPU, which times calls with a cold L2."""

    def __init__(self) -> None:
        from tilescope.execution import cold  # noqa: PLC0415 (it imports torch)

        self._flush, self.clock = cold.Flush(), cold.clock

    def flush(self) -> None:
        """Empties the L2."""
        from tilescope.collectors.lanes import recording  # noqa: PLC0415

        with recording.unrecorded():
            self._flush()

    def timed(self, run: Callable[[], Any]) -> Durations:
        """The durations of a call."""
        import torch  # noqa: PLC0415
        from torch.autograd.profiler import profile  # noqa: PLC0415

        run()
        with profile(use_device="cuda", use_kineto=True) as profiler:
            for _ in range(REPETITIONS):
                self.flush()
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


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows of each launch: how much records slow it down, the share of its warps' time in waits, and of its programs' time with a
    product in flight.
    """
    return rows(trace.load(artefact), case)


def rows(data: trace.Trace, case: Case) -> pd.DataFrame:
    """``parse``'s rows of a trace."""
    found = trace.spans(data)
    made = []
    for launch, told in enumerate(data.launches):
        own = found[found["launch"] == launch]
        values = {"lanes_slowdown": told["recorded"] / told["plain"]} if "recorded" in told and "plain" in told else {}
        values |= facts.of_launch(own)
        known = {"lane_programs_per_sm": "resident", "lane_tail_share": "tail"}
        values |= {metric: told[key] for metric, key in known.items() if key in told}
        made += [
            case.row(name, value, "lanes", launch=launch, function=told["function"]) for name, value in values.items()
        ]
    return schema.frame(made)


@bounded_reading.parser
def remark(artefact: Path) -> str:
    """A note on launches without lanes and operations without records; empty where all have them."""
    data = trace.load(artefact)
    count, left = len(data.launches), data.left_out
    said = [f"the call's first {count} launches have them, {left} do not: memory is full"] if left else []
    if without := sorted({kind for told in data.launches for kind in told.get("without", ())}):
        said.append(
            f"no records of {', '.join(without)}, which slow the kernel down too much (--lanes-slowdown allows more)"
        )
    return f"lanes: {'; '.join(said)}" if said else ""


@bounded_reading.parser
def parse_lines(artefact: Path, case: Case) -> tuple[pd.DataFrame, dict[str, str]]:
    """A warp's time at each source line, its waits there and their number, and no source files."""
    data = trace.load(artefact)
    told = data.launches
    sums = trace.by_line(trace.spans(data))
    rows: list[dict[str, Any]] = []
    for (launch, line), own in sums[sums["line"] > 0].groupby(["launch", "line"]):
        values = {"lane_time": own["time"].sum(), "lane_wait": own["waits"].sum(), "lane_records": own["count"].sum()}
        place = {"launch": launch, "function": told[launch]["function"], "file": told[launch]["file"], "line": line}
        rows += line_values.rows(case, "lanes", values, **place)
    return line_values.frame(rows), {}
