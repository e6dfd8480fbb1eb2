"""Traces inside kernels in Chrome's format: those that Tilescope's lanes export, and those of Proton's instrumentation."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from msgspec import Struct

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents
from tilescope.collectors.lanes import collector, records, sampling, trace
from tilescope.files import bounded_reading, json_stream
from tilescope.table.case import Case

NAME = "traces inside kernels, of Tilescope's lanes or Proton's instrumentation (.json, .json.gz, .chrome_trace)"
_PROCESS, _THREAD = re.compile(r"(.*) Core(\d+) CTA(\d+)\b.*", re.DOTALL), re.compile(r"warp (\d+)\b")
_OURS = re.compile(rb'"args":\s*\{"launch":\s*\d+,\s*"program":\s*\d+,\s*"operation":\s*\d+\}')
_PROTONS = re.compile(rb'"pid":\s*"[^"]* Core\d+ CTA\d+')
#: Most launches that are kept.
_LAUNCHES = 32
#: Kinds of operations by words in the scopes' names, which people choose.
_KINDS = {
    records.WAIT: r"wait|barrier|sync", records.PRODUCT: r"mma|dot|gemm|product", records.COPY: r"tma|copy|async",
    records.ACCESS: r"load|store|read|write", records.REDUCTION: r"reduce|sum\b|max\b",
}  # fmt: skip


def reads(head: bytes, name: str) -> bool:
    return head.lstrip()[:1] == b"{" and bool(_OURS.search(head) or _PROTONS.search(head))


class _Event(Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: Any = None
    tid: Any = None
    ts: float = 0.0
    dur: float = 0.0


class Scope(NamedTuple):
    """What a warp did from ``start`` to ``end``, in microseconds. Scopes may hold others."""

    name: str
    start: float
    end: float


#: The scopes of each lane, which is a kernel, a launch of it, a program and a warp.
Lanes = dict[tuple[str, int, int, int], list[Scope]]


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads the trace as a case of its first kernel, which keeps the lanes. Raises Unreadable where no event is of a warp."""
    lanes: Lanes = {}
    for member, value in json_stream.members(bounded_reading.chunks(path), trace.EVENTS, _Event):
        if member == trace.DESCRIBED:
            packed = gzip.compress(b"".join(bounded_reading.chunks(path)), mtime=0)
            return _contents(trace.load(path), packed, "Tilescope (lanes)", [])
        for event in value if member == trace.EVENTS else ():
            if event and event.ph == "X" and (place := _place(event)):
                lanes.setdefault(place, []).append(Scope(event.name, event.ts, event.ts + max(event.dur, 0.0)))
    if not lanes:
        raise bounded_reading.Unreadable("no event in it is of a warp: record it again")
    return of_scopes(lanes, "Proton (instrumentation)")


def of_scopes(lanes: Lanes, tool: str, notes: Sequence[str] = ()) -> Contents:
    """A case of the first kernel, which keeps lanes with these scopes, and notes on what it does not keep."""
    found, more = _described(lanes)
    packed = gzip.compress(json.dumps(found, separators=(",", ":")).encode(), mtime=0)
    return _contents(trace.of(found), packed, tool, [*notes, *more])


def _contents(found: trace.Trace, packed: bytes, tool: str, notes: Sequence[str]) -> Contents:
    kernel = contents.name(found.launches[0]["function"])
    case = Case(kernel, contents.IMPLEMENTATION, contents.DIRECTION, contents.workload(found.launches[0]["grid"]))
    rows: pd.DataFrame = collector.rows(found, case)
    return Contents(tool, rows, notes=notes, artefacts=(("lanes", case, collector.SUFFIX, packed),))


def _place(event: _Event) -> tuple[str, int, int, int] | None:
    if not isinstance(event.pid, str) or not isinstance(event.tid, str):
        return None
    process, thread = _PROCESS.match(event.pid), _THREAD.match(event.tid)
    return (process[1], 0, int(process[3]), int(thread[1])) if process and thread else None


def _described(lanes: Lanes) -> tuple[dict[str, Any], list[str]]:
    """The trace as Tilescope writes it, of as many programs of each launch as it samples, and notes."""
    events, launches, notes = [], [], []
    of_launches: dict[tuple[str, int], dict[tuple[int, int], list[Scope]]] = {}
    for (kernel, number, program, warp), scopes in lanes.items():
        of_launches.setdefault((kernel, number), {})[program, warp] = scopes
    if len(of_launches) > _LAUNCHES:
        notes.append(f"of {len(of_launches):,} launches the first {_LAUNCHES} are kept")
    for launch, ((kernel, _), own) in enumerate(list(of_launches.items())[:_LAUNCHES]):
        programs = sorted({program for program, _ in own})
        kept = programs[:: -(-len(programs) // sampling.SAMPLE)]
        if len(kept) < len(programs):
            notes.append(f"of {kernel} {len(kept)} of {len(programs):,} programs are kept")
        numbers: dict[str, int] = {}
        for (program, warp), scopes in sorted(item for item in own.items() if item[0][0] in kept):
            for name, start, end in _innermost(sorted(scopes, key=lambda scope: (scope.start, -scope.end))):
                number = numbers.setdefault(name, len(numbers))
                place = {"launch": launch, "program": program, "operation": number}
                event = {"ph": "X", "name": name, "pid": launch * 1_000_000 + program, "tid": warp, "args": place}
                events.append({**event, "ts": start, "dur": end - start})
        operations = {
            number: asdict(records.Operation(name, _kind(name), name, line=0)) for name, number in numbers.items()
        }
        told = {"function": kernel, "file": "", "grid": [], "kinds": list(records.KINDS), "scopes": {}}
        launches.append({**told, "operations": operations, "programs": kept})
    return {trace.EVENTS: events, trace.DESCRIBED: {"launches": launches}}, notes


def _kind(name: str) -> str:
    return next((kind for kind, words in _KINDS.items() if re.search(words, name, re.IGNORECASE)), trace.ARITHMETIC)


def _innermost(scopes: Sequence[Scope]) -> Iterator[Scope]:
    """The parts of a lane's scopes in which no inner scope is open. Scopes are in the order of their starts, outer ones first."""
    opened: list[Scope] = []
    cursor = 0.0

    def until(end: float) -> Iterator[Scope]:
        nonlocal cursor
        while opened and opened[-1].end <= end:
            inner = opened.pop()
            if inner.end > cursor:
                yield Scope(inner.name, cursor, inner.end)
                cursor = inner.end
        if opened and end > cursor:
            yield Scope(opened[-1].name, cursor, end)

    for scope in scopes:
        yield from until(scope.start)
        opened.append(scope)
        cursor = max(cursor, scope.start)
    yield from until(float("inf"))
