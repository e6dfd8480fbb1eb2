"""Kernels that are slower while a collective runs beside them: the same kernel on the same sizes, alone and beside. Pure: step -> rows."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tilescope.models import function_names
from tilescope.table import units
from tilescope.table.run import Device
from tilescope.table.step import COLLECTIVE, KERNEL, Step, StepLaunch

#: The share of a launch's time from which a collective runs beside it, the factor that is worth a line, and the launches that it needs.
_BESIDE, _SLOWER, _LAUNCHES = 0.5, 1.1, 2


class Beside(NamedTuple):
    """A kernel's median time alone and beside a collective, in seconds, the launches of each kind, and the collective's blocks."""

    function: str
    alone: float
    beside: float
    launches: tuple[int, int]
    collective: str
    blocks: int

    @property
    def lost(self) -> float:
        """Seconds of the step that the collective costs these launches."""
        return (self.beside - self.alone) * self.launches[1]

    def line(self, device: Device) -> str:
        """The kernel in one line, with the multiprocessors that the collective occupies."""
        of = f"{min(self.blocks, device.multiprocessors)} of {device.multiprocessors} multiprocessors"
        occupies = f", which occupies {of}" if self.blocks and device.multiprocessors else ""
        return (
            f"{self.function} is {units.times(self.beside / self.alone)} slower beside {self.collective}{occupies}: "
            f"{units.text(self.beside, 'second')} ({units.several(self.launches[1], 'launch', 'launches')}), "
            f"alone {units.text(self.alone, 'second')} ({self.launches[0]})"
        )


def slower(step: Step) -> list[Beside]:
    """The kernels that a collective slows, the one that loses the most time first."""
    collectives = sorted((one for one in step.launches if one.kind == COLLECTIVE), key=lambda one: one.start)
    starts = [one.start for one in collectives]
    groups: dict[object, tuple[list[StepLaunch], list[tuple[StepLaunch, StepLaunch]]]] = {}
    for launch in step.launches if collectives else ():
        if launch.kind != KERNEL or not launch.duration:
            continue
        over, with_ = _overlap(launch, collectives, starts)
        key = launch.name, launch.grid, launch.block, step.operator(launch).shapes
        alone, beside = groups.setdefault(key, ([], []))
        if not over:
            alone.append(launch)
        elif with_ is not None and over >= _BESIDE * launch.duration:
            beside.append((launch, with_))
    found = []
    for alone, beside in groups.values():
        if min(len(alone), len(beside)) < _LAUNCHES:
            continue
        times = statistics.median(one.duration for one in alone), statistics.median(one.duration for one, _ in beside)
        if times[1] >= _SLOWER * times[0]:
            other = beside[0][1]
            blocks = other.grid[0] if other.grid else 0
            names = function_names.said(alone[0].name), function_names.said(other.name)
            found.append(Beside(names[0], *times, (len(alone), len(beside)), names[1], blocks))
    return sorted(found, key=lambda one: -one.lost)


def _overlap(
    launch: StepLaunch, collectives: Sequence[StepLaunch], starts: Sequence[float]
) -> tuple[float, StepLaunch | None]:
    total, last = 0.0, None
    for place in range(bisect_right(starts, launch.end) - 1, -1, -1):
        one = collectives[place]
        if one.end <= launch.start:
            break
        total += min(one.end, launch.end) - max(one.start, launch.start)
        last = last or one
    return total, last
