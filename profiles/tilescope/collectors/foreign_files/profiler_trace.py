"""Traces of torch.profiler and Kineto, in Chrome's format: events with a GPU's category are launches."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents, Rows
from tilescope.files import bounded_reading, json_stream
from tilescope.table import units
from tilescope.table.run import Device

NAME = "traces of torch.profiler or Kineto (.json, .json.gz)"
#: Sources of values: of Kineto's traces, and of traces of unnamed tools.
SOURCE, UNNAMED = "torch_profiler", "chrome_trace"
EVENTS = "traceEvents"
#: Categories of work on the GPU, in lower case: old traces write them with a capital.
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
#: Members of a trace with a version, and its name in a run.
_VERSIONS = {"cuda_runtime_version": "cuda", "cuda_driver_version": "driver", "pytorch_version": "torch"}
#: Microseconds by which a trace may round a time.
_ROUNDING = 1.0
#: Most microseconds of a time: a larger one is damaged.
_LATEST = float(1 << 63)
#: Members that every trace of Kineto has.
_KINETO = ("schemaVersion", "deviceProperties")


def reads(head: bytes, name: str) -> bool:
    """Whether the head is that of a trace: an object with events or the usual members, or a list of events."""
    begun = head.lstrip()
    if begun[:1] == b"[":
        return b'"ph"' in head or f'"{EVENTS}"'.encode() in head
    return begun[:1] == b"{" and (f'"{EVENTS}"'.encode() in head or b'"deviceProperties"' in head)


class OfLaunch(Struct, gc=False):
    """The arguments of a launch that several readers need. Any may be absent or of another type."""

    grid: Any = None
    block: Any = None
    bytes: Any = None
    stream: Any = None
    graph: Any = field(default=None, name="graph id")


class _Arguments(OfLaunch, gc=False):
    registers: Any = field(default=None, name="registers per thread")
    shared_memory: Any = field(default=None, name="shared memory")
    occupancy: Any = field(default=None, name="est. achieved occupancy %")
    device: Any = None


class Event(Struct, gc=False):
    """The parts of an event that every reader needs, in microseconds. Events whose parts have other types are skipped."""

    ph: str = ""
    cat: str = ""
    name: Any = None
    ts: float = math.nan
    dur: float = math.nan

    @property
    def lasts(self) -> bool:
        """Whether it has a start and a duration."""
        return self.ph == "X" and not math.isnan(self.ts + self.dur)


class _Event(Event, gc=False):
    args: _Arguments | None = None


class _Shape(NamedTuple):
    """What launches of one kernel, grid and stream share."""

    kernel: str
    workload: str
    values: Mapping[str, float | None]
    stream: str
    device: object
    gpu: str
    in_graph: bool


class _Launch(NamedTuple):
    """A launch: microseconds of its start, and seconds of its time."""

    start: float
    time: float
    shape: _Shape

    @property
    def end(self) -> float:
        """Its end in microseconds."""
        return self.start + self.time * 1e6


@dataclass
class _Trace:
    """The launches, and other members of the trace."""

    launches: list[_Launch] = dataclass_field(default_factory=list)
    members: dict[str, Any] = dataclass_field(default_factory=dict)
    damaged: int = 0


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads every launch, copy and fill, in the order of their starts, with time and resources. Raises Unreadable where there is none."""
    trace = _Trace()
    _made.cache_clear()  # an odd part of another trace, such as true for 1, is no part of this one
    for member, value in json_stream.members(bounded_reading.chunks(path), EVENTS, _Event):
        if member == EVENTS:
            for event in value:
                if event is None:
                    trace.damaged += 1
                elif event.ph == "X":
                    _read_event(trace, event)
        elif member in _VERSIONS or member in (*_KINETO, "baseTimeNanoseconds"):
            trace.members[member] = value
    kineto = any(name in trace.members for name in _KINETO)
    rows = Rows(SOURCE if kineto else UNNAMED)
    launches = sorted(trace.launches, key=lambda launch: launch.start)
    outlasting, early = _overlaps(launches)
    for number, (_, time, shape) in enumerate(launches):
        values = {"gpu_time": time, **shape.values, "stream_overlap": outlasting.get(number)}
        rows.add(shape.kernel, shape.workload, number, values, gpu=shape.gpu)
    contents.require(
        rows,
        f"no launch in it has a time that can be: {trace.damaged} damaged event(s), record it again"
        if trace.damaged
        else "no launch on a GPU is in it: record with ProfilerActivity.CUDA, on a machine where torch sees the GPU",
    )
    described = contents.mappings(trace.members.get("deviceProperties"))
    gpus = {launch.shape.gpu: launch.shape.device for launch in launches}
    device, notes = contents.of_gpus({gpu: _device(described, number) for gpu, number in sorted(gpus.items())})
    return Contents(
        "torch.profiler" if kineto else "a tool that it does not name",
        rows.frame(),
        device,
        versions={
            called: said for name, called in _VERSIONS.items() if (said := contents.text(trace.members.get(name)))
        },
        recorded=_recorded(trace.members.get("baseTimeNanoseconds"), launches[0].start),
        notes=[*_notes(launches, outlasting, early, trace.damaged), *notes],
    )


def _read_event(trace: _Trace, event: _Event) -> None:
    if event.cat.lower() not in _GPU:
        return
    if not (abs(event.ts) < _LATEST and 0 <= event.dur < _LATEST):
        trace.damaged += 1
        return
    trace.launches.append(_Launch(event.ts, event.dur * 1e-6, _shape(event.name, event.args or _NO_ARGUMENTS)))


_NO_ARGUMENTS = _Arguments()


def _shape(name: Any, of: _Arguments) -> _Shape:
    grid, block = (tuple(sides) if isinstance(sides, list) else None for sides in (of.grid, of.block))
    parts = (name, grid, block, of.bytes, of.registers, of.shared_memory, of.occupancy, of.stream, of.device, of.graph)
    try:
        return _made(parts)
    except TypeError:  # a part is an object or a list
        return _made.__wrapped__(parts)


@functools.lru_cache(maxsize=1 << 16)
def _made(parts: tuple[Any, ...]) -> _Shape:
    name, grid, block, size, registers, shared, occupancy, stream, device, graph = parts
    grid, block = contents.sizes(grid), contents.sizes(block)
    moved = None if grid else contents.number(size)
    share = contents.number(occupancy)
    values = {
        "registers": contents.number(registers), "shared_memory": contents.number(shared),
        "block_threads": contents.product(block), "grid_blocks": contents.product(grid),
        "estimated_occupancy": None if share is None else share / 100,
    }  # fmt: skip
    workload = f"{moved:.0f} bytes" if moved is not None else contents.workload(grid, block)
    called = contents.name(name if isinstance(name, str) else "")
    device = device if isinstance(device, (int, str)) else None
    gpu = "" if device is None else contents.text(f"GPU {device}", 40)
    return _Shape(called, workload, values, contents.text(stream, 20), device, gpu, bool(graph))


def _device(described: Iterable[Mapping[str, Any]], number: object) -> Device:
    one = next((one for one in described if one.get("id") == number), None)
    if one is None:
        return contents.device()
    major, minor = (contents.number(one.get(f"compute{what}")) for what in ("Major", "Minor"))
    known = major and minor is not None and 0 <= minor < 10
    return contents.device(
        contents.text(one.get("name")),
        f"sm_{major:.0f}{minor:.0f}" if known and not _is_amd(one) else "",
        multiprocessors=contents.count(one.get("numSms")),
        memory_bytes=contents.count(one.get("totalGlobalMem")),
    )


def _is_amd(one: Mapping[str, Any]) -> bool:
    """Whether Kineto wrote the properties of one of AMD's GPUs, whatever its name."""
    return one.get("warpSize") == 64 or "maxSharedMemoryPerMultiProcessor" in one


def _recorded(base: Any, start: float) -> str:
    """The time of the first launch; empty where the trace does not say what its microseconds count from."""
    nanoseconds = contents.number(base)
    if nanoseconds is None:
        return ""
    try:
        return datetime.fromtimestamp(nanoseconds * 1e-9 + start * 1e-6, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def _overlaps(launches: Sequence[_Launch]) -> tuple[dict[int, float], dict[int, float]]:
    """Launches that overlap a later one of their stream: by how many seconds each outlasts it, and each begins before the last ends.

    A stream runs its launches in order, so none ends before an earlier one. With programmatic dependent launch one may begin before
    the one before it ends. Branches of a CUDA graph run at once.
    """
    latest: dict[tuple[object, str], int] = {}
    outlasting: dict[int, float] = {}
    early: dict[int, float] = {}
    for number, launch in enumerate(launches):
        shape = launch.shape
        if not shape.stream or shape.in_graph:
            continue
        at = latest.setdefault((shape.device, shape.stream), number)
        before = launches[at]
        begun, ended = before.end - launch.start, before.end - launch.end
        if min(begun, ended) > _ROUNDING and before.start < launch.start:
            outlasting[at] = max(ended * 1e-6, outlasting.get(at, 0.0))
            continue
        if begun > _ROUNDING and at != number and at not in outlasting:
            early[number] = begun * 1e-6
        latest[shape.device, shape.stream] = number
    return outlasting, early


def _notes(
    launches: Sequence[_Launch], outlasting: Mapping[int, float], early: Mapping[int, float], damaged: int
) -> list[str]:
    said = {
        "impossible: launches that end after a later launch of their stream has ended": outlasting,
        "launches that begin before the one before them on their stream ends (programmatic dependent launch does so; without it a "
        "time is wrong)": early,
    }
    notes = []
    for what, found in said.items():
        if found:
            most = max(found, key=lambda number: found[number])
            longest = f"{launches[most].shape.kernel} by {units.text(found[most], 'second')}"
            notes.append(f"{what}: {len(found):,}, {longest}")
    return notes + ([f"damaged events that were left out: {damaged}"] if damaged else [])
