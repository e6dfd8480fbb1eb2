"""The hierarchical roofline: the points of cases and launches, and the roofs above them.

After Williams, Waterman and Patterson, "Roofline" (2009), with one memory roof a level and one compute roof a pipe.
There are up to three kinds of points: what the *algorithm* needs (declared cost), what the program *requested*
(interpreter; of a launch of too many programs as of a sample of them, *sampled*) and what the hardware *moved* (ncu, CUPTI). Pure: frame -> frame.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tilescope.hardware.roofs import WORK, Roofs, hbm_roof, pipe_of, roof
from tilescope.models import sampled
from tilescope.table.case_table import KEYS, CaseValues, Known, gather
from tilescope.table.run import Device

#: Bytes that the hardware moved at each level: counters that are summed, the first complete set counts. At L2 what
#: crosses to the multiprocessors comes first, because that is what the measured L2 roof counts.
MOVED = {
    "hbm": (("dram_bytes_read", "dram_bytes_written"),),
    "l2": (("l2_to_l1_bytes", "l1_to_l2_bytes"), ("l2_bytes",)),
    "l1": (("l1_bytes",),),
}

#: A launch counts as above the memory roof when its bandwidth passes it by more than the roof's own uncertainty.
_TOLERANCE = 1.02

COLUMNS = [
    *KEYS, "launch", "function", "kind", "level", "pipe", "flops", "flops_source", "bytes", "bytes_source", "intensity",
    "gpu_time", "time_source", "performance", "bandwidth", "memory_roof", "compute_roof", "origin", "attainable",
    "fraction", "above_roof", "executed", "executed_ratio",
]  # fmt: skip


def points(
    table: pd.DataFrame, device: Device, kernels: Mapping[str, Mapping[str, object]] | None = None
) -> pd.DataFrame:
    """One row a point: a case (``launch`` absent) or one launch, of one kind, at one memory level.

    ``flops`` are the operations that the algorithm needs, for every kind: operations beyond them are no performance.
    ``executed`` is what was counted instead, and ``executed_ratio`` its ratio to ``flops``. A launch among several has
    a share of ``flops`` by its ``executed``. Without a declared cost ``flops`` are those executed. ``flops_source`` and
    ``bytes_source`` say where the two come from.

    ``intensity`` is in flop/byte, ``gpu_time`` in seconds, ``performance`` in flop/second, ``bandwidth`` in
    byte/second; the last three are absent where nothing was timed. ``attainable`` is the height of the roofs at that
    intensity, ``fraction`` how much of it is reached, ``origin`` which roofs those are. At HBM they are those of
    ``roofs.hbm_roof``.

    ``above_roof`` marks a point that moved bytes faster than the memory roof allows: part of its data stayed in a
    nearer cache. ``requested`` and ``sampled`` bytes are given at L1, where requests arrive, and at HBM, whose traffic they bound.
    ``kernels`` is ``Run.kernels``; without it the pipe of declared work is inferred.
    """
    # Of 100,000 launches each asks for several roofs.
    known: Roofs = functools.cache(functools.partial(roof, device))
    rows = [row for case in gather(table) for row in _points(case, _held_against(case, known), kernels)]
    frame = _derived(pd.DataFrame(rows, columns=[*COLUMNS, "highest"]))
    numbers = ["flops", "bytes", "intensity", "gpu_time", "performance", "bandwidth", "memory_roof", "compute_roof",
               "attainable", "fraction", "executed", "executed_ratio"]  # fmt: skip
    return frame.astype({"launch": "Int32", "above_roof": "bool", **dict.fromkeys(numbers, "float64")})


def _derived(frame: pd.DataFrame) -> pd.DataFrame:
    """The points with what follows from their operations, bytes, time and roofs: of all at once, as there may be 200,000."""
    flops, moved, seconds, memory, compute, executed, highest = (
        frame[name].astype("float64")
        for name in ("flops", "bytes", "gpu_time", "memory_roof", "compute_roof", "executed", "highest")
    )
    intensity, performance, bandwidth = flops / moved.where(moved != 0), flops / seconds, moved / seconds
    return frame.assign(
        intensity=intensity,
        performance=performance,
        bandwidth=bandwidth,
        attainable=np.fmin(intensity * memory, compute),
        fraction=np.fmax(bandwidth / memory, performance / compute),
        above_roof=bandwidth > _TOLERANCE * highest,
        executed_ratio=executed / flops.where(flops != 0),
    )[COLUMNS]


def _held_against(case: CaseValues, known: Roofs) -> Roofs:
    """The roofs that one case is compared with: which roof of HBM that is depends on the case."""
    hbm = hbm_roof(case, known)
    return lambda name: hbm if name == "hbm" else known(name)


def _points(
    case: CaseValues, known: Roofs, kernels: Mapping[str, Mapping[str, object]] | None
) -> Iterator[dict[str, Any]]:
    time = case.gpu_time()
    whole = Known(time.value, time.source) if time else None
    pipe = pipe_of(case, kernels)
    needed = case.needed_bytes()
    declared = case.total("algorithm_flops", "model")
    if needed and declared:
        place = Place(None, "algorithm", "hbm")
        yield _point(case, known, place, pipe, flops=declared, moved=needed, time=whole)

    for launch in (None, *case.launches("interpreter")):
        executed = _at(case, "requested_flops", launch, "interpreter")
        flops = _needed(case, launch, "interpreter", executed, _at(case, "requested_flops", None, "interpreter"))
        requested = _sum(case, ("requested_bytes_read", "requested_bytes_written"), launch, "interpreter")
        at = whole if launch is None else case.launch_time(launch, "interpreter")
        if flops and requested:
            for level in ("hbm", "l1"):
                place = Place(launch, "requested", level)
                yield _point(case, known, place, pipe, flops=flops, executed=executed, moved=requested, time=at)

    yield from _sampled(case, known, pipe)

    together, counter = work(case, None, known), case.counted_by
    for launch in (None, *case.launches(counter)):
        at = whole if launch is None else case.launch_time(launch, counter)
        done = work(case, launch, known)
        executed = done[0] if done else None
        flops = _needed(case, launch, counter, executed, together[0] if together else None)
        # The declared pipe is that of the whole: of several launches each keeps its own busy.
        alone = launch is None or case.launch_count(counter) == 1
        busy = pipe if done is None or (alone and declared) else done[1]
        for level in MOVED:
            moved = moved_bytes(case, level, launch)
            if moved and flops:
                place = Place(launch, "moved", level)
                yield _point(case, known, place, busy, flops=flops, executed=executed, moved=moved, time=at)


def _sampled(case: CaseValues, known: Roofs, pipe: str) -> Iterator[dict[str, Any]]:
    """Points of what the program requested, of the call and of launches, where that is known of a sample of programs."""
    together, time = sampled.of_case(case), case.gpu_time()
    of_launch = [(launch, sampled.of_launch(case, launch)) for launch in case.launches("interpreter")]
    places: list[tuple[int | None, sampled.Sampled | None]] = [(None, together), *of_launch]
    for launch, found in places:
        if found is None:
            continue
        executed, moved = Known(found.flops, "interpreter"), Known(found.read + found.written, "interpreter")
        flops = _needed(
            case, launch, "interpreter", executed, Known(together.flops, "interpreter") if together else None
        )
        whole = Known(time.value, time.source) if time else None
        at = whole if launch is None else case.launch_time(launch, "interpreter")
        for level in ("hbm", "l1"):
            if flops:
                place = Place(launch, "sampled", level)
                yield _point(case, known, place, pipe, flops=flops, executed=executed, moved=moved, time=at)


def _needed(
    case: CaseValues, launch: int | None, source: str, executed: Known | None, together: Known | None
) -> Known | None:
    """The algorithm's operations in a launch (None: in the case), which are what performance counts.

    Of several launches each has its part of those executed together; where no cost is declared, those it executed.
    """
    declared = case.total("algorithm_flops", "model")
    if declared is None:
        return executed
    if launch is None or case.launch_count(source) == 1:
        return declared
    if not (executed and together and together.value):
        return None
    return Known(declared.value * executed.value / together.value, declared.source)


def moved_bytes(case: CaseValues, level: str, launch: int | None = None) -> Known | None:
    """Bytes that the counters saw move at a memory level, of one launch or (None) of all.

    None at L1 where tensor-memory loads go past the counter: it then shows less than L2 sent.
    """
    found = next((k for names in MOVED[level] if (k := _sum(case, names, launch, case.counted_by))), None)
    if level == "l1" and found:
        fetched = _at(case, "l2_to_l1_bytes", launch, case.counted_by)
        if fetched and fetched.value > found.value:
            return None
    return found


def work(case: CaseValues, launch: int | None, known: Roofs) -> tuple[Known, str] | None:
    """Operations that were counted, and the pipe that they keep busy longest. None where that was not counted."""
    done: dict[str, float] = {}
    for metric, pipe in WORK.items():
        counted = _at(case, metric, launch, case.counted_by)
        if counted:
            done[pipe] = done.get(pipe, 0.0) + counted.value
    if "fp32" not in done and not any(done.values()):
        # Idle tensor cores alone do not say that nothing was computed.
        return None

    def busy(pipe: str) -> float:
        ceiling = known(pipe)
        return done[pipe] / ceiling.value if ceiling else 0.0

    dominant = max(done, key=lambda pipe: (busy(pipe), done[pipe], pipe == "fp32"))
    return Known(sum(done.values()), case.counted_by), dominant


def _at(case: CaseValues, metric: str, launch: int | None, source: str) -> Known | None:
    return case.total(metric, source) if launch is None else case.at(metric, launch, source)


def _sum(case: CaseValues, metrics: tuple[str, ...], launch: int | None, source: str) -> Known | None:
    """The metrics added up; None when one of them is absent."""
    found = [_at(case, metric, launch, source) for metric in metrics]
    values = [known.value for known in found if known]
    return Known(sum(values), source) if len(values) == len(metrics) else None


def _highest(known: Roofs, level: str) -> float:
    """The highest bandwidth seen at a level: reading alone is faster than copying."""
    names = ("hbm", "hbm_read") if level == "hbm" else (level,)
    return max((ceiling.value for name in names if (ceiling := known(name))), default=math.nan)


class Place(NamedTuple):
    """Which point it is: of what launch (None: the case), of what kind, at what memory level."""

    launch: int | None
    kind: str
    level: str


def _point(
    case: CaseValues,
    known: Roofs,
    place: Place,
    pipe: str,
    *,
    flops: Known,
    moved: Known,
    time: Known | None,
    executed: Known | None = None,
) -> dict[str, Any]:
    launch, kind, level = place
    memory, compute = known(level), known(pipe)
    origins = dict.fromkeys(c.origin for c in (memory, compute) if c)
    functions = case.functions.get(moved.source, {})
    return {
        **case.key,
        "launch": launch,
        "function": "" if launch is None else functions.get(launch, ""),
        "kind": kind,
        "level": level,
        "pipe": pipe,
        "flops": flops.value,
        "flops_source": flops.source,
        "bytes": moved.value,
        "bytes_source": moved.source,
        "gpu_time": time.value if time and time.value > 0 else math.nan,
        "time_source": time.source if time else "",
        "memory_roof": memory.value if memory else math.nan,
        "compute_roof": compute.value if compute else math.nan,
        "origin": "+".join(origins),
        "executed": executed.value if executed else math.nan,
        "highest": _highest(known, level),
    }
