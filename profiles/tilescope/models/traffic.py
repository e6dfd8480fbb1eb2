"""HBM traffic by launch beside the algorithm's bytes, and the speedup that fewer bytes predict.

Pure: frame -> frame. Bytes come from ncu or CUPTI (moved at DRAM) or from the interpreter (a launch's distinct bytes, which a cold
cache must fetch); each source has rows of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from tilescope.models import sampled
from tilescope.table.case_table import (
    KEYS,
    CaseValues,
    Known,
    Spread,
    by_problem,
    gather,
    gpu_times,
    problem_of,
    value_of,
)
from tilescope.table.sources import COUNTERS

#: The implementation that others are compared with: PyTorch's operations one by one.
BASELINE = "eager"

#: Source -> metrics of bytes read and written, in order of preference.
BYTES = {
    **dict.fromkeys(COUNTERS, (("dram_bytes_read", "dram_bytes_written"),)),
    "interpreter": (("unique_bytes_read", "unique_bytes_written"), ("requested_bytes_read", "requested_bytes_written")),
}

#: The metric of a launch of which only a sample of programs was interpreted.
SAMPLED = "sampled_bytes"
COLUMNS = [
    *KEYS, "launch", "function", "read", "written", "source", "metric", "floor_read", "floor_written", "counted", "programs",
]  # fmt: skip
SPEEDUP_COLUMNS = [
    *KEYS, "baseline", "bytes", "baseline_bytes", "bytes_source", "predicted",
    "gpu_time", "baseline_gpu_time", "time_source", "actual",
]  # fmt: skip


def traffic(table: pd.DataFrame) -> pd.DataFrame:
    """One row a launch and source: bytes ``read`` and ``written``, and their ``metric``.

    A ``SAMPLED`` row is estimated from ``counted`` of the launch's ``programs``. ``floor_read`` and ``floor_written`` repeat the
    whole case's algorithm's bytes (absent where no cost was declared); a row of source ``model`` without a launch has the same
    for a bar of its own.
    """
    rows = [row for case in gather(table) for row in _rows(case)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    numbers = ["read", "written", "floor_read", "floor_written", "counted", "programs"]
    return frame.astype({"launch": "Int32", **dict.fromkeys(numbers, "float64")})


def speedup(table: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Every case against the baseline implementation of the same problem.

    ``predicted`` is the ratio of bytes (baseline / case), the gain of a memory-bound program; the interpreter is the preferred
    source. ``actual`` is the ratio of GPU times. Both sides of a ratio are from one source, and it is absent where one side is.
    """
    cases = gather(table)
    problems = by_problem(cases)
    rows = []
    for case in cases:
        other = problems[problem_of(case)].get(baseline)
        if other is None or case.key["impl"] == baseline:
            continue
        mine, theirs = _same(case, other)
        time, other_time = gpu_times(case, other) or (None, None)
        rows.append({
            **case.key, "baseline": baseline, "bytes": value_of(mine), "baseline_bytes": value_of(theirs),
            "bytes_source": mine.source if mine else "", "predicted": _ratio(theirs, mine), "gpu_time": value_of(time),
            "baseline_gpu_time": value_of(other_time), "time_source": time.source if time else "", "actual": _ratio(other_time, time),
        })  # fmt: skip
    return pd.DataFrame(rows, columns=SPEEDUP_COLUMNS)


def moved(case: CaseValues, source: str) -> Known | None:
    """Bytes read and written by all launches together, from that source."""
    for names in BYTES[source]:
        read, written = (case.total(name, source) for name in names)
        if read and written:
            return Known(read.value + written.value, source)
    return None


def by_launch(case: CaseValues, source: str) -> dict[int | None, float]:
    """HBM bytes of each launch from that source; of the whole case (None) where it has no launches."""
    return {launch: read + written for launch, _, read, written in _counted(case, source)}


def cold_chain(case: CaseValues, l2_bytes: int) -> bool:
    """Whether ncu's HBM bytes of several launches may be far more than a call moves.

    ncu empties the caches before each launch, so data that one launch leaves in L2 for the next is read from HBM again. This
    matters if every launch fits in an L2 of ``l2_bytes`` (0: not known); a larger one evicts most of the next one's data anyway.
    It does not apply where the call was counted as a whole (a value without a launch).
    """
    if case.launch_count("ncu") < 2 or None in case.values.get((BYTES["ncu"][0][0], "ncu"), {}):
        return False
    return cold([*by_launch(case, "ncu").values()], l2_bytes, fewest=1)


def cold(counted: Sequence[float], l2_bytes: int, fewest: int = 2) -> bool:
    """Whether launches with these HBM bytes, counted by ncu, may be such a chain."""
    return len(counted) >= fewest and (not l2_bytes or max(counted) <= l2_bytes)


def _counted(case: CaseValues, source: str) -> Iterator[tuple[int | None, str, float, float]]:
    """Each launch from the source (None: the whole case) with its metric and its bytes read and written."""
    launches: list[int | None] = [*case.launches(source)]
    for launch in launches or [None]:
        for names in BYTES[source]:
            read, written = (case.at(name, launch, source) for name in names)
            if read and written:
                yield launch, names[0].removesuffix("_read"), read.value, written.value
                break


def _rows(case: CaseValues) -> Iterator[dict[str, Any]]:
    floor = case.algorithm_bytes() or (None, None)
    common = {**case.key, "floor_read": value_of(floor[0]), "floor_written": value_of(floor[1])}
    for source in BYTES:
        for launch, metric, way_in, way_out in _counted(case, source):
            function = "" if launch is None else case.functions[source].get(launch, "")
            counted = {"read": way_in, "written": way_out, "source": source, "metric": metric}
            yield {**common, "launch": launch, "function": function, **counted}
    for launch in case.launches("interpreter"):
        if found := sampled.of_launch(case, launch):
            function = case.functions["interpreter"].get(launch, "")
            yield {
                **common, "launch": launch, "function": function, "read": found.read, "written": found.written,
                "source": "interpreter", "metric": SAMPLED, "counted": found.counted, "programs": found.programs,
            }  # fmt: skip
    if all(floor):
        read, written = common["floor_read"], common["floor_written"]
        yield {
            **common, "launch": None, "function": "", "read": read, "written": written,
            "source": "model", "metric": "algorithm_bytes",
        }  # fmt: skip


def _same(case: CaseValues, other: CaseValues) -> tuple[Known | None, Known | None]:
    for source in ("interpreter", *COUNTERS):
        mine, theirs = moved(case, source), moved(other, source)
        if mine and theirs:
            return mine, theirs
    return None, None


def _ratio(above: Known | Spread | None, below: Known | Spread | None) -> float:
    return above.value / below.value if above and below and below.value else math.nan
