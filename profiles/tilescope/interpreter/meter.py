"""Counters of what one launch asks of memory and arithmetic. Pure NumPy."""

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
    """What one launch asked of memory and arithmetic.

    ``requested_*`` in bytes, each access in full; ``distinct_*`` bytes and ``sectors_*`` summed over the launch's load
    or store instructions, one instruction of a whole block at a time; ``read`` and ``written`` hold which bytes were
    touched at all. An atomic reads and writes. ``flops`` counts masked lanes too. ``lines`` maps a line of the
    kernel's file to what was asked for there: ``requested_bytes_*`` and ``sectors_*``. ``sampled`` is how many programs of how many
    were counted where these are not all, ``by_rule`` the same where the others follow from those.
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
        """An access that reads elements of ``size`` bytes at ``addresses``."""
        found = accesses.runs(addresses, size)
        _mark(self.read, found, "reads")
        self.requested_read += addresses.size * size
        self.distinct_read += found.bytes
        self.sectors_read += found.sectors
        self._at(line).update(requested_bytes_read=addresses.size * size, sectors_read=found.sectors)

    def store(self, addresses: Array, size: int, line: int) -> None:
        """An access that writes them."""
        found = accesses.runs(addresses, size)
        _mark(self.written, found, "writes")
        self.requested_written += addresses.size * size
        self.distinct_written += found.bytes
        self.sectors_written += found.sectors
        self._at(line).update(requested_bytes_written=addresses.size * size, sectors_written=found.sectors)

    def forget(self, times: int, size: int, line: int, *, written: bool) -> None:
        """Take back accesses to one element, which asked in vain for what another program was to write: how often is chance."""
        for way in ("read", "written") if written else ("read",):
            for name, each in ((f"requested_{way}", size), (f"distinct_{way}", size), (f"sectors_{way}", 1)):
                setattr(self, name, getattr(self, name) - times * each)
            self._at(line).subtract({f"requested_bytes_{way}": times * size, f"sectors_{way}": times})

    def traced(self) -> Meter:
        """A meter that counts from nothing, and keeps the ranges that it finds."""
        return Meter(accesses.Trace(self.read), accesses.Trace(self.written))

    def counts(self) -> tuple[Any, ...]:
        """All but the footprints and the sectors, which depend on where a program's bytes begin."""
        return (*(getattr(self, name) for name in _COUNTS if not name.startswith("sectors")), self.lines.keys())

    def add_times(self, share: Meter, times: int) -> None:
        """Take in what one program asked for as that of several."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + times * getattr(share, name))
        for line, counts in share.lines.items():
            self._at(line).update({name: times * count for name, count in counts.items()})

    def without_sectors(self) -> None:
        """Forget how many sectors there were."""
        self.sectors_read = self.sectors_written = 0
        for counts in self.lines.values():
            for name in ("sectors_read", "sectors_written"):
                counts.pop(name, None)

    def fresh(self) -> Meter:
        """A meter that counts from nothing into the same footprints: one process's share of a launch."""
        return Meter(self.read, self.written)

    def add(self, share: Meter) -> None:
        """Take in what another process counted. Its footprints are in the same shared memory."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(share, name))
        for line, counts in share.lines.items():
            self._at(line).update(counts)
        self.read.used |= share.read.used
        self.written.used |= share.written.used

    def take_rule(self, share: Meter, counted: int, programs: int) -> None:
        """Become what follows for all programs from those that were counted."""
        for name in _COUNTS:
            setattr(self, name, getattr(share, name))
        self.lines, self.read, self.written, self.by_rule = share.lines, share.read, share.written, (counted, programs)

    def take_sample(self, share: Meter, counted: int, programs: int) -> None:
        """Become what was counted of some programs, whatever this one has counted."""
        for name in _COUNTS:
            setattr(self, name, getattr(share, name))
        self.lines, self.sampled = share.lines, (counted, programs)

    def record(self, launch: Launch) -> dict[str, Any]:
        """What the interpreter's artefact has of the launch that was counted."""
        about: dict[str, Any] = {
            "function": launch.name,
            "grid": launch.grid,
            "config": dict(launch.config),
            "constants": launch.constants,
            "file": launch.file.name,
        }
        if self.sampled is not None:
            # Which bytes are distinct among all programs' is not known of some.
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
    """How one launch is interpreted, and the meter that counts it (None: nobody counts).

    Without ``values`` floating-point numbers are left out, and if it is ``blind`` all that memory holds: then addresses follow from a
    program's place alone, or NeedsValues is raised. ``source`` is the file whose lines accesses belong to,
    ``deadline`` the ``time.perf_counter()`` at which it must stop, ``another`` runs a program that has not begun, in the midst of one
    that waits, and says whether there was one.
    """

    meter: Meter | None
    values: bool
    source: str
    deadline: float
    another: Callable[[], bool] | None = None
    blind: bool = False

    def flops(self, count: int) -> None:
        """That many floating-point operations were asked for."""
        if self.meter is not None:
            self.meter.flops += count


def _mark(footprint: accesses.Footprint, found: accesses.Runs, verb: str) -> None:
    try:
        footprint.add(found)
    except accesses.OutOfBounds as error:
        error.verb = verb
        raise


def _efficiency(distinct: int, sectors: int) -> float | None:
    return distinct / (accesses.SECTOR * sectors) if sectors else None


_COUNTS = (
    "requested_read", "requested_written", "distinct_read", "distinct_written", "sectors_read", "sectors_written", "flops",
)  # fmt: skip
