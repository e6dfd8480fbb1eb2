"""Reads a trace of lanes as a frame of spans without gaps, and sums it up by source line. Pure; needs neither torch nor triton."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from tilescope.collectors.lanes import records
from tilescope.files import bounded_reading, json_shape

#: The kind of time between recorded operations.
ARITHMETIC = "arithmetic"
#: Kinds in the order of legends.
KINDS = (records.WAIT, records.PRODUCT, records.COPY, records.BARRIER, records.ACCESS, records.CONVERSION, records.REDUCTION, ARITHMETIC)  # fmt: skip
#: A lane is ``launch program warp``. ``group`` is the warp's partition. ``awaits`` says what the span waits for, with its line.
#: ``least`` is the seconds that a product takes at its pipe's rate, 0 where that is not known.
#: ``start`` and ``end`` are seconds after the launch's first sampled program began.
COLUMNS = [
    "launch", "function", "program", "warp", "group", "kind", "name", "line", "operation", "awaits", "barrier", "arrives",
    "pending", "least", "start", "end",
]  # fmt: skip
_DEFAULT = "default"
#: What the spans of a row of ``by_line`` share, in one launch.
LINE = ["kind", "name", "line", "awaits"]


def load(artefact: Path) -> dict[str, Any]:
    """The trace, whose ``tilescope`` describes the launches. Raises Unreadable."""
    data: dict[str, Any] = json_shape.fit(bounded_reading.data_of(artefact), dict[str, Any], "trace")
    described = json_shape.fit(data.get("tilescope"), dict[str, Any], "tilescope")
    json_shape.fit(described.get("launches"), list[dict[str, Any]], "launches")
    return data


def spans(trace: Mapping[str, Any]) -> pd.DataFrame:
    """Every span of every lane, by lane and then by start. The time between recorded operations is spans, too."""
    lanes: dict[tuple[int, int, int], list[Mapping[str, Any]]] = {}
    for event in trace["traceEvents"]:
        if event.get("ph") == "X":
            own = event["args"]
            lanes.setdefault((own["launch"], own["program"], event["tid"]), []).append(event)
    told = trace["tilescope"]["launches"]
    rows = [row for (launch, program, warp), events in sorted(lanes.items())
            for row in _lane(told[launch], launch, program, warp, events)]  # fmt: skip
    return frame(rows)


def frame(rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    """A frame of spans, which have a value for each of ``COLUMNS``."""
    return pd.DataFrame(list(rows), columns=COLUMNS)


def _lane(
    told: Mapping[str, Any], launch: int, program: int, warp: int, events: list[Mapping[str, Any]]
) -> Iterator[tuple[Any, ...]]:
    operations, scopes, rates = told["operations"], told["scopes"], told.get("rates", {})
    partitioned = any(name.startswith(records.PARTITION) for name in scopes.values())
    whole = [event for event in events if str(event["args"]["operation"]) in scopes]
    own = sorted(
        (e for e in events if str(e["args"]["operation"]) in operations), key=lambda e: (e["ts"], e["ts"] + e["dur"])
    )
    held = {operations[str(event["args"]["operation"])]["partition"] for event in own}
    partition = max(held, default="") or (_DEFAULT if partitioned else "")
    outer = [e for e in whole if e["name"] == partition] or whole or own
    begin, finish = min(e["ts"] for e in outer), max(e["ts"] + e["dur"] for e in outer)
    place = (launch, told["function"], program, warp, partition)
    cursor, last = begin, None

    def between(after: Mapping[str, Any] | None, start: float, end: float) -> tuple[Any, ...]:
        name, line, awaits = _between(after)
        return *place, ARITHMETIC, name, line, -1, awaits, "", False, 0, 0.0, start * 1e-6, end * 1e-6

    for event in own:
        known = operations[str(event["args"]["operation"])]
        start, end = max(event["ts"], cursor), max(event["ts"] + event["dur"], cursor)
        if start > cursor:
            yield between(last, cursor, start)
        awaits = said(known["awaits"]) or said([("load", line) for line in known["uses"]])
        yield (
            *place, known["kind"], known["name"], known["line"], event["args"]["operation"], awaits, known["barrier"], known["arrives"], known["pending"],
            known.get("flops", 0) / rates.get(known.get("pipe"), math.inf), start * 1e-6, end * 1e-6,
        )  # fmt: skip
        cursor, last = end, known
    if finish > cursor:
        yield between(last, cursor, finish)


def _between(last: Mapping[str, Any] | None) -> tuple[str, int, str]:
    """The time after the operation ``last``: what it is, its line (the operation's, or a load's whose values it is the first to need), and
    those loads.
    """
    if last is None:
        return "before the first operation", 0, ""
    if used := last["then_uses"]:
        return "first use of a load", used[0], said([("load", line) for line in used])
    return f"after {last['name']}", last["line"], ""


def said(awaited: Iterable[tuple[str, int]]) -> str:
    """``TMA load of lines 90 and 97``."""
    lines: dict[str, list[int]] = {}
    for name, line in awaited:
        lines.setdefault(name, []).extend([line] if line else [])
    texts = []
    for name, known in lines.items():
        each = [str(line) for line in sorted(set(known))]
        place = (
            f" of line{'s' * (len(each) > 1)} {' and '.join(filter(None, [', '.join(each[:-1]), each[-1]]))}"
            if each
            else ""
        )
        texts.append(name + place)
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
    sums["waits"] = sums["time"].where(sums["kind"] == records.WAIT, 0.0)
    return sums.sort_values("share", ascending=False, ignore_index=True)
