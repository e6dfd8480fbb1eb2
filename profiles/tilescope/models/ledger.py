"""The ledger of a step: where its time goes, in parts that add up. Pure: step and device -> ledger.

Every moment of the step belongs to one part. While launches run, those that run beside each other share the time; a copy or a
collective has only the time in which no kernel runs. A launch's time is its floor at the roofs, and what is above it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilescope.collectors.foreign_files.operator_costs import PIPES
from tilescope.hardware import roofs
from tilescope.hardware.roofs import WORK
from tilescope.table.run import Device
from tilescope.table.step import COLLECTIVE, COPY, FILL, KERNEL, Step, StepLaunch

#: The parts, in their order, with what each is.
PARTS = {
    "floor": "at the roofs", "above": "above the roofs", "unknown": "kernels without a known floor", "copies": "copies to and from the CPU",
    "communication": "communication", "gaps": "launch gaps", "cpu": "waiting for the CPU", "idle": "idle: the CPU was outside PyTorch",
}  # fmt: skip
#: The largest relative difference between the parts and the step.
TOLERANCE = 0.03
_RANKS = {KERNEL: 0, FILL: 0, COPY: 1, COLLECTIVE: 2}
#: Names of copies that stay on the GPU.
_ON_GPU = ("dtod", "device -> device")


class Floor(NamedTuple):
    """The least time of a launch at the roofs, in seconds, the roof that sets it, and whether its bytes or operations were counted."""

    seconds: float
    roof: str
    counted: bool


@dataclass(frozen=True)
class Entry:
    """A launch in the ledger: its share of the step's time in seconds, and its floor, None where it is not known."""

    launch: StepLaunch
    place: int
    share: float
    floor: Floor | None

    @property
    def least(self) -> float:
        return min(self.share, self.floor.seconds) if self.floor else 0.0

    @property
    def above(self) -> float:
        """The part of the share above its floor; 0 where no floor is known."""
        return self.share - self.least if self.floor else 0.0


@dataclass(frozen=True)
class Gap:
    """A time without a launch: when it began and ended, the place of the launch after it (None: the next step's), and its causes in seconds."""

    start: float
    end: float
    before: int | None
    cpu: float
    idle: float

    @property
    def launch(self) -> float:
        return self.end - self.start - self.cpu - self.idle


@dataclass(frozen=True)
class Ledger:
    """The parts of a step in seconds, by ``PARTS``, each launch's share, and the gaps.

    ``step`` is the time that the parts are of: the step's own without a profiler, where that is known. ``slowed`` is the time
    that the profiler added to the CPU, which no part has.
    """

    parts: dict[str, float]
    entries: tuple[Entry, ...]
    gaps: tuple[Gap, ...]
    step: float
    slowed: float

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def error(self) -> float:
        """The sum of the parts over the step, less 1."""
        return self.total / self.step - 1 if self.step else 0.0

    @property
    def floored(self) -> bool:
        """Whether most of the kernels' time has a floor, so that its share at the roofs means something."""
        return self.parts["floor"] + self.parts["above"] > self.parts["unknown"]

    @property
    def busy(self) -> float:
        """The time in which the GPU ran something."""
        return sum(entry.share for entry in self.entries)


def of(step: Step, device: Device) -> Ledger:
    """The ledger of a step on a device. Launches on a device without roofs have no floor."""
    shares, waits = _shares(step)
    entries = tuple(
        Entry(launch, place, share, floor(step, launch, device))
        for place, (launch, share) in enumerate(zip(step.launches, shares, strict=True))
    )
    gaps = tuple(_gap(step, start, end, before) for start, end, before in waits)
    parts = dict.fromkeys(PARTS, 0.0)
    for entry in entries:
        if entry.launch.kind == COLLECTIVE:
            parts["communication"] += entry.share
        elif entry.floor:
            parts["floor"] += entry.least
            parts["above"] += entry.above
        else:
            parts["copies" if entry.launch.kind == COPY else "unknown"] += entry.share
    parts["gaps"] = sum(gap.launch for gap in gaps)
    parts["cpu"] = sum(gap.cpu for gap in gaps)
    parts["idle"] = sum(gap.idle for gap in gaps)
    slowed = 0.0
    waited = parts["cpu"] + parts["gaps"] + parts["idle"]
    if step.plain is not None and waited:
        # A profiler slows the CPU and not the GPU: what the trace is longer by was waited for.
        slowed = min(waited, max(step.window - step.plain, 0.0))
        for part in ("cpu", "gaps", "idle"):
            parts[part] *= 1 - slowed / waited
    return Ledger(parts, entries, gaps, step.window if step.plain is None else step.plain, slowed)


def floor(step: Step, launch: StepLaunch, device: Device) -> Floor | None:
    """A launch's floor: its bytes at the roof of HBM, its operations at that of their pipe, and what its operator needs at that of L2.

    Bytes and operations are counted ones where there are any, else those of the operator's shapes.
    """
    if launch.kind == COLLECTIVE:
        return None
    hbm, l2 = roofs.roof(device, "hbm"), roofs.roof(device, "l2")
    if hbm is None:
        return None
    if launch.kind in (COPY, FILL):
        passes = 1 if launch.kind == FILL else 2
        inside = launch.kind == FILL or any(name in launch.name.lower() for name in _ON_GPU)
        return Floor(passes * launch.moved / hbm.value, "HBM", False) if inside and launch.moved is not None else None
    operator = step.operator(launch)
    needed = None if operator.bytes_needed is None else operator.bytes_needed * launch.part
    found: list[Floor] = []
    moved = [launch.counted[name] for name in ("dram_bytes_read", "dram_bytes_written") if name in launch.counted]
    if moved:
        found.append(Floor(sum(moved) / hbm.value, "HBM", True))
        if needed is not None and l2:
            found.append(Floor(needed / l2.value, "L2", False))
    elif needed is not None:
        found.append(Floor(needed / hbm.value, "HBM", False))
    worked, counted = work(step, launch)
    for name, operations in worked:
        if rate := roofs.roof(device, name):
            found.append(Floor(operations / rate.value, name, counted))
    return max(found, default=None)


def work(step: Step, launch: StepLaunch) -> tuple[list[tuple[str, float]], bool]:
    """A launch's operations by their pipes, and whether they were counted. Empty where they are not known."""
    counted = [(WORK[name], value) for name, value in launch.counted.items() if name in WORK and value]
    operator = step.operator(launch)
    if counted or not operator.flops:
        return counted, bool(counted)
    return [(pipe(operator.dtypes, launch.name), operator.flops * launch.part)], False


def pipe(dtypes: Sequence[str], name: str) -> str:
    """The pipe of a product on inputs of these dtypes by the kernel of that name: fp32 inputs may be multiplied as tf32."""
    first = next((PIPES[dtype.lower()] for dtype in dtypes if dtype.lower() in PIPES), "fp32")
    tf32 = first == "fp32" and any(part in name.lower() for part in ("tf32", "s1688", "s16816"))
    return "tf32" if tf32 else first


def _shares(step: Step) -> tuple[list[float], list[tuple[float, float, int | None]]]:
    """Each launch's share of the window, and the times without a launch with the place of the next one."""
    shares = [0.0] * len(step.launches)
    edges = sorted(
        (moment, opens, place)
        for place, launch in enumerate(step.launches)
        for moment, opens in ((launch.start, 1), (min(launch.end, step.window), 0))
        if launch.start < min(launch.end, step.window)
    )
    running: dict[int, None] = {}
    waits: list[tuple[float, float, int | None]] = []
    before = 0.0
    for moment, opens, place in edges:
        if moment > before:
            if running:
                rank = min(_RANKS[step.launches[one].kind] for one in running)
                sharing = [one for one in running if _RANKS[step.launches[one].kind] == rank]
                for one in sharing:
                    shares[one] += (moment - before) / len(sharing)
            else:
                waits.append((before, moment, place))
            before = moment
        if opens:
            running[place] = None
        else:
            running.pop(place, None)
    if step.window > before:
        waits.append((before, step.window, None))
    return shares, waits


def _gap(step: Step, start: float, end: float, before: int | None) -> Gap:
    call = step.next_call if before is None else step.launches[before].call
    # The trace of a whole program ends with its last launch; a launch whose call is unknown was in time.
    late = min(max((call if call is not None else start) - start, 0.0), end - start)
    idle = sum(max(min(start + late, until) - max(start, begun), 0.0) for begun, until in step.away)
    return Gap(start, end, before, late - idle, idle)
