"""The collectives of one rank of a program, from its trace of torch.profiler. Times are seconds of the rank's own clock."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tilescope.collectors.foreign_files import contents
from tilescope.collectors.foreign_files.profiler_trace import EVENTS, Event
from tilescope.collectors.foreign_files.step_trace import is_collective
from tilescope.files import bounded_reading, json_stream

_INFO = "distributedInfo"
_NUMBER = re.compile(r"\d+")


class _Arguments(msgspec.Struct, gc=False):
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Description")
    elements: Any = msgspec.field(default=None, name="In msg nelems")


class _Event(Event, gc=False):
    args: _Arguments | None = None


@bounded_reading.parser
def read(path: Path) -> Rank:
    """The rank's kernels, collectives in the order of their starts. Where the trace does not name its rank, the last number of the file's name does."""
    calls, kernels, number = list[Call](), defaultdict[str, float](float), None
    for member, value in json_stream.members(bounded_reading.chunks(path), EVENTS, _Event):
        if member == _INFO and isinstance(value, dict):
            number = contents.number(value.get("rank"))
        elif member == EVENTS:
            for event in value:
                if event is None or not event.lasts or event.cat.lower() != "kernel":
                    continue
                name = event.name if isinstance(event.name, str) else ""
                if is_collective(name):
                    calls.append(_call(event, name))
                else:
                    kernels[contents.name(name)] += event.dur * 1e-6
    if number is None:
        named = _NUMBER.findall(path.name.partition(".")[0])
        number = float(named[-1]) if named else 0.0
    return Rank(int(number), path.name, tuple(sorted(calls, key=lambda call: call.start)), kernels)


def _call(event: _Event, name: str) -> Call:
    arguments = event.args or _Arguments()
    of = (contents.text(one, 60) for one in (arguments.collective, arguments.group))
    what, group = (text if text != "None" else "" for text in of)
    elements = contents.number(arguments.elements)
    return Call(what or contents.name(name), group, event.ts * 1e-6, event.dur * 1e-6, elements)


class Call(NamedTuple):
    """A collective on a rank: its name, the group of ranks, when it began, how long it took, and the elements that the rank gave."""

    name: str
    group: str
    start: float
    duration: float
    elements: float | None = None

    @property
    def end(self) -> float:
        """When it ended."""
        return self.start + self.duration


@dataclass(frozen=True)
class Rank:
    """A rank with its collectives in order. ``file`` is the trace's name, ``kernels`` maps names of other kernels to their seconds."""

    number: int
    file: str
    calls: tuple[Call, ...]
    kernels: Mapping[str, float] = field(default_factory=dict)
