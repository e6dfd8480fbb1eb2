"""Traces inside kernels in Perfetto's protobuf: those of CUTLASS's IKET, FlashInfer's intra-kernel profiler and FlyDSL's ktrace.

A track named after a warp, or the part of a named block, is a lane with the slices of all tracks below it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tilescope.collectors.foreign_files import contents, lanes_trace, unread
from tilescope.collectors.foreign_files.contents import Contents
from tilescope.files import bounded_reading
from tilescope.files.bounded_reading import Unreadable

NAME = "traces inside kernels in Perfetto's format, of IKET, FlashInfer or ktrace (.pftrace, .perfetto-trace, packed or not)"
_ENDINGS = (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz")
#: The most packets, tracks, nested tracks, and lanes of a program.
_PACKETS, _TRACKS, _DEPTH, _LANES = 3_000_000, 500_000, 64, 1024
_BEGIN, _END = 1, 2  # TrackEvent.Type
_CLEARED = 1  # TracePacket.SequenceFlags
_LANE = re.compile(r"(?<![a-z])(?:warp|wave|group)[ _#-]*(\d{1,6})(?!\d)", re.IGNORECASE)
_PROGRAM = re.compile(r"(?<![a-z])(?:cta|block|program|workgroup|wg)[ _#-]*\(?(\d{1,6})(?!\d)", re.IGNORECASE)
_LAUNCH = re.compile(r"(?<![a-z])(?:launch|grid)", re.IGNORECASE)

_Fields = Mapping[int, tuple[str, type]]
#: The fields that are needed of each of Perfetto's messages.
_TRACE: _Fields = {1: ("packets", list)}
_PACKET: _Fields = {
    6: ("clocks", bytes), 8: ("timestamp", int), 10: ("sequence", int), 11: ("event", bytes), 12: ("interned", bytes),
    13: ("flags", int), 41: ("cleared", int), 50: ("compressed", bytes), 58: ("clock", int), 59: ("defaults", bytes),
    60: ("track", bytes), 133: ("compressed", bytes),
}  # fmt: skip
_EVENT: _Fields = {9: ("type", int), 10: ("iid", int), 11: ("track", int), 23: ("name", bytes)}
_DESCRIPTOR: _Fields = {
    1: ("uuid", int), 2: ("name", bytes), 3: ("process", bytes), 4: ("thread", bytes), 5: ("parent", int), 10: ("name", bytes),
}  # fmt: skip
_THREAD: _Fields = {1: ("pid", int), 5: ("name", bytes)}
_PROCESS: _Fields = {1: ("pid", int), 6: ("name", bytes)}
_INTERNED: _Fields = {2: ("names", list)}
_NAME: _Fields = {1: ("iid", int), 2: ("name", bytes)}
_CLOCKS: _Fields = {1: ("clocks", list)}
_CLOCK: _Fields = {1: ("id", int), 2: ("timestamp", int), 3: ("steps", int), 4: ("unit", int)}
_DEFAULTS: _Fields = {11: ("event", bytes), 58: ("clock", int)}


def reads(head: bytes, name: str) -> bool:
    # A text may begin with a line break, but has no control characters.
    return name.endswith(_ENDINGS) or (head[:1] == b"\n" and any(byte < 8 for byte in head[:64]))


def read(path: Path) -> Contents:
    """Reads the trace as a case of its first kernel, which keeps the lanes. Raises Unreadable where no track is of a warp."""
    lanes, notes = _lanes(path)
    if not lanes:
        raise Unreadable(
            f"{bounded_reading.one_line(path.name)} is a trace of Perfetto without slices of warps or blocks: {unread.TRACE}; "
            "for time inside a kernel, a trace of IKET, FlashInfer's profiler or ktrace, or Proton's .chrome_trace"
        )
    return lanes_trace.of_scopes(lanes, "Perfetto (trace inside kernels)", notes)


class _Track(NamedTuple):
    """``pid`` is of the process that the track is, or is a thread of."""

    name: str = "unnamed"
    parent: int = 0
    pid: int | None = None
    is_process: bool = False


class _Sequence:
    """What later packets of a writer refer to. ``clocks`` have whether times are steps, the last time, and nanoseconds of a unit."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.clocks: dict[int, tuple[bool, int, int]] = {}
        self.clock = self.track = 0


#: Times in nanoseconds, types and names of a track's slices' begins and ends.
_Events = list[tuple[int, int, str]]


@bounded_reading.parser
def _lanes(path: Path) -> tuple[lanes_trace.Lanes, list[str]]:
    tracks, events = _decoded(bounded_reading.unpacked(bounded_reading.content(path)))
    processes: dict[int | None, int] = {
        track.pid: uuid for uuid, track in tracks.items() if track.is_process and track.pid is not None
    }
    launches: dict[tuple[str, int], dict[int, dict[int, list[int]]]] = {}
    for uuid in events:
        line = _line(uuid, tracks, processes)
        if place := _place([tracks[one].name for one in line]):
            (lane, program), above = place, line[place[1] + 1 :]
            launch = next((one for one in above if _LAUNCH.search(tracks[one].name)), above[-1] if above else 0)
            kernel = tracks[above[-1]].name if above else contents.name(path.name.split(".")[0])
            programs = launches.setdefault((kernel, launch), {})
            programs.setdefault(line[program], {}).setdefault(line[lane], []).append(uuid)
    found: lanes_trace.Lanes = {}
    endless = 0
    for launch, ((kernel, _), programs) in enumerate(launches.items()):
        first = min(events[one][0][0] for lanes in programs.values() for own in lanes.values() for one in own)
        numbers = _numbers(programs, tracks, _PROGRAM)
        for program, lanes in programs.items():
            if len(lanes) > _LANES:
                raise Unreadable(f"a block of it has more than {_LANES} warps")
            warps = _numbers(lanes, tracks, _LANE)
            for lane, own in lanes.items():
                last = max(events[one][-1][0] for one in own)
                slices = [one for uuid in own for one in _slices(events[uuid])]
                endless += sum(end is None for _, _, end in slices)
                scopes = [
                    lanes_trace.Scope(name, (start - first) / 1000, ((last if end is None else end) - first) / 1000)
                    for name, start, end in slices
                ]
                if any(scope.end > scope.start for scope in scopes):
                    found[kernel, launch, numbers[program], warps[lane]] = scopes
    return found, [f"slices without an end, which end with their warp's last event: {endless:,}"] if endless else []


def _line(uuid: int, tracks: Mapping[int, _Track], processes: Mapping[int | None, int]) -> list[int]:
    """The track and those that it is nested in, from inside out. A thread without a parent is in its process."""
    line: list[int] = []
    while uuid and (track := tracks.get(uuid)) and len(line) <= _DEPTH:
        line.append(uuid)
        uuid = track.parent or (0 if track.is_process else processes.get(track.pid, 0))
    if len(line) > _DEPTH:
        raise Unreadable(f"its tracks are nested in a circle, or deeper than {_DEPTH}")
    return line


def _place(names: Sequence[str]) -> tuple[int, int] | None:
    """Which of nested tracks, named from inside out, are the lane and the program. None where none is inside a kernel."""
    if warps := [at for at, name in enumerate(names) if _LANE.search(name)]:
        return warps[-1], min(warps[-1] + 1, len(names) - 1)
    program = next((at for at, name in enumerate(names) if _PROGRAM.search(name)), None)
    return None if program is None else (max(program - 1, 0), program)


def _numbers(uuids: Iterable[int], tracks: Mapping[int, _Track], stated: re.Pattern[str]) -> dict[int, int]:
    """The numbers in the tracks' names, or their order where these do not tell them apart."""
    known = {uuid: order for order, uuid in enumerate(uuids)}
    numbers = {uuid: int(found[1]) for uuid in known if (found := stated.search(tracks[uuid].name))}
    return numbers if len(set(numbers.values())) == len(known) else known


def _slices(events: _Events) -> Iterator[tuple[str, int, int | None]]:
    """Names, starts and ends of a track's slices. An end is of the slice that began last; it is None where there is none."""
    opened: list[tuple[str, int]] = []
    for at, kind, name in events:
        if kind == _BEGIN:
            opened.append((name, at))
        elif opened:
            yield (*opened.pop(), at)
    yield from ((*one, None) for one in opened)


def _decoded(data: bytes) -> tuple[dict[int, _Track], dict[int, _Events]]:
    """The tracks, and the events in order of time of those that have any, by their identifiers."""
    tracks: dict[int, _Track] = {}
    events: dict[int, _Events] = {}
    sequences: dict[int, _Sequence] = {}
    for raw in _fields(data, _TRACE).get("packets", ()):
        packet = _fields(raw, _PACKET)
        if "compressed" in packet:
            raise Unreadable("its packets are compressed: record it without compression")
        number = packet.get("sequence", 0)
        if packet.get("flags", 0) & _CLEARED or packet.get("cleared") or number not in sequences:
            sequences[number] = _Sequence()
        sequence = sequences[number]
        now = _refer(packet, sequence)
        if "track" in packet:
            told = _fields(packet["track"], _DESCRIPTOR)
            uuid = told.get("uuid", 0)
            if len(tracks) >= _TRACKS:
                raise Unreadable(f"it has more than {_TRACKS:,} tracks: record fewer blocks")
            tracks[uuid] = _track(told, tracks.get(uuid, _Track()))
        event = _fields(packet.get("event", b""), _EVENT)
        if event.get("type") in (_BEGIN, _END):
            name = _text(event["name"]) if "name" in event else sequence.names.get(event.get("iid", 0), "unnamed")
            events.setdefault(event.get("track", sequence.track), []).append((now, event["type"], name))
    for own in events.values():
        own.sort(key=lambda one: one[0])
    return tracks, events


def _refer(packet: Mapping[str, Any], sequence: _Sequence) -> int:
    """Keeps what the sequence refers to from this packet on, and returns the packet's time in nanoseconds."""
    for raw in _fields(packet.get("interned", b""), _INTERNED).get("names", ()):
        named = _fields(raw, _NAME)
        sequence.names[named.get("iid", 0)] = _text(named.get("name", b""))
    if "defaults" in packet:
        defaults = _fields(packet["defaults"], _DEFAULTS)
        sequence.clock = defaults.get("clock", 0)
        sequence.track = _fields(defaults.get("event", b""), _EVENT).get("track", 0)
    for raw in _fields(packet.get("clocks", b""), _CLOCKS).get("clocks", ()):
        clock = _fields(raw, _CLOCK)
        told = bool(clock.get("steps")), clock.get("timestamp", 0), clock.get("unit") or 1
        sequence.clocks[clock.get("id", 0)] = told
    number = packet.get("clock", sequence.clock)
    steps, last, unit = sequence.clocks.get(number, (False, 0, 1))
    now: int = packet.get("timestamp", 0) + (last if steps else 0)
    sequence.clocks[number] = steps, now, unit
    return now * unit


def _track(told: Mapping[str, Any], before: _Track) -> _Track:
    """A track, which may have been described before, with more."""
    thread, process = _fields(told.get("thread", b""), _THREAD), _fields(told.get("process", b""), _PROCESS)
    name = told.get("name") or thread.get("name") or process.get("name")
    pid = process.get("pid", thread.get("pid", before.pid))
    is_process = "process" in told or before.is_process
    return _Track(_text(name) if name else before.name, told.get("parent", before.parent), pid, is_process)


@functools.lru_cache(maxsize=4096)
def _text(raw: bytes) -> str:
    return contents.name(raw.decode(errors="replace"))


def _fields(data: bytes, wanted: _Fields) -> dict[str, Any]:
    """The wanted fields of a message by name: the last value of each, or all in a list. Raises Unreadable for what is no message."""
    found: dict[str, Any] = {}
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        wire = key & 7
        value: Any = None
        if wire == 0:
            value, at = _varint(data, at)
        elif wire == 2:
            length, at = _varint(data, at)
            value = data[at : at + length]
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise Unreadable("it is damaged, or no trace of Perfetto")
        if at > size:
            raise Unreadable("it is cut off")
        name, kind = wanted.get(key >> 3, ("", object))
        if kind is list and type(value) is bytes:
            found.setdefault(name, []).append(value)
            if len(found[name]) > _PACKETS:
                raise Unreadable(f"it has more than {_PACKETS:,} {name}: record fewer blocks")
        elif name and type(value) is not kind:
            raise Unreadable(f"it is damaged, or no trace of Perfetto: {name} has another type")
        elif name:
            found[name] = value
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at this place, and the place after it."""
    value = shift = 0
    for place in range(at, min(at + 10, len(data))):
        byte = data[place]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place + 1
        shift += 7
    raise Unreadable("it is cut off, or damaged")
