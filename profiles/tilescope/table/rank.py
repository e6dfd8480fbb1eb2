"""The collectives of one rank of a program. Times are seconds of the rank's own clock. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


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
