"""HBM traffic of fused against unfused code: bytes by launch beside the algorithm's floor, and what they predict.

Pure: frame -> frame. Bytes come from ncu or CUPTI (what DRAM moved) or the interpreter (distinct bytes of each launch, which is
what a cold cache must move); the two are separate rows with their source.
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

#: The implementation that the others are compared with: PyTorch's operations one after the other.
BASELINE = "eager"

#: Source -> metrics of bytes read and written, in order of preference.
BYTES = {
    **dict.fromkeys(COUNTERS, (("dram_bytes_read", "dram_bytes_written"),)),
    "interpreter": (("unique_bytes_read", "unique_bytes_written"), ("requested_bytes_read", "requested_bytes_written")),
}


#: The metric of a launch of which a sample of programs was interpreted.
SAMPLED = "sampled_bytes"
COLUMNS = [
    *KEYS,
    "launch",
    "function",
    "read",
    "written",
    "source",
    "metric",
    "floor_read",
    "floor_written",
    "counted",
    "programs",
]
SPEEDUP_COLUMNS = [
    *KEYS, "baseline", "bytes", "baseline_bytes", "bytes_source", "predicted",
    "gpu_time", "baseline_gpu_time", "time_source", "actual",
]  # fmt: skip


def traffic(table: pd.DataFrame) -> pd.DataFrame:
    """One row a launch and source: bytes ``read`` and ``written``, and which ``metric`` that was. Of a ``SAMPLED`` one ``counted`` of its
    ``programs`` were interpreted.

    ``floor_read`` and ``floor_written`` repeat what the whole case's algorithm must move (absent where no cost was
    declared); a row of source ``model`` with no launch holds the same as a bar of its own.
    """
    rows = [row for case in gather(table) for row in _rows(case)]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    numbers = ["read", "written", "floor_read", "floor_written", "counted", "programs"]
    return frame.astype({"launch": "Int32", **dict.fromkeys(numbers, "float64")})


def speedup(table: pd.DataFrame, baseline: str = BASELINE) -> pd.DataFrame:
    """Every case against the baseline implementation of the same problem.

    ``predicted`` is the ratio of bytes (baseline / case): what a memory-bound program gains by moving less; both from the
    same source, the interpreter first because it predicts. ``actual`` is the ratio of GPU times, both from the same
    source. Either is absent where one side is.
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
        rows.append(
            {
                **case.key,
                "baseline": baseline,
                "bytes": value_of(mine),
                "baseline_bytes": value_of(theirs),
                "bytes_source": mine.source if mine else "",
                "predicted": _ratio(theirs, mine),
                "gpu_time": value_of(time),
                "baseline_gpu_time": value_of(other_time),
                "time_source": time.source if time else "",
                "actual": _ratio(other_time, time),
            }
        )
    return pd.DataFrame(rows, columns=SPEEDUP_COLUMNS)


def moved(case: CaseValues, source: str) -> Known | None:
    """Bytes read and written by all launches together, as that source saw them."""
    for names in BYTES[source]:
        read, written = (case.total(name, source) for name in names)
        if read and written:
            return Known(read.value + written.value, source)
    return None


def by_launch(case: CaseValues, source: str) -> dict[int | None, float]:
    """Bytes that each launch moved through HBM, as that source counted them; of the whole case where it saw no launches."""
    return {launch: read + written for launch, _, read, written in _counted(case, source)}


def cold_chain(case: CaseValues, l2_bytes: int) -> bool:
    """Whether the HBM bytes that ncu counted of several launches may be far more than a call moves.

    It empties the caches before each launch, so what one leaves in L2 for the next is read again from HBM. Launches that each
    fit in an L2 of ``l2_bytes`` (0: not known) may find all of it there, so nothing is known of such a chain; one that moves
    more has driven out most of what the next one wants. Not where the call was counted as a whole (a value with no launch).
    """
    if case.launch_count("ncu") < 2 or None in case.values.get((BYTES["ncu"][0][0], "ncu"), {}):
        return False
    return cold([*by_launch(case, "ncu").values()], l2_bytes, fewest=1)


def cold(counted: Sequence[float], l2_bytes: int, fewest: int = 2) -> bool:
    """Whether launches that ncu counted those bytes of may be such a chain."""
    return len(counted) >= fewest and (not l2_bytes or max(counted) <= l2_bytes)


def _counted(case: CaseValues, source: str) -> Iterator[tuple[int | None, str, float, float]]:
    """The launches that the source saw, None where that is the whole case: the metric, and bytes read and written."""
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
