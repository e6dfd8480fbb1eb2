"""Counters of one launch's memory requests and arithmetic. Pure NumPy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from tilescope.interpreter import accesses

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch

Array = npt.NDArray[Any]


@dataclass
class Meter:
    """The memory requests and operations of one launch.

    ``requested_*`` are bytes, each access in full. ``distinct_*`` (bytes) and ``sectors_*`` are those of each load or store
    instruction of a whole block, summed over instructions. ``read`` and ``written`` mark which bytes were touched at all. An
    atomic reads and writes. ``flops`` include masked lanes. ``lines`` maps a line of the kernel's file to its
    ``requested_bytes_*`` and ``sectors_*``. ``sampled`` is (counted, all) programs where only a sample was counted, ``by_rule``
    the same where the others were derived from those counted.
    """

    read: accesses.Footprint
    written: accesses.Footprint
    requested_read: int = 0
    requested_written: int = 0
    distinct_read: int = 0
    distinct_written: int = 0
    sectors_read: int = 0
    sectors_written: int = 0
    flops: int = 0
    lines: dict[int, Counter[str]] = field(default_factory=dict)
    sampled: tuple[int, int] | None = None
    by_rule: tuple[int, int] | None = None

    def load(self, addresses: Array, size: int, line: int) -> None:
        """Counts an access that reads elements of ``size`` bytes at ``addresses``. Raises OutOfBounds."""
        self._access("read", "reads", addresses, size, line)

    def store(self, addresses: Array, size: int, line: int) -> None:
        """Counts an access that writes elements of ``size`` bytes at ``addresses``. Raises OutOfBounds."""
        self._access("written", "writes", addresses, size, line)

    def _access(self, way: str, verb: str, addresses: Array, size: int, line: int) -> None:
        found = accesses.runs(addresses, size)
        try:
            getattr(self, way).add(found)
        except accesses.OutOfBounds as error:
            error.verb = verb
            raise
        self._count(way, line, addresses.size * size, found.bytes, found.sectors)

    def _count(self, way: str, line: int, requested: int, distinct: int, sectors: int) -> None:
        for name, count in (("requested", requested), ("distinct", distinct), ("sectors", sectors)):
            setattr(self, f"{name}_{way}", getattr(self, f"{name}_{way}") + count)
        self._at(line).update({f"requested_bytes_{way}": requested, f"sectors_{way}": sectors})

    def forget(self, times: int, size: int, line: int, *, written: bool) -> None:
        """Takes back accesses of a program that polled one element in vain, because their number is chance."""
        for way in ("read", "written") if written else ("read",):
            self._count(way, line, -times * size, -times * size, -times)

    def traced(self) -> Meter:
        """A new meter for the same memory, which keeps ranges of bytes instead of marking them."""
        return Meter(accesses.Trace(self.read), accesses.Trace(self.written))

    def counts(self) -> tuple[Any, ...]:
        """The counts that do not depend on addresses: all without the footprints and sectors."""
        return (*(getattr(self, name) for name in _COUNTS if not name.startswith("sectors")), self.lines.keys())

    def add(self, share: Meter, times: int = 1) -> None:
        """Adds the counts of another meter, ``times`` times. Footprints are not added."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + times * getattr(share, name))
        for line, counts in share.lines.items():
            self._at(line).update({name: times * count for name, count in counts.items()})

    def without_sectors(self) -> None:
        """Drops the sectors."""
        self.sectors_read = self.sectors_written = 0
        for counts in self.lines.values():
            for name in ("sectors_read", "sectors_written"):
                counts.pop(name, None)

    def fresh(self) -> Meter:
        """A new meter with the same footprints: for one process's share of a launch."""
        return Meter(self.read, self.written)

    def merge(self, share: Meter) -> None:
        """Adds the counts of a forked process, and its footprints, which are in the same shared memory."""
        self.add(share)
        self.read.used |= share.read.used
        self.written.used |= share.written.used

    def take(self, share: Meter) -> None:
        """Replaces the counts, not the footprints, by those of another meter."""
        for name in (*_COUNTS, "lines"):
            setattr(self, name, getattr(share, name))

    def record(self, launch: Launch) -> dict[str, Any]:
        """The launch's record in the interpreter's artefact. Figures of a sample are scaled to all programs."""
        about: dict[str, Any] = {
            "function": launch.name,
            "grid": launch.grid,
            "config": dict(launch.config),
            "constants": launch.constants,
            "file": launch.file.name,
        }
        if self.sampled is not None:
            # A sample does not show how many bytes of all programs are distinct.
            counted, programs = self.sampled
            return {
                **about,
                "sampled_programs": counted,
                "programs": programs,
                "sampled_bytes_read": self.requested_read * programs / counted,
                "sampled_bytes_written": self.requested_written * programs / counted,
                "sampled_flops": self.flops * programs / counted,
            }
        if self.by_rule is not None:
            about |= {"programs_by_rule": self.by_rule[0], "programs": self.by_rule[1]}
        return {
            **about,
            "requested_bytes_read": self.requested_read,
            "requested_bytes_written": self.requested_written,
            "unique_bytes_read": self.read.bytes,
            "unique_bytes_written": self.written.bytes,
            "sector_efficiency_read": _efficiency(self.distinct_read, self.sectors_read),
            "sector_efficiency_written": _efficiency(self.distinct_written, self.sectors_written),
            "requested_flops": self.flops,
            "lines": self.lines,
        }

    def _at(self, line: int) -> Counter[str]:
        return self.lines.setdefault(line, Counter())


@dataclass
class Counting:
    """How a launch is interpreted, and the meter that counts it (None: nothing is counted).

    Without ``values`` floating-point numbers are not computed; if ``blind``, nothing that memory holds is read. NeedsValues is
    raised where an address depends on such a value. ``source`` is the file whose lines are counted, ``deadline`` the
    ``time.thread_time()`` of the end. ``another`` runs a program that has not begun while the current one waits, and returns
    whether there was one.
    """

    meter: Meter | None
    values: bool
    source: str
    deadline: float
    another: Callable[[], bool] | None = None
    blind: bool = False

    def flops(self, count: int) -> None:
        """Counts that many floating-point operations."""
        if self.meter is not None:
            self.meter.flops += count


def _efficiency(distinct: int, sectors: int) -> float | None:
    return distinct / (accesses.SECTOR * sectors) if sectors else None


_COUNTS = (
    "requested_read", "requested_written", "distinct_read", "distinct_written", "sectors_read", "sectors_written", "flops",
)  # fmt: skip
