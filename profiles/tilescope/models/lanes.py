"""Lanes: what the warps of a program do, who waits for whom, and the critical path. Pure but for reading the artefact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
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
    """The arrival that ends each wait of one program: at a barrier, or of the last warp at a barrier of the block. Times as in ``spans``."""
    found = [*_block_barriers(spans[spans["name"] == records.BLOCK_BARRIER])]
    for barrier, own in spans[spans["barrier"] != ""].groupby("barrier", sort=False):
        arrived = own[own["arrives"]].sort_values("end")
        for warp, waits in own[own["kind"] == records.WAIT].groupby("warp"):
            if len(arrived):
                found += [(barrier, *pair, warp, end) for *pair, end in _in_turn(arrived, waits) if pair[1] <= end]
    return pd.DataFrame(found, columns=ARROWS)


def _in_turn(arrived: pd.DataFrame, waits: pd.DataFrame) -> Iterable[tuple[int, float, float]]:
    """The warp and the time of the arrival that ends each wait of a warp, and the end of the wait. NaN where nothing had to arrive.

    The barriers of a ring count as one, whose waits and arrivals are of its steps in turn. A step may have several of either. Waits for
    a free place in the ring are ahead of the arrivals by the number of its places, which is the least with which none comes too late.
    """
    ends = np.sort(waits["end"].to_numpy())
    steps: dict[int, tuple[float, int]] = {}
    for warp, own in arrived.groupby("warp"):
        each = _each_step(own, len(ends))
        for place, end in enumerate(own["end"]):
            steps[place // each] = max(steps.get(place // each, (0.0, 0)), (float(end), int(warp)))
    several = _each_step(waits, len(steps))
    nothing = float("nan"), -1
    for ahead in range(len(steps)):
        came = [steps.get(place // several - ahead, nothing) for place in range(len(ends))]
        if all(not time > end for (time, _), end in zip(came, ends, strict=True)):
            return [(warp, time, end) for (time, warp), end in zip(came, ends, strict=True)]
    times = arrived["end"].to_numpy()
    last = np.searchsorted(times, ends, side="right") - 1
    return zip(arrived["warp"].to_numpy()[last], np.where(last < 0, np.nan, times[last]), ends, strict=True)


def _each_step(operations: pd.DataFrame, steps: int) -> int:
    """How many of a warp's operations belong to one of so many steps. An operation before or after the loop does not count."""
    return max(1, sum(int(count / steps + 0.4) for count in operations["operation"].value_counts()))


def _block_barriers(spans: pd.DataFrame) -> Iterator[tuple[str, int, float, int, float]]:
    turn = spans.groupby(["warp", "operation"]).cumcount()
    for _, own in spans.groupby([spans["group"], spans["operation"], turn], sort=False):
        last = own.loc[own["start"].idxmax()]
        for warp, end in own.loc[own["warp"] != last["warp"], ["warp", "end"]].itertuples(index=False):
            yield records.BLOCK_BARRIER, int(last["warp"]), float(last["start"]), int(warp), float(end)


def critical_path(spans: pd.DataFrame, arrows: pd.DataFrame) -> pd.DataFrame:
    """The spans, or parts of them, that one program's time consists of, in their order: each begins when the one before it ends.

    The path leads back from the end of the last warp. It passes from a wait to the warp whose arrival ended it. The time between the
    arrival and the end of the wait stays the wait's, such as a copy's flight. ``spans`` and ``arrows`` are those of ``program`` and of
    ``arrows``.
    """
    lanes = {warp: own.index.to_numpy() for warp, own in spans.groupby("warp")}
    starts, ends = spans["start"].to_numpy(), spans["end"].to_numpy()
    came = {(to, end): (warp, time) for _, warp, time, to, end in arrows.itertuples(index=False)}
    warps = spans["warp"].to_numpy()
    at = int(ends.argmax())
    warp, time, first = warps[at], ends[at], starts.min()
    found = []
    while time > first:
        own = lanes[warp]
        place = int(np.searchsorted(starts[own], time)) - 1
        if place < 0:  # the lane begins here, for which the first one let it
            warp = warps[starts.argmin()]
            continue
        row = own[place]
        other, arrived = came.get((warp, ends[row]), (warp, 0.0))
        begin = max(starts[row], arrived)
        if begin < time:
            found.append((row, begin, time))
        warp, time = (other if begin > starts[row] else warp), begin
    rows, begins, finishes = zip(*reversed(found), strict=True) if found else ((), (), ())
    return spans.loc[list(rows)].assign(start=list(begins), end=list(finishes)).reset_index(drop=True)


def by_line(spans: pd.DataFrame) -> pd.DataFrame:
    """``trace.by_line`` of a launch, with the share of its programs' ``critical`` paths."""
    found, path = trace.by_line(spans), critical_paths(spans)
    spent = (path["end"] - path["start"]).groupby([path[name] for name in trace.LINE]).sum()
    return found.join((spent / spent.sum()).rename("critical"), on=trace.LINE).fillna({"critical": 0.0})


def by_step(spans: pd.DataFrame, *others: pd.DataFrame) -> list[pd.DataFrame]:
    """The spans, arrows and path of a program along the steps of its loop: times become the number of the step and the part of it.

    A step begins with the operation that the first warp with products repeats most, or the first warp. ``began`` and ``duration`` stay times.
    """
    known = spans[spans["kind"] == records.PRODUCT]
    known = known if len(known) else spans[spans["operation"] >= 0]
    first = known[known["warp"] == known["warp"].min()]
    starts = first.loc[first["operation"] == first["operation"].mode().iloc[0], "start"].to_numpy()
    places = np.arange(len(starts), dtype=float)
    rate = 1 / np.median(np.diff(starts)) if len(starts) > 1 else 1 / spans["end"].max()

    def step(times: pd.Series) -> np.ndarray:
        outside = np.minimum(times - starts[0], 0) + np.maximum(times - starts[-1], 0)
        found: np.ndarray = np.interp(times, starts, places) + outside.to_numpy() * rate
        return found

    timed = {"began": spans["start"], "duration": spans["end"] - spans["start"]}
    return [
        frame.assign(**{name: step(frame[name]) for name in ("start", "end", "from_time", "to_time") if name in frame})
        for frame in (spans.assign(**timed), *others)
    ]


def critical_paths(spans: pd.DataFrame) -> pd.DataFrame:
    """The critical paths of all programs of a launch."""
    programs = [program(spans, *of) for of in spans[["launch", "program"]].drop_duplicates().itertuples(index=False)]
    return pd.concat([critical_path(own, arrows(own)) for own in programs], ignore_index=True)
