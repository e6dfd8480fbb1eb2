"""Reads a trace of lanes as a frame of spans without gaps, and sums it up by source line. Pure; needs neither torch nor triton."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pandas as pd
from msgspec import Struct

from tilescope.collectors.lanes import records
from tilescope.files import bounded_reading, json_shape, json_stream

#: The kind of time between recorded operations.
ARITHMETIC = "arithmetic"
#: Kinds in the order of legends.
KINDS = (*records.KINDS, ARITHMETIC)
#: A lane is ``launch program warp``. ``group`` is the warp's partition. ``awaits`` says what the span waits for, with its line.
#: ``least`` is the seconds that a product takes at its pipe's rate, 0 where that is not known.
#: ``start`` and ``end`` are seconds after the launch's first program began.
COLUMNS = [
    "launch", "function", "program", "warp", "group", "kind", "name", "line", "operation", "awaits", "barrier", "arrives",
    "pending", "least", "start", "end",
]  # fmt: skip
_DEFAULT = "default"
#: Members of the file: the events, and what describes their launches.
EVENTS, DESCRIBED = "traceEvents", "tilescope"
#: What the spans of a row of ``by_line`` share, in one launch.
LINE = ["kind", "name", "line", "awaits"]


class Trace(NamedTuple):
    """``launches`` describes each launch, ``left_out`` others have no lanes. ``events`` are arrays with a value for each event:
    launch, program, warp, number of the operation, and microseconds of its start and end.
    """

    launches: list[dict[str, Any]]
    left_out: int
    events: dict[str, np.ndarray]


class _Arguments(Struct, gc=False):
    launch: int = 0
    program: int = 0
    operation: int | None = None


class _Event(Struct, gc=False):
    """The needed parts of an event."""

    ph: str = ""
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments | None = None


def load(artefact: Path) -> Trace:
    """The trace. Raises Unreadable. The last ones are kept: several readers ask for a trace in turn."""
    return _load(artefact, artefact.stat().st_mtime_ns)


@functools.lru_cache(maxsize=2)
def _load(artefact: Path, _written: int) -> Trace:
    return _trace(json_stream.members(bounded_reading.chunks(artefact), EVENTS, _Event))


def of(data: Mapping[str, Any]) -> Trace:
    """The trace that a file with this content has."""
    return _trace([(EVENTS, msgspec.convert(data[EVENTS], list[_Event])), (DESCRIBED, data[DESCRIBED])])


def _trace(members: Iterable[tuple[str, Any]]) -> Trace:
    rows: list[tuple[float, ...]] = []
    described: dict[str, Any] = {}
    for member, value in members:
        if member == EVENTS:
            rows += [
                (e.args.launch, e.args.program, e.tid, e.args.operation, e.ts, e.ts + e.dur)
                for e in value
                if e and e.ph == "X" and e.args and e.args.operation is not None
            ]
        elif member == DESCRIBED:
            described = json_shape.fit(value, dict[str, Any], DESCRIBED)
    launches = json_shape.fit(described.get("launches"), list[dict[str, Any]], "launches")
    found = np.array(rows, dtype=float).reshape(-1, 6)
    whole = [found[:, place].astype(int) for place in range(4)]
    names = ("launch", "program", "warp", "operation", "start", "end")
    return Trace(
        launches, described.get("left_out", 0), dict(zip(names, (*whole, found[:, 4], found[:, 5]), strict=True))
    )


class _Lane(NamedTuple):
    """A lane's spans: their rows of a table, and microseconds of their starts and ends."""

    launch: int
    program: int
    warp: int
    group: str
    rows: np.ndarray
    start: np.ndarray
    end: np.ndarray


def spans(trace: Trace) -> pd.DataFrame:
    """Every span of every lane, by lane and then by start. The time between recorded operations is spans, too.

    Columns of texts are categorical: a trace has many spans and few texts.
    """
    tables = [_table(told) for told in trace.launches]
    before = np.cumsum([0, *map(len, tables)])
    lanes = [
        lane._replace(rows=lane.rows + before[launch])
        for launch, told in enumerate(trace.launches)
        for lane in _of_launch(trace.events, launch, told)
    ]
    if not lanes:
        return pd.DataFrame(columns=COLUMNS)
    table = pd.concat(tables, ignore_index=True)
    texts = [name for name in table if isinstance(table[name].iloc[0], str)]
    found = table.astype(dict.fromkeys(texts, "category")).take(np.concatenate([lane.rows for lane in lanes]))
    sizes = [len(lane.rows) for lane in lanes]
    functions = pd.Categorical([trace.launches[lane.launch]["function"] for lane in lanes])
    found = found.assign(
        function=functions.repeat(sizes), group=pd.Categorical([lane.group for lane in lanes]).repeat(sizes),
        **{name: np.repeat([getattr(lane, name) for lane in lanes], sizes) for name in ("launch", "program", "warp")},
        **{name: np.concatenate([getattr(lane, name) for lane in lanes]) * 1e-6 for name in ("start", "end")},
    )  # fmt: skip
    return found[COLUMNS].reset_index(drop=True)


def _of_launch(events: Mapping[str, np.ndarray], launch: int, told: Mapping[str, Any]) -> Iterator[_Lane]:
    """The lanes of a launch."""
    operations = {int(number): known for number, known in told["operations"].items()}
    scopes: dict[str, list[int]] = {}
    for scope, name in told["scopes"].items():
        scopes.setdefault(name, []).append(int(scope))
    partitioned = any(name.startswith(records.PARTITION) for name in scopes)
    numbers = pd.Index(operations, dtype=int)
    own = {name: values[events["launch"] == launch] for name, values in events.items()}
    order = np.lexsort((own["end"], own["start"], own["warp"], own["program"]))
    own = {name: values[order] for name, values in own.items()}
    changes = (np.diff(own["program"], prepend=-1) != 0) | (np.diff(own["warp"], prepend=-1) != 0)
    for at in np.split(np.arange(len(order)), np.flatnonzero(changes)[1:]) if len(order) else ():
        number, start, end = (own[name][at] for name in ("operation", "start", "end"))
        code = numbers.get_indexer(number)
        known = code >= 0
        partition = max((operations[one]["partition"] for one in np.unique(number[known])), default="")
        partition = partition or (_DEFAULT if partitioned else "")
        outer = np.isin(number, scopes.get(partition, ()))
        outer = outer if outer.any() else ~known if (~known).any() else known
        whole = start[outer].min(), end[outer].max()
        spans = _without_gaps(code[known], start[known], end[known], *whole)
        yield _Lane(launch, int(own["program"][at[0]]), int(own["warp"][at[0]]), partition, *spans)


def _without_gaps(
    code: np.ndarray, start: np.ndarray, end: np.ndarray, begin: float, finish: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows of ``_table`` of a lane's operations and of the time before, between and after them, with their starts and ends.

    An operation within another begins where that ends.
    """
    reached = np.maximum.accumulate(np.concatenate([[begin], end]))
    until = np.append(np.maximum(start, reached[:-1]), max(finish, reached[-1]))
    # In turn: the time before an operation, and the operation.
    rows = np.stack([np.insert(code * 2 + 2, 0, 0), np.append(code * 2 + 1, 0)], axis=1).ravel()[:-1]
    starts = np.stack([reached, until], axis=1).ravel()[:-1]
    ends = np.append(starts[1:], until[-1])
    there = (rows % 2 == 1) | (ends > starts)
    return rows[there], starts[there], ends[there]


def _table(told: Mapping[str, Any]) -> pd.DataFrame:
    """Each operation of a launch has a row for itself and one for the time after it. The first row is the time before any."""
    rows, rates = [_between(None)], told.get("rates", {})
    for number, known in told["operations"].items():
        awaits = said(known["awaits"]) or said([("load", line) for line in known["uses"]])
        least = known.get("flops", 0) / rates.get(known.get("pipe", ""), math.inf)
        own = known["barrier"], known["arrives"], known["pending"], least
        rows += [(known["kind"], known["name"], known["line"], int(number), awaits, *own), _between(known)]
    return pd.DataFrame(rows, columns=COLUMNS[5:-2])


def _between(last: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """The time after the operation ``last``. It is at the operation's line, or at a load's whose values it is the first to need."""
    name, line, awaits = (f"after {last['name']}", last["line"], "") if last else ("before the first operation", 0, "")
    if last and (used := last["then_uses"]):
        name, line, awaits = "first use of a load", used[0], said([("load", line) for line in used])
    return ARITHMETIC, name, line, -1, awaits, "", False, 0, 0.0


def said(awaited: Iterable[tuple[str, int]]) -> str:
    """``TMA load of lines 90 and 97``."""
    lines: dict[str, list[int]] = {}
    for name, line in awaited:
        lines.setdefault(name, []).extend([line] if line else [])
    texts = []
    for name, known in lines.items():
        *others, final = [str(line) for line in sorted(set(known))] or [""]
        listed = f"lines {', '.join(others)} and {final}" if others else f"line {final}"
        texts.append(f"{name} of {listed}" if final else name)
    return " and ".join(texts)


def by_line(found: pd.DataFrame) -> pd.DataFrame:
    """A row for each launch, kind, name and line, the longest first: ``time`` and ``count`` of a warp that does it, the ``waits`` of
    ``time``, and the ``share`` of the time of all lanes.
    """
    key = ["launch", "function", *LINE]
    took = found.assign(time=found["end"] - found["start"])
    whole = took.groupby("launch")["time"].sum()
    grouped = took.groupby(key, sort=False)
    sums = grouped.agg(time=("time", "sum"), count=("time", "size")).reset_index()
    lanes = took.drop_duplicates([*key, "program", "warp"]).groupby(key, sort=False).size().reset_index(name="lanes")
    sums = sums.merge(lanes, on=key)
    sums["share"] = sums["time"] / sums["launch"].map(whole)
    sums["time"] /= sums["lanes"]
    sums["count"] /= sums["lanes"]
    sums = sums.astype(dict.fromkeys(sums.select_dtypes("category"), str))
    sums["waits"] = sums["time"].where(sums["kind"] == records.WAIT, 0.0)
    return sums.sort_values("share", ascending=False, ignore_index=True)
