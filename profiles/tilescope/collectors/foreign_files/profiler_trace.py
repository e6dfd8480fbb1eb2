"""Traces of torch.profiler and Kineto, in Chrome's format: events with a GPU's category are launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

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
#: Metrics of a launch, and their argument in the trace.
_RESOURCES = {"registers": "registers per thread", "shared_memory": "shared memory"}
#: Members that every trace of Kineto has.
_KINETO = ("schemaVersion", "deviceProperties")
_EXTERNAL = ("External id", "external id")


def reads(head: bytes, name: str) -> bool:
    """Whether the head is that of a trace: an object with events or the usual members, or a list of events."""
    begun = head.lstrip()
    if begun[:1] == b"[":
        return b'"ph"' in head
    return begun[:1] == b"{" and (f'"{EVENTS}"'.encode() in head or b'"deviceProperties"' in head)


class _Launch(NamedTuple):
    """The needed parts of a launch's event: a trace has a million."""

    start: float
    name: str
    workload: str
    values: tuple[float | None, ...]
    operator: object
    stream: str
    device: object


_METRICS = ("gpu_time", *_RESOURCES, "block_threads", "grid_blocks", "estimated_occupancy")


@dataclass
class _Trace:
    launches: list[_Launch] = field(default_factory=list)
    operators: dict[object, str] = field(default_factory=dict)
    members: dict[str, Any] = field(default_factory=dict)
    known: dict[tuple[Any, ...], tuple[str, str]] = field(default_factory=dict)


@bounded_reading.parser
def read(path: Path) -> Contents:
    """Reads every launch, copy and fill, in the order of their starts, with time and resources.

    The summary of a kernel names the operators that launched it and its streams. Raises Unreadable where there is no launch.
    """
    trace = _Trace()
    for name, value in json_stream.members(bounded_reading.chunks(path), EVENTS):
        if name == EVENTS:
            _event(trace, value)
        elif name in _VERSIONS or name in (*_KINETO, "baseTimeNanoseconds"):
            trace.members[name] = value
    trace.launches.sort(key=itemgetter(0))
    kineto = any(name in trace.members for name in _KINETO)
    rows = Rows(SOURCE if kineto else UNNAMED)
    by: dict[str, Counter[str]] = {}
    streams: dict[str, Counter[str]] = {}
    for number, launch in enumerate(trace.launches):
        rows.add(launch.name, launch.workload, number, dict(zip(_METRICS, launch.values, strict=True)))
        if operator := trace.operators.get(launch.operator):
            by.setdefault(launch.name, Counter())[operator] += 1
        if launch.stream:
            streams.setdefault(launch.name, Counter())[launch.stream] += 1
    contents.require(
        rows, "no launch on a GPU is in it: record with ProfilerActivity.CUDA, on a machine where torch sees the GPU"
    )
    devices = Counter(launch.device for launch in trace.launches)
    return Contents(
        "torch.profiler" if kineto else "a tool that it does not name",
        rows.frame(),
        _device(trace.members.get("deviceProperties"), devices),
        _kernels(rows, by, streams),
        {called: said for name, called in _VERSIONS.items() if (said := contents.text(trace.members.get(name)))},
        _recorded(trace.members.get("baseTimeNanoseconds"), trace.launches[0].start),
        _notes(devices),
    )


def _event(trace: _Trace, event: Any) -> None:
    """Keeps the needed parts of one event."""
    if not isinstance(event, dict) or event.get("ph") != "X":
        return
    kind, arguments = event.get("cat"), event.get("args")
    if not isinstance(kind, str):
        return
    arguments = contents.mapping(arguments)
    if kind.lower() in _OPERATORS:
        called = _external(arguments)
        if called is not None:
            trace.operators[called] = contents.text(event.get("name"), 200)
    elif kind.lower() in _GPU:
        start, duration = contents.number(event.get("ts")), contents.number(event.get("dur"))
        if start is not None and duration is not None and duration >= 0:
            trace.launches.append(_launch(trace, event, arguments, start, duration))


def _launch(
    trace: _Trace, event: Mapping[str, Any], arguments: Mapping[str, Any], start: float, duration: float
) -> _Launch:
    grid, block = (contents.sizes(arguments.get(name)) for name in ("grid", "block"))
    moved = None if grid else contents.number(arguments.get("bytes"))
    raw = event.get("name")
    key = (raw if isinstance(raw, str) else "", tuple(grid or ()), tuple(block or ()), moved)
    if key not in trace.known:
        size = f"{moved:.0f} bytes" if moved is not None else contents.workload(grid, block)
        trace.known[key] = (contents.name(key[0]), size)
    name, workload = trace.known[key]
    share = contents.number(arguments.get("est. achieved occupancy %"))
    return _Launch(
        start,
        name,
        workload,
        (
            duration * 1e-6,
            *(contents.number(arguments.get(argument)) for argument in _RESOURCES.values()),
            contents.product(block),
            contents.product(grid),
            None if share is None else share / 100,
        ),
        _external(arguments),
        contents.text(arguments.get("stream"), 20),
        _plain(arguments.get("device")),
    )


def _external(arguments: Mapping[str, Any]) -> object:
    """The id that links a launch to its operator; None without one."""
    return next((_plain(arguments[name]) for name in _EXTERNAL if name in arguments), None)


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


def _kernels(
    rows: Rows, by: Mapping[str, Counter[str]], streams: Mapping[str, Counter[str]]
) -> dict[str, DeclaredKernel]:
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
