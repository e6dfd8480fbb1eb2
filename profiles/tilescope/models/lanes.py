"""Lanes: what the warps of a program do, who arrives at a barrier for whom, and the longest wait. Pure but for reading the artefact."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from tilescope.collectors.lanes import records, trace
from tilescope.runs import artefacts
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case

COLLECTOR = "lanes"
ARROWS = ["barrier", "from_warp", "from_time", "to_warp", "to_time"]


class Lanes(NamedTuple):
    """The lanes of a case. ``spans`` has the columns of ``collectors.lanes.trace``, ``launches`` what is known of each launch:
    ``function``, ``plain`` and ``recorded`` seconds without records and with them, ``kinds`` that have records.
    """

    spans: pd.DataFrame
    launches: list[dict[str, object]]


class Wait(NamedTuple):
    """The longest wait of a launch: its ``share`` of the warps' time, its line, and what it waits for."""

    share: float
    name: str
    line: int
    awaits: str


def of_case(loaded: LoadedRun, case: Case) -> Lanes | None:
    """The lanes that the run has of a case; None where it has none. Raises Unreadable."""
    path = artefacts.find(loaded.folder, COLLECTOR, case)
    if path is None:
        return None
    data = trace.load(path)
    return Lanes(trace.spans(data), data["tilescope"]["launches"])


def program(spans: pd.DataFrame, launch: int, number: int) -> pd.DataFrame:
    """The spans of one program, with times from its start and a ``lane`` for each warp: ``warp 8, partition1``."""
    own = spans[(spans["launch"] == launch) & (spans["program"] == number)]
    names = "warp " + own["warp"].astype(str) + own["group"].map(lambda group: f", {group}" if group else "")
    first = own["start"].min()
    return own.assign(lane=names, start=own["start"] - first, end=own["end"] - first).reset_index(drop=True)


def longest_wait(spans: pd.DataFrame) -> Wait | None:
    """The wait on which the warps spend most of their time; None where nothing waits."""
    sums = trace.by_line(spans)
    waits = sums[sums["kind"] == records.WAIT]
    if waits.empty:
        return None
    first = waits.iloc[0]
    return Wait(float(first["share"]), str(first["name"]), int(first["line"]), str(first["awaits"]))


def arrows(spans: pd.DataFrame) -> pd.DataFrame:
    """For each wait on a barrier in one program, the last arrival there before the wait ended, of any warp. Times as in ``spans``.

    The barriers of one ring count as one: a wait ends with the last of its barrier's arrivals, which need not be the ring's last.
    """
    found = []
    for barrier, own in spans[spans["barrier"] != ""].groupby("barrier", sort=False):
        arrived = own[own["arrives"]].sort_values("end")
        waits = own[own["kind"] == records.WAIT].sort_values("end")
        if arrived.empty or waits.empty:
            continue
        pairs = pd.merge_asof(
            waits[["warp", "end"]], arrived[["warp", "end"]].assign(from_time=arrived["end"]), on="end", suffixes=("_to", "_from")
        ).dropna()  # fmt: skip
        found.append(
            pd.DataFrame(
                {
                    "barrier": barrier, "from_warp": pairs["warp_from"].astype(int), "from_time": pairs["from_time"],
                    "to_warp": pairs["warp_to"].astype(int), "to_time": pairs["end"],
                }
            )
        )  # fmt: skip
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=ARROWS)
