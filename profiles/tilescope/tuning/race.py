"""The collector ``race``, behind ``tilescope tune``: races the configs of each sweep and keeps one artefact a config.

A config is compiled in a pool, checked against the reference, and timed by CUDA events with a cold L2 and rotated inputs.
Slow configs are dropped early, so configs have different numbers of samples. An artefact holds the config's resources, its
times, and the reason if it has none. Imports neither torch nor triton.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors import compiler
from tilescope.collectors.cupti import counters
from tilescope.files import bounded_reading
from tilescope.hardware import device
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.tuning import memory

SUFFIX = ".json"
#: Keys of an artefact that are not among ``memory.Timing.facts``.
_OF_TIMING = frozenset({"samples", "reason", "at", "remembered", "problem"})


def unavailable() -> str | None:
    """The reason why nothing can be timed here; None when it can."""
    return device.unavailable()


def capture_all(
    cases: Sequence[Case],
    load: Callable[[str], Any],
    folder: Path,
    settings: Mapping[str, Any],
    begin: Callable[[Case, str], None],
) -> Iterator[tuple[Case, BaseException | None]]:
    """Races the cases of each sweep; yields each case with its error, None where its artefact is written.

    Timings older than ``settings["fresh"]`` (UTC, ISO) are made anew.
    """
    from tilescope.tuning import sweep  # noqa: PLC0415 - it imports torch

    sweeps: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        sweeps.setdefault((case.kernel, case.impl, case.direction, case.workload), []).append(case)
    sweep.prepare()
    for each in sweeps.values():
        for case, result in sweep.Sweep(each, load(each[0].kernel), settings, begin).race():
            if isinstance(result, BaseException):
                yield case, result
            else:
                write(folder / f"{case.slug}{SUFFIX}", *result)
                yield case, None


def write(artefact: Path, problem: memory.Problem, timing: memory.Timing, remembered: bool) -> None:
    said = {
        **timing.facts,
        "samples": list(timing.samples),
        "reason": timing.reason,
        "at": timing.at,
        "remembered": remembered,
        "problem": dataclasses.asdict(problem),
    }
    artefact.write_text(json.dumps(said))


@bounded_reading.parser
def parse(artefact: Path, case: Case) -> pd.DataFrame:
    """The artefact's rows: ``interval`` and ``sustained_time`` (one a sample, seconds), ``sm_clock`` (hertz), the check's, the
    compiler's and CUPTI's.

    CUPTI's ``gpu_time`` is left out, because configs are compared by one clock.
    """
    data = bounded_reading.data_of(artefact)
    rows = [case.row("interval", value, "events", sample=sample) for sample, value in enumerate(data["samples"])]
    rows += [
        case.row("sustained_time", value, "events", sample=sample)
        for sample, value in enumerate(data.get(memory.SUSTAINED, ()))
    ]
    rows += [case.row("sm_clock", data["sm_clock"], "events")] if data.get("sm_clock") else []
    rows += [case.row(metric, value, "check") for metric, value in data.get("checked", {}).items()]
    rows += (
        [row for row in counters.rows(data["counted"], case) if row["metric"] != "gpu_time"]
        if "counted" in data
        else []
    )
    for launch, kernel in enumerate(data.get("kernels", ())):
        rows += compiler.rows_of(case, launch, kernel, kernel["target"])
    return schema.frame(rows)


@bounded_reading.parser
def failure(artefact: Path) -> str:
    """The reason why the config has no time; empty where it has one."""
    data = bounded_reading.data_of(artefact)
    return "" if data["samples"] else str(data["reason"])


@bounded_reading.parser
def remark(artefact: Path) -> str:
    """A note on the measurements: the config that they were taken of, if another, or why nothing was counted; else empty."""
    data = bounded_reading.data_of(artefact)
    like = data.get(memory.LIKE)
    if like and data["samples"]:
        return f"measurements are of {like}, which makes the same launch of the same code"
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
    """The problem, the config's name and its timing, from an artefact's text."""
    data = bounded_reading.data(text.encode())
    facts = {name: value for name, value in data.items() if name not in _OF_TIMING}
    told = memory.Timing(tuple(data["samples"]), data["reason"], data["at"], facts)
    return memory.Problem(**data["problem"]), str(data["config"]), told


def remembered(cases: Sequence[Case], target: str, fresh: str = "") -> dict[Case, tuple[memory.Problem, memory.Timing]]:
    """The remembered timings of the cases whose sweep is remembered as a whole, each with its problem.

    ``target`` is ``sm_90``; timings older than ``fresh`` (UTC, ISO) do not count. None of a user's own kernels is known here.
    Raises WinnersError where the memory cannot be read.
    """
    here, uuid = device.detect(), device.uuid()
    if here is None:
        return {}
    kept, known = memory.Memory(), dict[memory.Problem, dict[str, memory.Timing]]()
    sweeps: dict[memory.Problem, list[Case]] = {}
    for case in cases:
        problem = memory.of_sweep(case, memory.digest(case), here.name, uuid, target)
        sweeps.setdefault(problem, []).append(case)
    for problem in sweeps:
        known[problem] = memory.shared({n: timing for n, timing in kept.known(problem).items() if timing.at >= fresh})
    return {
        case: (problem, known[problem][memory.config_name(case)])
        for problem, each in sweeps.items()
        if all(memory.config_name(case) in known[problem] for case in each)
        for case in each
    }
