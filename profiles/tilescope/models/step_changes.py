"""Two steps of a model, compared: their times, and the kernels that made the difference. Pure: runs -> values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilescope.models import compare, ledger, step_tables
from tilescope.models.compare import Side
from tilescope.models.ledger import PARTS, Ledger
from tilescope.runs import steps
from tilescope.table import units
from tilescope.table.step import WHOLE_TRACE, Step

#: The parts of a step in which its launches run.
_RUNNING = ("floor", "above", "unknown", "copies", "communication")
#: The least change of a part of the step, and of a kernel, that is told, as shares of the step.
_TOLD, _MOVED = 0.005, 0.0005
#: Ways to pair kernels, one after the other (``_place``); with the last one a kernel is alone.
_LEVELS = 5
_Key = tuple[str, str, str, str]


class Changed(NamedTuple):
    """Kernels of one place in the two steps. Names, launches and seconds are (baseline's, candidate's); a side without any is empty.

    ``module`` has a star for each layer's number.
    """

    names: tuple[str, str]
    operator: str
    module: str
    direction: str
    launches: tuple[int, int]
    seconds: tuple[float, float]

    @property
    def name(self) -> str:
        before, after = self.names
        return before if before == after else f"{before or '(none)'} → {after or '(none)'}"

    @property
    def difference(self) -> float:
        return self.seconds[1] - self.seconds[0]

    @property
    def change(self) -> str:
        sign = "+" if self.difference > 0 else "-" if self.difference < 0 else ""
        return f"{sign}{units.text(abs(self.difference), 'second')}"


@dataclass(frozen=True)
class StepPair:
    """The steps of a baseline and of a candidate. ``seconds`` are their times, ``busy`` those in which the GPU ran something.

    With ``obstacles`` (``compare.obstacles``) the times say nothing of each other.
    """

    steps: tuple[Step, Step]
    ledgers: tuple[Ledger, Ledger]
    obstacles: Sequence[str] = ()

    @property
    def seconds(self) -> tuple[float, float]:
        before, after = self.steps
        if before.plain is None or after.plain is None:
            return before.window, after.window
        return before.plain, after.plain

    @property
    def speedup(self) -> float:
        before, after = self.seconds
        return before / after if after > 0 and not self.obstacles else math.nan

    @property
    def busy(self) -> tuple[float, float]:
        before, after = self.ledgers
        return before.busy, after.busy

    @property
    def sentence(self) -> str:
        """Which step is faster, and the parts of a step that changed."""
        before, after = self.seconds
        if self.obstacles:
            return f"the steps' times cannot be compared: {self.obstacles[0]}"
        said = f"the step takes {units.text(after, 'second')}, as long as before"
        if before != after and self.speedup > 0:
            times, which = units.times(max(self.speedup, 1 / self.speedup)), "slower" if after > before else "faster"
            said = f"the step is {times} {which}: {_both(before, after)}"
        return "; ".join([said, *self._parts()])

    def _parts(self) -> Iterator[str]:
        running = [sum(one.parts[name] for name in _RUNNING) for one in self.ledgers]
        waits = {PARTS[name]: [one.parts[name] for one in self.ledgers] for name in PARTS if name not in _RUNNING}
        for name, (before, after) in {"its kernels": running, **waits}.items():
            if abs(after - before) > _TOLD * self.seconds[0]:
                yield f"{name} {_both(before, after)}"

    @property
    def moved(self) -> list[Changed]:
        """The kernels whose difference is worth a word; none with obstacles."""
        return [one for one in self.kernels if not self.obstacles and abs(one.difference) > _MOVED * self.seconds[0]]

    @property
    def kernels(self) -> list[Changed]:
        """Every kernel of both steps, the largest difference first.

        The same function at the same place is a pair. What is left of an operator in a module was renamed, of a function and its operator
        is in a renamed module, and of a module was renamed with its operator.
        """
        sides = [_sums(step, of) for step, of in zip(self.steps, self.ledgers, strict=True)]
        found = []
        for level in range(_LEVELS):
            groups: dict[tuple[object, ...], tuple[list[_Key], list[_Key]]] = {}
            for number, side in enumerate(sides):
                for key in side:
                    if (place := _place(key, level)) is not None:
                        groups.setdefault(place, ([], []))[number].append(key)
            for keys in groups.values():
                if all(keys) or level == _LEVELS - 1:
                    found.append(_changed(sides, keys))
        return sorted(found, key=lambda one: -abs(one.difference))


def of(baseline: Side, candidate: Side) -> StepPair | None:
    """The pair of two models' steps; None where a side is another run, one kernel or one implementation.

    A trace without marks of steps is of any number of calls.
    """
    of_steps = [side.loaded for side in (baseline, candidate) if side.loaded.of_step and not (side.kernel or side.impl)]
    before, after = (steps.read(one.folder) for one in of_steps) if len(of_steps) == 2 else (None, None)
    if before is None or after is None or WHOLE_TRACE in (before.found, after.found):
        return None
    if before.next_call is None or after.next_call is None:
        # A step that was recorded alone ends with its last launch: nothing tells how long it would have waited for another.
        before, after = (
            dataclasses.replace(step, window=max((one.end for one in step.launches), default=step.window))
            for step in (before, after)
        )
    ledgers = ledger.of(before, of_steps[0].run.device), ledger.of(after, of_steps[1].run.device)
    return StepPair((before, after), ledgers, compare.obstacles(baseline, candidate))


def _sums(step: Step, of_step: Ledger) -> dict[_Key, tuple[int, float]]:
    """Launches and seconds of each function, operator, module and pass."""
    found: dict[_Key, tuple[int, float]] = {}
    for row in step_tables.kernels(step, of_step).to_dict("records"):
        key = (row["function"], row["operator"], row["module"], row["pass"])
        launches, seconds = found.get(key, (0, 0.0))
        found[key] = launches + row["launches"], seconds + row["time"]
    return found


def _place(key: _Key, level: int) -> tuple[object, ...] | None:
    """What two kernels share that are one at this level, the strictest first; None where that is too little."""
    function, operator, module, direction = key
    somewhere = module != step_tables.OUTSIDE
    if level == 1:
        return (operator, module, direction) if operator or somewhere else None
    if level == 2:
        return (function, operator, direction)
    if level == 3:
        return (module, direction) if somewhere else None
    return key


def _changed(sides: list[dict[_Key, tuple[int, float]]], keys: tuple[list[_Key], list[_Key]]) -> Changed:
    """The change of these kernels, which are taken out of the sides."""
    (_, operator, module, direction), *_ = keys[1] or keys[0]
    names = [", ".join(dict.fromkeys(key[0] for key in of)) for of in keys]
    values = [[side.pop(key) for key in of] for side, of in zip(sides, keys, strict=True)]
    launches, seconds = ([sum(one[at] for one in of) for of in values] for at in (0, 1))
    return Changed(
        (names[0], names[1]),
        operator,
        module,
        direction,
        (int(launches[0]), int(launches[1])),
        (seconds[0], seconds[1]),
    )


def _both(before: float, after: float) -> str:
    return f"{units.text(before, 'second')} → {units.text(after, 'second')}"
