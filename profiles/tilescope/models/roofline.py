"""The hierarchical roofline: the points of cases and launches, and the roofs above them.

After Williams, Waterman and Patterson, "Roofline" (2009), with one memory roof a level and one compute roof a pipe. Points are
of four kinds: *algorithm* (declared cost), *requested* (interpreter), *sampled* (interpreter, from a sample of programs) and
*moved* (ncu, CUPTI). Pure: frame -> frame.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tilescope.hardware.roofs import WORK, Roofs, hbm_roof, pipe_of, roof
from tilescope.models import sampled
from tilescope.table.case_table import KEYS, CaseValues, Known, gather, value_of
from tilescope.table.run import Ceiling, Device

#: Sets of counters whose sum is the bytes moved at a level; the first complete set is taken. At L2, bytes that cross to the
#: multiprocessors come first, because the measured L2 roof counts these.
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

    ``flops`` are the algorithm's operations for every kind, because further operations are no performance. ``executed`` are the
    counted ones, and ``executed_ratio`` their ratio to ``flops``. A launch among several has a share of ``flops`` by its
    ``executed``. Without a declared cost ``flops`` are those executed. ``flops_source`` and ``bytes_source`` are their sources.

    ``intensity`` is in flop/byte, ``gpu_time`` in seconds, ``performance`` in flop/second, ``bandwidth`` in
    byte/second; the last three are absent where nothing was timed. ``attainable`` is the height of the roofs at that
    intensity, ``fraction`` the share of it that is reached, ``origin`` the roofs' origin (measured or datasheet). The HBM roof is
    that of ``roofs.hbm_roof``.

    ``above_roof`` marks a point that moved bytes faster than the memory roof, so that a nearer cache held part of its data.
    ``requested`` and ``sampled`` bytes are given at L1, where requests arrive, and at HBM, whose traffic they bound.
    ``kernels`` is ``Run.kernels``; without it the pipe of declared work is inferred.
    """
    # Cached, because each of up to 100,000 launches looks up several roofs.
    known: Roofs = functools.cache(functools.partial(roof, device))
    rows = [row for case in gather(table) for row in _points(case, known, kernels)]
    frame = _derived(pd.DataFrame(rows, columns=[*COLUMNS, "highest"]))
    numbers = ["flops", "bytes", "intensity", "gpu_time", "performance", "bandwidth", "memory_roof", "compute_roof",
               "attainable", "fraction", "executed", "executed_ratio"]  # fmt: skip
    return frame.astype({"launch": "Int32", "above_roof": "bool", **dict.fromkeys(numbers, "float64")})


def _derived(frame: pd.DataFrame) -> pd.DataFrame:
    """The points with the columns that are computed, for all points at once because there may be 200,000."""
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


def _points(
    case: CaseValues, roofs: Roofs, kernels: Mapping[str, Mapping[str, object]] | None
) -> Iterator[dict[str, Any]]:
    hbm = hbm_roof(case, roofs)

    def known(name: str) -> Ceiling | None:
        return hbm if name == "hbm" else roofs(name)

    time = case.gpu_time()
    whole = Known(time.value, time.source) if time else None
    pipe = pipe_of(case, kernels)
    needed = case.needed_bytes()
    declared = case.total("algorithm_flops", "model")
    if needed and declared:
        yield _point(case, known, "algorithm", "hbm", pipe, flops=declared, moved=needed, time=whole)

    for kind, interpreted in (("requested", _requested), ("sampled", _sampled)):
        every, _ = interpreted(case, None)
        for launch in (None, *case.launches("interpreter")):
            executed, moved = interpreted(case, launch)
            flops = _needed(case, launch, "interpreter", executed, every)
            at = whole if launch is None else case.launch_time(launch, "interpreter")
            if flops and moved:
                for level in ("hbm", "l1"):
                    yield _point(case, known, kind, level, pipe, launch=launch, flops=flops, executed=executed, moved=moved, time=at)  # fmt: skip

    together, counter = work(case, None, known), case.counted_by
    for launch in (None, *case.launches(counter)):
        at = whole if launch is None else case.launch_time(launch, counter)
        done = work(case, launch, known)
        executed = done[0] if done else None
        flops = _needed(case, launch, counter, executed, together[0] if together else None)
        # The declared pipe is the whole case's; a launch among several has the pipe that it keeps busy.
        alone = launch is None or case.launch_count(counter) == 1
        busy = pipe if done is None or (alone and declared) else done[1]
        for level in MOVED:
            moved = moved_bytes(case, level, launch)
            if moved and flops:
                yield _point(case, known, "moved", level, busy, launch=launch, flops=flops, executed=executed, moved=moved, time=at)  # fmt: skip


def _requested(case: CaseValues, launch: int | None) -> tuple[Known | None, Known | None]:
    """Operations and bytes that the interpreter counted, of a launch or (None) of the case."""
    flops = _at(case, "requested_flops", launch, "interpreter")
    return flops, _sum(case, ("requested_bytes_read", "requested_bytes_written"), launch, "interpreter")


def _sampled(case: CaseValues, launch: int | None) -> tuple[Known | None, Known | None]:
    found = sampled.of_case(case) if launch is None else sampled.of_launch(case, launch)
    if found is None:
        return None, None
    return Known(found.flops, "interpreter"), Known(found.read + found.written, "interpreter")


def _needed(
    case: CaseValues, launch: int | None, source: str, executed: Known | None, together: Known | None
) -> Known | None:
    """The algorithm's operations in a launch (None: in the case).

    A launch among several has a share by its executed operations. Without a declared cost they are those executed.
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
    """Counted bytes at a memory level, of one launch or (None) of all.

    None at L1 where tensor-memory loads bypass the counter, which then shows less than L2 sent.
    """
    found = next((k for names in MOVED[level] if (k := _sum(case, names, launch, case.counted_by))), None)
    if level == "l1" and found:
        fetched = _at(case, "l2_to_l1_bytes", launch, case.counted_by)
        if fetched and fetched.value > found.value:
            return None
    return found


def work(case: CaseValues, launch: int | None, known: Roofs) -> tuple[Known, str] | None:
    """Counted operations, and the pipe that they keep busy longest. None where they were not counted."""
    done: dict[str, float] = {}
    for metric, pipe in WORK.items():
        counted = _at(case, metric, launch, case.counted_by)
        if counted:
            done[pipe] = done.get(pipe, 0.0) + counted.value
    if "fp32" not in done and not any(done.values()):
        # Idle tensor cores alone do not show that nothing was computed.
        return None

    def busy(pipe: str) -> float:
        ceiling = known(pipe)
        return done[pipe] / ceiling.value if ceiling else 0.0

    dominant = max(done, key=lambda pipe: (busy(pipe), done[pipe], pipe == "fp32"))
    return Known(sum(done.values()), case.counted_by), dominant


def _at(case: CaseValues, metric: str, launch: int | None, source: str) -> Known | None:
    return case.total(metric, source) if launch is None else case.at(metric, launch, source)


def _sum(case: CaseValues, metrics: tuple[str, ...], launch: int | None, source: str) -> Known | None:
    found = [_at(case, metric, launch, source) for metric in metrics]
    values = [known.value for known in found if known]
    return Known(sum(values), source) if len(values) == len(metrics) else None


def _highest(known: Roofs, level: str) -> float:
    """The highest bandwidth of a level: at HBM, reading alone is faster than copying."""
    names = ("hbm", "hbm_read") if level == "hbm" else (level,)
    return max((ceiling.value for name in names if (ceiling := known(name))), default=math.nan)


def _point(
    case: CaseValues,
    known: Roofs,
    kind: str,
    level: str,
    pipe: str,
    *,
    launch: int | None = None,
    flops: Known,
    moved: Known,
    time: Known | None,
    executed: Known | None = None,
) -> dict[str, Any]:
    memory, compute = known(level), known(pipe)
    origins = dict.fromkeys(c.origin for c in (memory, compute) if c)
    functions = case.functions.get(moved.source, {})
    return {
        **case.key, "launch": launch, "function": "" if launch is None else functions.get(launch, ""), "kind": kind, "level": level,
        "pipe": pipe, "flops": flops.value, "flops_source": flops.source, "bytes": moved.value, "bytes_source": moved.source,
        "gpu_time": time.value if time and time.value > 0 else math.nan, "time_source": time.source if time else "",
        "memory_roof": memory.value if memory else math.nan, "compute_roof": compute.value if compute else math.nan, "origin": "+".join(origins),
        "executed": value_of(executed), "highest": _highest(known, level),
    }  # fmt: skip
