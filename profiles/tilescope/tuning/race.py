"""The configs of a sweep raced against each other: the collector behind ``tilescope tune``.

Each is compiled in a pool, checked against the reference, and timed by CUDA events with a cold L2 and rotated inputs: what is
surely slower than the leader is dropped after few calls, so that configs have different numbers of samples. One artefact a
config says what it needs, how long it took, and why it was not timed if it was not. Imports neither torch nor triton.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors.cupti import counters
from tilescope.files import bounded_reading
from tilescope.hardware import device, occupancy
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.tuning import memory, problems

SUFFIX = ".json"
#: Sets of inputs taken in turn.
ROTATE = 3
#: Figures of a kernel that go into the table under their own name, as the compiler's.
_FIGURES = (
    "registers", "shared_memory", "spill_bytes_stored", "spill_bytes_loaded", "stack_bytes", "barriers", "block_threads",
    "grid_blocks", "compile_time",
)  # fmt: skip

#: What of an artefact is the timing, and not a fact beside it.
_OF_TIMING = frozenset({"samples", "reason", "at", "remembered", "problem"})
#: What is left of cases, settled one after the other.
Settled = Iterator[tuple[Case, BaseException | None]]


def unavailable() -> str | None:
    """Why nothing can be timed here; None when it can."""
    return device.unavailable()


def capture(case: Case, spec: Any, out: Path, settings: Mapping[str, Any]) -> None:
    """Races the case alone."""
    for _, error in capture_all([case], lambda kernel: spec, out.parent, settings, lambda case, doing: None):
        if error:
            raise error


def capture_all(
    cases: Sequence[Case],
    load: Callable[[str], Any],
    folder: Path,
    settings: Mapping[str, Any],
    begin: Callable[[Case, str], None],
) -> Settled:
    """Races the cases of each sweep. With ``settings["fresh"]``, a moment (UTC, ISO), what was timed before it does not count."""
    from tilescope.tuning import sweep  # noqa: PLC0415 - torch comes with it

    sweeps: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        sweeps.setdefault((case.kernel, case.impl, case.direction, case.workload), []).append(case)
    sweep.prepare()
    for each in sweeps.values():
        yield from sweep.Sweep(each, load(each[0].kernel), folder, settings, begin).race()


def write(artefact: Path, problem: memory.Problem, timing: memory.Timing, remembered: bool) -> None:
    """Writes the artefact of a config."""
    said = {
        **timing.facts,
        "samples": list(timing.samples),
        "reason": timing.reason,
        "at": timing.at,
        "remembered": remembered,
        "problem": memory.as_data(problem),
    }
    artefact.write_text(json.dumps(said))


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """Rows ``interval`` (one a sample, seconds), ``sm_clock`` (hertz, at the end), and those of the check, the compiler and CUPTI.

    CUPTI's time is left out: configs are compared by one clock.
    """
    data = bounded_reading.data_of(artefact)
    rows = [case.row("interval", value, "events", sample=sample) for sample, value in enumerate(data["samples"])]
    rows += [case.row("sm_clock", data["sm_clock"], "events")] if data.get("sm_clock") else []
    rows += [case.row(metric, value, "check") for metric, value in data.get("checked", {}).items()]
    rows += (
        [row for row in counters.rows(data["counted"], case) if row["metric"] != "gpu_time"]
        if "counted" in data
        else []
    )
    for launch, kernel in enumerate(data.get("kernels", ())):
        figures = {name: float(kernel[name]) for name in _FIGURES if kernel.get(name) is not None}
        held = occupancy.blocks(
            kernel["target"], kernel["registers"], kernel["shared_memory"], kernel["block_threads"], kernel["barriers"]
        )
        figures["theoretical_occupancy"] = held.ratio
        figures |= {f"occupancy_limit_{name}": float(count) for name, count in held.limits.items()}
        rows += [
            case.row(name, value, "compiler", launch=launch, function=kernel["function"])
            for name, value in figures.items()
        ]
    return schema.frame(rows)


@bounded_reading.parser
def failure(artefact: Path) -> str:
    """Why the config has no time; empty where it has one."""
    data = bounded_reading.data_of(artefact)
    return "" if data["samples"] else str(data["reason"])


@bounded_reading.parser
def remark(artefact: Path) -> str:
    """Whose measurements the config has, where it is not its own, or why it was not counted; else empty."""
    data = bounded_reading.data_of(artefact)
    like = data.get(memory.LIKE)
    if like and data["samples"]:
        return f"what was measured is of {like}, which launches the same code alike"
    return str(data.get("uncounted", ""))


@bounded_reading.parser
def winner(artefact: Path, configs: int) -> memory.Winner:
    """The config of the artefact as the winner over ``configs`` that were timed."""
    data = bounded_reading.data_of(artefact)
    timing = memory.Timing(tuple(data["samples"]), data["reason"], data["at"])
    config = data["config"]
    if timing.median is None:
        raise ValueError("it was not timed")
    problem = memory.Problem(**data["problem"])
    return memory.Winner(problem, config, timing.median, configs, timing.at, data.get("launches", ()))


def timing(text: str) -> tuple[memory.Problem, str, memory.Timing]:
    """What an artefact says of its config: of which problem it is, and its name there."""
    data = bounded_reading.data(text.encode())
    facts = {name: value for name, value in data.items() if name not in _OF_TIMING}
    told = memory.Timing(tuple(data["samples"]), data["reason"], data["at"], facts)
    return memory.Problem(**data["problem"]), str(data["config"]), told


def remembered(cases: Sequence[Case], target: str, fresh: str = "") -> dict[Case, tuple[memory.Problem, memory.Timing]]:
    """What is known of the cases, of kernels of the catalog, if all configs of their sweep are known; nothing of other sweeps."""
    here, uuid = device.detect(), device.uuid()
    if here is None:
        return {}
    kept, known = memory.Memory(), dict[memory.Problem, dict[str, memory.Timing]]()
    sweeps: dict[memory.Problem, list[Case]] = {}
    for case in cases:
        if digest := problems.digest(case):
            sweeps.setdefault(problems.of_sweep(case, digest, here.name, uuid, target), []).append(case)
    for problem in sweeps:
        known[problem] = memory.shared({n: timing for n, timing in kept.known(problem).items() if timing.at >= fresh})
    return {
        case: (problem, known[problem][name_of(case)])
        for problem, each in sweeps.items()
        if all(name_of(case) in known[problem] for case in each)
        for case in each
    }


def name_of(case: Case) -> str:
    """The case's config as the memory names it."""
    return case.config or problems.DEFAULT
