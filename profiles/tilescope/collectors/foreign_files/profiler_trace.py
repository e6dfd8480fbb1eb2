"""Traces of torch.profiler and Kineto, in Chrome's format: events with a GPU's category are launches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.contents import Contents, Rows
from tilescope.files import bounded_reading, json_stream
from tilescope.table.description import DeclaredKernel
from tilescope.table.run import Device

NAME = "traces of torch.profiler or Kineto (.json, .json.gz)"
#: Sources of values: of Kineto's traces, and of traces of unnamed tools.
SOURCE, UNNAMED = "torch_profiler", "chrome_trace"
EVENTS = "traceEvents"
#: Categories of work on the GPU, in lower case: old traces write them with a capital.
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_OPERATORS = frozenset({"cpu_op", "operator"})
#: Members of a trace with a version, and its name in a run.
_VERSIONS = {"cuda_runtime_version": "cuda", "cuda_driver_version": "driver", "pytorch_version": "torch"}
#: Members that every trace of Kineto has.
_KINETO = ("schemaVersion", "deviceProperties")


def reads(head: bytes, name: str) -> bool:
    """Whether the head is that of a trace: an object with events or the usual members, or a list of events."""
    begun = head.lstrip()
    if begun[:1] == b"[":
        return b'"ph"' in head
    return begun[:1] == b"{" and (f'"{EVENTS}"'.encode() in head or b'"deviceProperties"' in head)


class _Arguments(Struct, gc=False):
    """The needed arguments of an event. Any may be absent or of another type."""

    external: Any = field(default=None, name="External id")
    external_before: Any = field(default=None, name="external id")
    grid: Any = None
    block: Any = None
    bytes: Any = None
    registers: Any = field(default=None, name="registers per thread")
    shared_memory: Any = field(default=None, name="shared memory")
    occupancy: Any = field(default=None, name="est. achieved occupancy %")
    stream: Any = None
    device: Any = None


class _Event(Struct, gc=False):
    """The needed parts of an event. Events whose parts have other types are skipped."""

    ph: str = ""
    cat: str = ""
    name: Any = None
    ts: float | None = None
    dur: float | None = None
    args: _Arguments | None = None


class _Shape(NamedTuple):
    """What launches of one kernel, grid and stream share."""

    kernel: str
    workload: str
    values: tuple[float | None, ...]
    stream: str
    device: object


#: Metrics of a launch: its time, and those of ``_Shape.values``.
_METRICS = ("gpu_time", "registers", "shared_memory", "block_threads", "grid_blocks", "estimated_occupancy")


@dataclass
class _Trace:
    """The launches by column (a trace has a million), the operators by their ids, and other members of the trace."""

    starts: list[float] = dataclass_field(default_factory=list)
    times: list[float] = dataclass_field(default_factory=list)
    shapes: list[_Shape] = dataclass_field(default_factory=list)
    by: list[object] = dataclass_field(default_factory=list)
    known: dict[tuple[Any, ...], _Shape] = dataclass_field(default_factory=dict)
    operators: dict[object, str] = dataclass_field(default_factory=dict)
    members: dict[str, Any] = dataclass_field(default_factory=dict)


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads every launch, copy and fill, in the order of their starts, with time and resources.

    The summary of a kernel names the operators that launched it and its streams. Raises Unreadable where there is no launch.
    """
    trace = _Trace()
    for member, value in json_stream.members(bounded_reading.chunks(path), EVENTS, _Event):
        if member == EVENTS:
            for event in value:
                if event.ph == "X":
                    _read_event(trace, event)
        elif member in _VERSIONS or member in (*_KINETO, "baseTimeNanoseconds"):
            trace.members[member] = value
    kineto = any(name in trace.members for name in _KINETO)
    rows = Rows(SOURCE if kineto else UNNAMED)
    order = sorted(range(len(trace.starts)), key=trace.starts.__getitem__)
    rows.add_launches(
        [(shape.kernel, shape.workload) for shape in (trace.shapes[place] for place in order)],
        _METRICS,
        [(trace.times[place], *trace.shapes[place].values) for place in order],
    )
    contents.require(
        rows, "no launch on a GPU is in it: record with ProfilerActivity.CUDA, on a machine where torch sees the GPU"
    )
    devices = Counter(shape.device for shape in trace.shapes)
    return Contents(
        "torch.profiler" if kineto else "a tool that it does not name",
        rows.frame(),
        _device(trace.members.get("deviceProperties"), devices),
        _kernels(trace, order),
        {called: said for name, called in _VERSIONS.items() if (said := contents.text(trace.members.get(name)))},
        _recorded(trace.members.get("baseTimeNanoseconds"), min(trace.starts)),
        _notes(devices),
    )


def _read_event(trace: _Trace, event: _Event) -> None:
    """Keeps an operator's name, or the columns of a launch."""
    kind, arguments = event.cat.lower(), event.args or _NO_ARGUMENTS
    called = arguments.external if arguments.external is not None else arguments.external_before
    if kind in _OPERATORS:
        if called is not None:
            trace.operators[_plain(called)] = contents.text(event.name, 200)
    elif kind in _GPU and event.ts is not None and event.dur is not None:
        if not (math.isfinite(event.ts) and 0 <= event.dur < math.inf):
            return
        trace.starts.append(event.ts)
        trace.times.append(event.dur * 1e-6)
        trace.shapes.append(_shape(trace, event.name, arguments))
        trace.by.append(_plain(called))


_NO_ARGUMENTS = _Arguments()


def _shape(trace: _Trace, name: Any, of: _Arguments) -> _Shape:
    grid, block = (tuple(sides) if isinstance(sides, list) else None for sides in (of.grid, of.block))
    key = (name, grid, block, of.bytes, of.registers, of.shared_memory, of.occupancy, of.stream, of.device)
    try:
        return trace.known[key]
    except KeyError:
        made = trace.known[key] = _made(name, of)
        return made
    except TypeError:  # a part is an object or a list
        return _made(name, of)


def _made(name: Any, of: _Arguments) -> _Shape:
    grid, block = contents.sizes(of.grid), contents.sizes(of.block)
    moved = None if grid else contents.number(of.bytes)
    share = contents.number(of.occupancy)
    values = (
        contents.number(of.registers), contents.number(of.shared_memory), contents.product(block), contents.product(grid),
        None if share is None else share / 100,
    )  # fmt: skip
    workload = f"{moved:.0f} bytes" if moved is not None else contents.workload(grid, block)
    called = contents.name(name if isinstance(name, str) else "")
    return _Shape(called, workload, values, contents.text(of.stream, 20), _plain(of.device))


def _plain(value: Any) -> object:
    return value if isinstance(value, (int, str)) else None


def _device(said: Any, used: Mapping[object, int]) -> Device:
    """The GPU with the most launches, as the trace describes it."""
    most = max(used, key=lambda one: used[one], default=None)
    one = next((one for one in contents.mappings(said) if one.get("id") == most), None)
    if one is None:
        return contents.device()
    major, minor = (contents.number(one.get(f"compute{what}")) for what in ("Major", "Minor"))
    return contents.device(
        contents.text(one.get("name")),
        f"sm_{major:.0f}{minor:.0f}" if major and minor is not None and 0 <= minor < 10 else "",
        multiprocessors=contents.count(one.get("numSms")),
        memory_bytes=contents.count(one.get("totalGlobalMem")),
    )


def _recorded(base: Any, start: float) -> str:
    """The time of the first launch; empty where the trace does not say what its microseconds count from."""
    nanoseconds = contents.number(base)
    if nanoseconds is None:
        return ""
    try:
        return datetime.fromtimestamp(nanoseconds * 1e-9 + start * 1e-6, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def _kernels(trace: _Trace, order: Iterable[int]) -> dict[str, DeclaredKernel]:
    """The summary of each kernel: the operators that launched it, and its streams."""
    by: dict[str, Counter[str]] = {}
    streams: dict[str, set[str]] = {}
    for place in order:
        shape = trace.shapes[place]
        if operator := trace.operators.get(trace.by[place]):
            by.setdefault(shape.kernel, Counter())[operator] += 1
        if shape.stream:
            streams.setdefault(shape.kernel, set()).add(shape.stream)
    found: dict[str, DeclaredKernel] = {}
    for name in dict.fromkeys([*by, *streams]):
        parts = [f"launched by {contents.listed(by[name])}"] if name in by else []
        if name in streams:
            parts.append(f"on stream {', '.join(sorted(streams[name]))}")
        found[name] = {"summary": " ".join(parts)}
    return found


def _notes(devices: Iterable[object]) -> list[str]:
    count = len(list(devices))
    return [f"its launches are of {count} GPUs, and the run names the one with most of them"] if count > 1 else []
