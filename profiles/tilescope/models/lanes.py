"""Lanes: what the warps of a program do, who waits for whom, and the critical path. Pure but for reading the artefact."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tilescope.collectors.lanes import records, trace
from tilescope.runs import artefacts
from tilescope.runs.store import LoadedRun
from tilescope.table.case import Case

COLLECTOR = "lanes"
ARROWS = ["barrier", "from_warp", "from_time", "to_warp", "to_time", "wait"]
#: Columns of spans that say which arrival ends a wait.
_IN_TURN = ["barrier", "arrives", "kind", "warp", "operation", "start", "end"]


class Lanes(NamedTuple):
    """The lanes of a case. ``spans`` has the columns of ``collectors.lanes.trace``, ``launches`` what is known of each launch:
    ``function``, ``plain`` and ``recorded`` seconds without records and with them, ``kinds`` that have records.
    """

    spans: pd.DataFrame
    launches: list[dict[str, object]]


class Program(NamedTuple):
    """A program as figures draw it: rows of ``program``, ``arrows`` and ``critical_path``."""

    spans: pd.DataFrame
    arrows: pd.DataFrame
    path: pd.DataFrame


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
    return Lanes(trace.spans(data), data.launches)


def program(spans: pd.DataFrame, launch: int, number: int) -> pd.DataFrame:
    """The spans of one program, with times from its start and a ``lane`` for each warp: ``warp 8, partition1``."""
    own = spans[(spans["launch"] == launch) & (spans["program"] == number)]
    known = own.drop_duplicates("warp")
    names = {
        warp: f"warp {warp}{f', {group}' if group else ''}"
        for warp, group in zip(known["warp"], known["group"], strict=True)
    }
    first = own["start"].min()
    return own.assign(
        lane=own["warp"].map(names).astype("category"), start=own["start"] - first, end=own["end"] - first
    ).reset_index(drop=True)


def longest_wait(lines: pd.DataFrame) -> Wait | None:
    """The wait of ``trace.by_line`` on which the warps spend most of their time; None where nothing waits."""
    for first in lines[lines["kind"] == records.WAIT].head(1).to_dict("records"):
        return Wait(float(first["share"]), str(first["name"]), int(first["line"]), str(first["awaits"]))
    return None


def arrows(spans: pd.DataFrame) -> pd.DataFrame:
    """The arrival that ends each wait of one program: at a barrier, or of the last warp at a barrier of the block. Times as in ``spans``."""
    found = [*_block_barriers(spans[spans["name"] == records.BLOCK_BARRIER])]
    for barrier, own in spans.loc[spans["barrier"] != "", _IN_TURN].groupby("barrier", sort=False):
        arrived = [(warp, came.sort_values("end")) for warp, came in own[own["arrives"]].groupby("warp")]
        for warp, waits in own[own["kind"] == records.WAIT].groupby("warp"):
            if arrived:
                found += [(barrier, came, time, warp, *wait) for came, time, *wait in _in_turn(arrived, waits)]
    return pd.DataFrame(found, columns=ARROWS)


def _in_turn(
    arrived: Sequence[tuple[Any, pd.DataFrame]], waits: pd.DataFrame
) -> Iterable[tuple[int, float, float, float]]:
    """The warp and the time of the arrival that ends each wait of a warp that something had to arrive for, and the wait's end and length.

    ``arrived`` has the arrivals of each warp. The barriers of a ring count as one, whose waits and arrivals are of its steps in turn. A
    step may have several of either. Waits for a free place in the ring are ahead of the arrivals by the number of its places, which is
    the least with which none comes too late.
    """
    waits = waits.sort_values("end")
    ends, lengths = waits["end"].to_numpy(), (waits["end"] - waits["start"]).to_numpy()
    times, warps = np.zeros(max(len(own) for _, own in arrived)), np.zeros(max(len(own) for _, own in arrived), int)
    steps = 0
    for warp, own in arrived:
        each = _each_step(own, len(ends))
        last = own["end"].to_numpy()[np.minimum(np.arange(each - 1, len(own) + each - 1, each), len(own) - 1)]
        steps = max(steps, len(last))
        later = np.flatnonzero(last >= times[: len(last)])
        times[later], warps[later] = last[later], warp
    times, warps = times[:steps], warps[:steps]
    turn = np.arange(len(ends)) // _each_step(waits, steps)
    for ahead in range(steps):
        there = (turn >= ahead) & (turn - ahead < steps)
        came = (turn - ahead)[there]
        if (times[came] <= ends[there]).all():
            return zip(warps[came], times[came], ends[there], lengths[there], strict=True)
    every = pd.concat(own for _, own in arrived).sort_values("end")
    last = np.searchsorted(every["end"].to_numpy(), ends, side="right") - 1
    there = last >= 0
    return zip(
        *(every[name].to_numpy()[last[there]] for name in ("warp", "end")), ends[there], lengths[there], strict=True
    )


def _each_step(operations: pd.DataFrame, steps: int) -> int:
    """How many of a warp's operations belong to one of so many steps. An operation before or after the loop does not count."""
    counts = np.unique(operations["operation"].to_numpy(), return_counts=True)[1]
    return max(1, int((counts / steps + 0.4).astype(int).sum()))


def _block_barriers(spans: pd.DataFrame) -> Iterator[tuple[str, int, float, int, float, float]]:
    turn = spans.groupby(["warp", "operation"]).cumcount()
    for _, own in spans.groupby([spans["group"], spans["operation"], turn], sort=False):
        last = own.loc[own["start"].idxmax()]
        for warp, start, end in own.loc[own["warp"] != last["warp"], ["warp", "start", "end"]].itertuples(index=False):
            came = int(last["warp"]), float(last["start"])
            yield records.BLOCK_BARRIER, *came, int(warp), float(end), float(end - start)


def critical_path(spans: pd.DataFrame, arrows: pd.DataFrame) -> pd.DataFrame:
    """The spans, or parts of them, that one program's time consists of, in their order: each begins when the one before it ends.

    The path leads back from the end of the last warp. It passes from a wait to the warp whose arrival ended it. The time between the
    arrival and the end of the wait stays the wait's, such as a copy's flight. ``spans`` and ``arrows`` are those of ``program`` and of
    ``arrows``.
    """
    warps, starts, ends = (spans[name].to_numpy() for name in ("warp", "start", "end"))
    rows = {warp: np.flatnonzero(warps == warp) for warp in np.unique(warps)}
    begins = {warp: starts[own].tolist() for warp, own in rows.items()}
    led = (arrows[name].tolist() for name in ARROWS[1:5])
    came = {(to, end): (warp, time) for warp, time, to, end in zip(*led, strict=True)}
    last, first = int(ends.argmax()), int(starts.argmin())
    warp, time = warps[last], ends[last]
    found: list[tuple[int, float, float]] = []
    while time > starts[first]:
        place = bisect.bisect_left(begins[warp], time) - 1
        if place < 0:  # the lane begins here, for which the first one let it
            warp = warps[first]
            continue
        row = rows[warp][place]
        other, arrived = came.get((warp, ends[row]), (warp, 0.0))
        begin = max(starts[row], arrived) if arrived <= time else starts[row]
        if begin < time:
            found.append((row, begin, time))
        warp, time = (other if begin > starts[row] else warp), begin
    parts = np.array(found[::-1]).reshape(-1, 3)
    return spans.take(parts[:, 0].astype(int)).assign(start=parts[:, 1], end=parts[:, 2]).reset_index(drop=True)


def programs(spans: pd.DataFrame, launch: int) -> dict[int, Program]:
    found = {}
    for number, of_program in spans[spans["launch"] == launch].groupby("program", sort=False):
        own = program(of_program, launch, number)
        found[int(number)] = Program(own, led := arrows(own), critical_path(own, led))
    return found


def by_line(found: Iterable[Program]) -> pd.DataFrame:
    """``trace.by_line`` of a launch's programs, with the share of their ``critical`` paths."""
    spans, path = (pd.concat(parts) for parts in zip(*((one.spans, one.path) for one in found), strict=True))
    spent = (path["end"] - path["start"]).groupby([path[name] for name in trace.LINE]).sum()
    lines = trace.by_line(spans).join((spent / spent.sum()).rename("critical"), on=trace.LINE)
    return lines.fillna({"critical": 0.0})


def by_step(found: Program) -> Program:
    """A program along the steps of its loop: times become the number of the step and the part of it.

    A step begins with the operation that the first warp with products repeats most, or the first warp. ``began`` and ``duration`` stay times.
    """
    spans = found.spans
    known = next(
        some for some in (spans[spans["kind"] == records.PRODUCT], spans[spans["operation"] >= 0], spans) if len(some)
    )
    first = known[known["warp"] == known["warp"].min()]
    starts = first.loc[first["operation"] == first["operation"].mode().iloc[0], "start"].to_numpy()
    places = np.arange(len(starts), dtype=float)
    rate = 1 / np.median(np.diff(starts)) if len(starts) > 1 else 1 / spans["end"].max()

    def step(times: pd.Series) -> np.ndarray:
        outside = np.minimum(times - starts[0], 0) + np.maximum(times - starts[-1], 0)
        turned: np.ndarray = np.interp(times, starts, places) + outside.to_numpy() * rate
        return turned

    timed = {"began": spans["start"], "duration": spans["end"] - spans["start"]}
    return Program(*(
        frame.assign(**{name: step(frame[name]) for name in ("start", "end", "from_time", "to_time") if name in frame})
        for frame in (spans.assign(**timed), found.arrows, found.path)
    ))  # fmt: skip
