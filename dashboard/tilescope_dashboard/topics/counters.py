"""Counters of one launch: traffic between the levels of memory, and stalls of its warps."""

from __future__ import annotations

import pandas as pd
from tilescope.models import bound
from tilescope.models.function_names import said
from tilescope.table.case_table import CaseValues
from tilescope.table.metrics import METRICS, stall_name

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.counters import Flow, Level, Memory
from tilescope_dashboard.topics.sentence import Sentence

NOTHING = Sentence("Memory and stalls", "There are no hardware counters of this kernel.")
_READING = "An arrow is as wide as the bytes that this launch moved."
_BARS = "Each bar: cycles a warp waits for this reason per instruction issued. Selected: the warp issues."
_NO_BARS = "This launch has no stall reasons: profile it with ncu."
_STALL = "stall_"
#: Share of the bytes through L2 below which the loads and stores that L1 counted do not explain them.
_PAST = 0.01
#: Columns of ``listed``'s frame. Each row has its own unit, so values are texts.
COLUMNS = (
    Column("label", "counter"), Column("text", "value"), Column("metric", "name"), Column("source", "source"),
)  # fmt: skip


def launches(case: CaseValues) -> dict[str, int]:
    """The launches with counters, by their labels."""
    source = case.counted_by
    return {
        f"{number + 1}: {short(said(case.functions[source][number]), 60)}": number for number in case.launches(source)
    }


def memory(case: CaseValues, launch: int) -> Memory:
    """Bytes that the launch moved between the levels of memory. L1 counts loads and stores together. Absent values are None.

    TMA fills shared memory past L1's counters, which then say next to nothing of what L2 moved.
    """

    def value(metric: str) -> float | None:
        known = case.at(metric, launch, case.counted_by)
        return known.value if known else None

    def line(text: str, metric: str) -> str:
        known = value(metric)
        return "" if known is None else text.format(write(known, METRICS[metric].unit))

    def level(name: str, *lines: str) -> Level:
        return Level(name, tuple(filter(None, lines)))

    through, fetched = value("l1_bytes"), value("l2_to_l1_bytes") or value("l2_bytes")
    past = through is not None and fetched is not None and through < _PAST * fetched
    own = "TMA's loads are not counted" if past else line("{} hit rate", "l1_hit_rate")
    return Memory(
        (
            level("SMs", line("{} of chip peak", "sm_throughput"), line("{} bank conflicts", "bank_conflicts")),
            level("L1", own),
            level("L2", line("{} hit rate", "l2_hit_rate"), line("{} through it", "l2_bytes")),
            level("HBM", line("{} of chip peak", "dram_throughput")),
        ),
        (
            Flow("L1", "both", None if past else through),
            Flow("L2", "read", value("l2_to_l1_bytes")), Flow("L2", "written", value("l1_to_l2_bytes")),
            Flow("HBM", "read", value("dram_bytes_read")), Flow("HBM", "written", value("dram_bytes_written")),
        ),
    )  # fmt: skip


def stalls(case: CaseValues, launch: int) -> pd.DataFrame:
    """A row a state of its warps, by Nsight's names, the longest first.

    Columns are ``reason``, ``name``, ``cycles`` per issued instruction, their ``share``, and the state's ``meaning``.
    """
    rows = [
        (metric.removeprefix(_STALL), stall_name(metric.removeprefix(_STALL)), known.value)
        for metric in METRICS
        if metric.startswith(_STALL) and (known := case.at(metric, launch, case.counted_by))
    ]
    found = pd.DataFrame(rows, columns=["reason", "name", "cycles"]).astype({"cycles": "float64"})
    found["share"] = found["cycles"] / found["cycles"].sum()
    found["meaning"] = [bound.WAITS.get(reason, ("", ""))[0] for reason in found["reason"]]
    return found.sort_values("cycles", ascending=False, kind="stable").reset_index(drop=True)


def listed(case: CaseValues, launch: int) -> pd.DataFrame:
    """Every counter of the launch, with ``COLUMNS``."""
    rows = [
        (metric.label, write(known.value, "count" if name.startswith(_STALL) else metric.unit), name, known.source)
        for name, metric in METRICS.items()
        if (known := case.at(name, launch, case.counted_by))
    ]
    return pd.DataFrame(rows, columns=[column.name for column in COLUMNS])


def sentence(case: KernelCase, moved: Memory, waited: pd.DataFrame) -> Sentence:
    """The headline: bytes through HBM, and the longest stall."""
    through = [flow.value for flow in moved.flows if flow.below == "HBM" and flow.value is not None]
    said_of = [f"{write(sum(through), 'byte')} through HBM"] if len(through) == 2 else []
    stalled = waited[~waited["reason"].eq("selected")]
    if len(stalled):
        first = stalled.iloc[0]
        said_of.append(f"warps spend {write(first['share'], 'ratio')} of their cycles in {first['name']}")
    place = ", ".join(filter(None, (case.impl, case.workload, case.direction, case.config)))
    return Sentence("; ".join(said_of) or NOTHING.title, f"{place}. {_READING} {_BARS if len(waited) else _NO_BARS}")
