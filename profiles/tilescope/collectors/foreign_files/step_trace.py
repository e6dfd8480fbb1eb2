"""Reads the steps of a model from a trace of torch.profiler: each launch with its operator, module and line of code.

A step is marked by Tilescope's own range or by torch.profiler's; without either it lasts from one ``Optimizer.step`` to the next, and
without that it is the whole trace.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import statistics
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tilescope.collectors.foreign_files import contents, operator_costs
from tilescope.collectors.foreign_files.profiler_trace import EVENTS, Event, OfLaunch
from tilescope.files import bounded_reading, json_stream
from tilescope.table import step as model
from tilescope.table.step import WHOLE_TRACE, Operator, Step, StepLaunch, Stop

#: Ranges of Tilescope around a step, followed by its number, and around a call of a module, followed by its path.
STEP, MODULE = "tilescope.step#", "tilescope.module#"
#: Ranges of torch.profiler around a step, and of PyTorch around an optimizer's.
_PROFILER_STEP, _OPTIMIZER = "ProfilerStep#", "Optimizer.step#"
_PYTHON_MODULE = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function"
_KINDS = {
    "kernel": model.KERNEL,
    "gpu_memcpy": model.COPY,
    "memcpy": model.COPY,
    "gpu_memset": model.FILL,
    "memset": model.FILL,
}
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime"})
_RANGES = frozenset({"cpu_op", "operator", "user_annotation", "python_function"})
#: Calls by which the CPU waits for the GPU.
_STOPS = re.compile(r"cuda(Stream|Device|Event)Synchronize|cudaMemcpy|cu(Stream|Ctx)Synchronize|cuMemcpyDtoH(_v2)?")
_COLLECTIVE = re.compile(
    r"nccl(Dev)?Kernel|nccl:|AllReduce_|ReduceScatter_|AllGather_|(one|two)_shot_all_|multimem_all_|cross_device_reduce"
)
#: Most launches of a step, and seconds out of PyTorch that count as away.
MOST, _AWAY = 100_000, 3e-4
#: A line of code in a trace with stacks: ``model.py(12): forward``.
_LINE = re.compile(r"(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)")
#: Files whose lines are not a user's.
_LIBRARIES = ("torch/", "<", "tilescope/", "contextlib.py", "threading.py", "runpy.py", "functools.py")


class _Arguments(OfLaunch, gc=False):
    correlation: Any = None
    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")
    values: Any = msgspec.field(default=None, name="Concrete Inputs")
    sequence: Any = msgspec.field(default=None, name="Sequence number")


class _Event(Event, gc=False):
    pid: Any = None
    tid: Any = None
    args: _Arguments | None = None

    @property
    def end(self) -> float:
        return self.ts + self.dur


_NONE = _Arguments()


@dataclass
class _Trace:
    """The events of a trace. ``calls`` are the CPU's calls that made something, by correlation."""

    gpu: list[_Event] = field(default_factory=list)
    ranges: dict[object, list[_Event]] = field(default_factory=dict)
    calls: dict[object, _Event] = field(default_factory=dict)
    stops: list[_Event] = field(default_factory=list)
    marks: list[_Event] = field(default_factory=list)
    profiler_marks: list[_Event] = field(default_factory=list)
    optimizer_marks: list[_Event] = field(default_factory=list)


def is_collective(kernel: str) -> bool:
    return bool(_COLLECTIVE.search(kernel))


@bounded_reading.parser
def read(path: Path, found: str = "") -> Step | None:
    """The trace's median step; None where it has too many launches, or none. ``found`` is what the step is, where that is known."""
    trace = _read(path)
    if not trace.gpu:
        return None
    intervals, said, launches = next(
        (marked, found, launches) for marked, found in _steps(trace) if (launches := _by_step(trace, marked))
    )
    windows = _windows(launches)
    whole = {number: size for number, size in windows.items() if number + 1 in windows} or windows
    if not whole:
        return None
    middle = statistics.median_low(whole.values())
    number = next(number for number, size in whole.items() if size == middle)
    if len(launches[number]) > MOST:
        return None
    step = _step(trace, launches, number, intervals[number], windows)
    return dataclasses.replace(step, found=found or said)


def _read(path: Path) -> _Trace:
    trace = _Trace()
    for member, value in json_stream.members(bounded_reading.chunks(path), EVENTS, _Event):
        if member != EVENTS:
            continue
        for event in value:
            if event is not None and event.lasts:
                _keep(trace, event)
    return trace


def _keep(trace: _Trace, event: _Event) -> None:
    kind, arguments = event.cat.lower(), event.args or _NONE
    name = event.name if isinstance(event.name, str) else ""
    event.name = name
    if kind in _KINDS:
        trace.gpu.append(event)
    elif kind in _CALLS:
        if isinstance(arguments.correlation, int):
            trace.calls[arguments.correlation] = event
        if _STOPS.fullmatch(name):
            trace.stops.append(event)
    elif kind in _RANGES:
        for mark, marks in ((STEP, trace.marks), (_PROFILER_STEP, trace.profiler_marks)):
            if name.startswith(mark):
                marks.append(event)
                return
        if name.startswith(_OPTIMIZER):
            trace.optimizer_marks.append(event)
        if kind != "python_function" or name.startswith(_PYTHON_MODULE) or _LINE.match(name):
            trace.ranges.setdefault((event.pid, event.tid), []).append(event)


def _steps(trace: _Trace) -> Iterator[tuple[list[tuple[float, float]], str]]:
    """The CPU's time of each step, and what the steps are, the best marks first. Marks may have no launch between them."""
    for marks, said in ((trace.marks, ""), (trace.profiler_marks, "a step of torch.profiler")):
        if marks:
            yield sorted((mark.ts, mark.end) for mark in marks), said
    for name in dict.fromkeys(mark.name for mark in trace.optimizer_marks):
        ends = sorted(mark.end for mark in trace.optimizer_marks if mark.name == name)
        if len(ends) > 2:
            what = name.removeprefix(_OPTIMIZER).partition(".")[0]
            yield list(itertools.pairwise(ends)), f"from one step of {what} to the next"
    yield [(float("-inf"), float("inf"))], WHOLE_TRACE


def _called(trace: _Trace, event: _Event) -> _Event | None:
    return trace.calls.get((event.args or _NONE).correlation)


def _by_step(trace: _Trace, intervals: Sequence[tuple[float, float]]) -> dict[int, list[_Event]]:
    """The launches of each step, in the order of their starts. A launch belongs to the step in which the CPU called it."""
    starts = [start for start, _ in intervals]
    found: dict[int, list[_Event]] = {}
    for event in trace.gpu:
        call = _called(trace, event)
        moment = (call or event).ts
        number = bisect_right(starts, moment) - 1
        if number >= 0 and moment <= intervals[number][1]:
            found.setdefault(number, []).append(event)
    return {number: sorted(found[number], key=lambda event: event.ts) for number in sorted(found)}


def _windows(launches: Mapping[int, Sequence[_Event]]) -> dict[int, float]:
    """Each step's time on the GPU in microseconds: to the next step's first launch, or to its own last end."""
    found = {}
    for number, events in launches.items():
        start = events[0].ts
        later = launches.get(number + 1)
        end = later[0].ts if later else max(event.end for event in events)
        if end > start:
            found[number] = end - start
    return found


def _step(
    trace: _Trace, launches: Mapping[int, list[_Event]], number: int, interval: tuple[float, float],
    windows: Mapping[int, float],
) -> Step:  # fmt: skip
    events = launches[number]
    start = events[0].ts
    placed = _Places(trace, start)
    operators: dict[Operator, int] = {}
    made: list[tuple[_Event, _Event | None, int | None, object]] = []
    for event in events:
        call, place, instance = _called(trace, event), None, None
        if call:
            operator, instance = placed.of(call)
            place = operators.setdefault(operator, len(operators))
        made.append((event, call, place, instance))
    spent: dict[object, float] = defaultdict(float)
    for event, _, _, instance in made:
        spent[instance] += event.dur
    later = launches.get(number + 1)
    next_call = _called(trace, later[0]) if later else None
    end = start + windows[number]
    return Step(
        launches=tuple(
            _launch(event, call, place, event.dur / spent[instance] if instance and spent[instance] else 1.0, start)
            for event, call, place, instance in made
        ),
        operators=tuple(operators),
        window=windows[number] * 1e-6,
        next_call=_seconds(next_call.ts, start) if next_call else None,
        away=tuple(_away(trace, interval, start, end)),
        stops=tuple(placed.stop(stop) for stop in trace.stops if interval[0] <= stop.ts <= interval[1]),
    )


def _launch(event: _Event, call: _Event | None, operator: int | None, part: float, start: float) -> StepLaunch:
    arguments = event.args or _NONE
    kind = _KINDS[event.cat.lower()]
    called = contents.name(event.name)
    return StepLaunch(
        name=called,
        kind=model.COLLECTIVE if kind == model.KERNEL and is_collective(called) else kind,
        start=_seconds(event.ts, start),
        duration=event.dur * 1e-6,
        stream=contents.text(arguments.stream, 20),
        call=_seconds(call.ts, start) if call else None,
        operator=operator,
        part=part,
        grid=tuple(contents.sizes(arguments.grid) or ()),
        block=tuple(contents.sizes(arguments.block) or ()),
        moved=contents.number(arguments.bytes),
        in_graph=bool(arguments.graph),
    )


def _seconds(moment: float, start: float) -> float:
    return round((moment - start) * 1e-6, 9)


def _away(trace: _Trace, interval: tuple[float, float], start: float, end: float) -> Iterator[tuple[float, float]]:
    """Times in which no thread was in an operator or a call of CUDA's."""
    busy = [
        event for events in trace.ranges.values() for event in events if event.cat.lower() in ("cpu_op", "operator")
    ]
    busy += [*trace.calls.values(), *trace.stops]
    inside = sorted((event.ts, event.end) for event in busy if event.end >= interval[0] and event.ts <= end)
    until = inside[0][0] if inside else end
    for begun, ended in inside:
        if begun - until > _AWAY * 1e6:
            yield _seconds(until, start), _seconds(begun, start)
        until = max(until, ended)


class _Places:
    """Finds the operator, module and line of each call of the CPU, by the ranges around it in its thread."""

    def __init__(self, trace: _Trace, start: float) -> None:
        self._start = start
        self._stacks = {thread: _Stacks(events) for thread, events in trace.ranges.items()}
        #: Module and line of each operator of the forward pass, by autograd's sequence number.
        self._forward: dict[int, tuple[str, str]] = {}
        for stacks in self._stacks.values():
            for event, around in stacks.each():
                number = (event.args or _NONE).sequence
                if isinstance(number, int) and number >= 0 and not _is_backward((*around, event)):
                    self._forward[number] = _module(around), _site(around)

    def of(self, call: _Event) -> tuple[Operator, object]:
        """The operator of a call, and what tells one call of the operator from another; None if it is in none."""
        stacks = self._stacks.get((call.pid, call.tid))
        around = stacks.around(call.ts) if stacks else ()
        operators = [event for event in around if event.cat.lower() in ("cpu_op", "operator")]
        own = [event for event in operators if not event.name.startswith(_BACKWARD)]
        if not operators:
            annotated = next((event for event in reversed(around) if event.cat.lower() == "user_annotation"), None)
            name = annotated.name if annotated and not annotated.name.startswith(MODULE) else ""
            return Operator(name, name, (), (), _module(around), _site(around), _direction(around)), None
        inner = next((event for event in reversed(own) if (event.args or _NONE).dims), (own or operators)[-1])
        module, site = _module(around), _site(around)
        direction = _direction(around)
        if direction == model.BACKWARD:
            numbers = [(event.args or _NONE).sequence for event in around]
            module, site = next(
                (self._forward[number] for number in reversed(numbers) if number in self._forward), (module, site)
            )
        arguments = inner.args or _NONE
        shapes, dtypes = _tensors(arguments)
        name = contents.text(inner.name, 200)
        values = arguments.values if isinstance(arguments.values, list) else ()
        known = operator_costs.cost(name, shapes, dtypes, [value for value in values if isinstance(value, str)])
        outer = contents.text((own or operators)[0].name, 200)
        made = Operator(name, outer, shapes, dtypes, module, site, direction, known.bytes_needed, known.flops)
        return made, (call.pid, call.tid, inner.ts)

    def stop(self, event: _Event) -> Stop:
        operator, _ = self.of(event)
        return Stop(
            contents.text(event.name), _seconds(event.ts, self._start), _seconds(event.end, self._start),
            operator.outer, operator.module, operator.site,
        )  # fmt: skip


class _Stacks:
    def __init__(self, events: Iterable[_Event]) -> None:
        self._events = sorted(events, key=lambda event: (event.ts, -event.dur))
        self._starts = [event.ts for event in self._events]
        #: The range around each, by its place; -1 for none.
        self._parents: list[int] = []
        open_: list[int] = []
        for place, event in enumerate(self._events):
            while open_ and self._events[open_[-1]].end <= event.ts:
                open_.pop()
            self._parents.append(open_[-1] if open_ else -1)
            open_.append(place)

    def around(self, moment: float) -> tuple[_Event, ...]:
        """The ranges around a moment, outermost first."""
        return tuple(event for event in self._chain(bisect_right(self._starts, moment) - 1) if event.end >= moment)

    def each(self) -> Iterator[tuple[_Event, tuple[_Event, ...]]]:
        for place, event in enumerate(self._events):
            if event.args is not None and event.args.sequence is not None:
                yield event, tuple(self._chain(self._parents[place]))

    def _chain(self, place: int) -> list[_Event]:
        """The range at a place, after those around it, outermost first."""
        found: list[_Event] = []
        while place >= 0:
            found.append(self._events[place])
            place = self._parents[place]
        return found[::-1]


def _is_backward(around: Iterable[_Event]) -> bool:
    return any(event.name.startswith(_BACKWARD) for event in around)


def _direction(around: Sequence[_Event]) -> str:
    if any(event.name.startswith(_OPTIMIZER) for event in around):
        return model.OPTIMIZER
    return model.BACKWARD if _is_backward(around) else model.FORWARD


def _module(around: Sequence[_Event]) -> str:
    """The path of the innermost module; by a trace with stacks the classes of the modules, without torch's numbers."""
    own = next((event.name for event in reversed(around) if event.name.startswith(MODULE)), "")
    if own:
        return contents.text(own.removeprefix(MODULE), 400)
    named = [event.name.removeprefix(_PYTHON_MODULE) for event in around if event.name.startswith(_PYTHON_MODULE)]
    return contents.text(".".join(named), 400)


def _site(around: Sequence[_Event]) -> str:
    """The innermost line that is neither PyTorch's nor Python's: ``model.py:12``."""
    for event in reversed(around):
        line = _LINE.match(event.name) if event.cat.lower() == "python_function" else None
        if line and not line["file"].startswith(_LIBRARIES):
            return contents.text(f"{line['file']}:{line['line']}", 200)
    return ""


def _tensors(arguments: _Arguments) -> tuple[tuple[tuple[int, ...], ...], tuple[str, ...]]:
    """The shapes and dtypes of an operator's tensors; those of a list of tensors one by one."""
    dims, types = arguments.dims, arguments.types
    if not isinstance(dims, list) or not isinstance(types, list):
        return (), ()
    shapes: list[tuple[int, ...]] = []
    dtypes: list[str] = []
    for shape, dtype in zip(dims, types, strict=False):
        several = isinstance(shape, list) and bool(shape) and all(isinstance(one, list) for one in shape)
        for one in shape if several else [shape]:
            sides = one if isinstance(one, list) and all(isinstance(side, int) for side in one) else []
            shapes.append(tuple(sides))
            dtypes.append(contents.text(dtype, 40))
    return tuple(shapes), tuple(dtypes)
