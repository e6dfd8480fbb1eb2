"""Runs a caught Triton launch in Triton's interpreter and counts its memory accesses.

Programs of a grid run one after another, or in several processes where they cannot depend on each other. An access outside
the kernel's tensors is an error. Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, interpreter_builder

from tilescope.execution import launch_limits, multiprocess
from tilescope.execution.launches import Launch
from tilescope.execution.not_applicable import NotApplicable
from tilescope.interpreter import accesses, arguments, regular
from tilescope.interpreter.blocks import NeedsValues, NotServed
from tilescope.interpreter.meter import Counting, Meter, OutOfTime
from tilescope.interpreter.not_finite import NotFinite
from tilescope.interpreter.races import Program, Races
from tilescope.interpreter.triton_hooks import hooked

#: A launch is shared out over processes if the rest of it would take longer than this many seconds. Such work counts in part.
WORTH_SHARING, SHARED = 2.0, 0.5
#: Seconds of work from which on the pace of programs tells something about those to come, and from which on it is sure.
TELLING, SURE = 0.5, 5.0
#: Most programs that may wait for others at a time, and frames of Python's stack for each.
MOST_WAITING, FRAMES = 160, 60
#: Fewest programs of a sample.
FEWEST = 4
#: Seconds for a sample, where no rule was found, as a share of those spent on the rule.
AFTER_RULE = 0.6
_GOLDEN = (5**0.5 - 1) / 2


class InterpretationFailed(Exception):
    """The interpreter cannot run the kernel, or the kernel is wrong. The message is one line."""


class TooLong(NotApplicable):
    """Interpreting would take longer than allowed. The message is one line."""

    limited = True


class Unending(TooLong):
    """The first program alone takes longer than allowed. The message is one line and names the place."""


@dataclass
class Allowance:
    """The seconds of work that launches may take together; ``waited`` of them are spent, and each launch adds its own.

    Work follows from the operations of the programs (``Counting.work``) and not from a clock. The same launches fit on any machine
    and beside any load.
    """

    seconds: float = float("inf")
    waited: float = 0.0


def meter(launch: Launch) -> Meter:
    """A meter for the tensors of one launch."""
    allocations = [(s.data_ptr(), s.nbytes()) for s in arguments.storages(launch.arguments) if s.nbytes()]
    read, written = accesses.Footprint(allocations), accesses.Footprint(allocations)
    return Meter(read, written, Races(read, written))


def run(
    launch: Launch,
    *,
    meter: Meter | None = None,
    values: bool = True,
    drawn: bool = True,
    left_out: set[tuple[int, int]] | None = None,
    allowance: Allowance | None = None,
    progress: Callable[[str], None] | None = None,
    sample: float = 0.0,
    not_finite: bool = False,
) -> None:
    """Interprets one launch on CPU tensors, program by program.

    ``values=False`` does not compute floating-point values. Tensors of floats whose values are not ``drawn`` are not read then, nor those
    of integers to which an earlier launch with the same ``left_out`` should have stored values that depend on such. Several
    launches may share an ``allowance``. ``progress`` gets messages about the state. With ``not_finite``, ``meter.seen`` has the origin
    of the first NaN or infinity that is stored.

    Raises TooLong as soon as the first programs show that the allowance will not suffice. With seconds for a ``sample``, some
    programs are counted instead: those from which the counts of all others follow (``meter.by_rule``), or otherwise ones spread
    evenly over the grid (``meter.sampled``). Raises NeedsValues where values are left out that accesses depend on,
    NotServed for an unsupported operation, and InterpretationFailed for any other error of the kernel.
    """
    if why := launch_limits.refusal(launch.grid):
        raise InterpretationFailed(f"{launch.name} cannot be launched: {why}")
    # Without values, programs that handle floats only cannot depend on each other.
    independent = not values and floats_only(launch)
    processes = multiprocess.processors() if independent and meter is not None else 1
    allowance = allowance or Allowance()
    shared = SHARED if independent else 1.0
    python = launch.function.fn
    limit = max(0.0, allowance.seconds - allowance.waited) / shared
    counting = Counting(meter, values, inspect.getsourcefile(python) or "", limit)
    if not values:
        counting.left_out = counting.left_out if left_out is None else left_out
        counting.integers = ranges(launch, floats=False)
    if not drawn:
        counting.undrawn = ranges(launch, floats=True)
    if not_finite and values:
        counting.not_finite = NotFinite(counting.line, lambda: interpreter_builder.grid_idx)
    with hooked(python, counting) as kernel, np.errstate(all="ignore"):
        programs = _Programs(launch, kernel, counting, processes, progress)
        try:
            programs.interpret_all()
        except OutOfTime:
            too_long = programs.too_long(allowance)
            last = counting.work + sample * (1 + AFTER_RULE)
            if meter is None or not sample:
                raise too_long from None
            if values or not programs.follow_rule(meter, sample):
                programs.interpret_sample(meter, sample * AFTER_RULE, last, independent=independent)
            if meter.sampled is meter.by_rule is None:
                raise too_long from None
        finally:
            allowance.waited += counting.work * shared
            if meter is not None and counting.not_finite is not None:
                meter.seen.origin = counting.not_finite.found


def ranges(launch: Launch, *, floats: bool) -> list[tuple[int, int]]:
    """The addresses of the launch's tensors of floats, or of the others."""
    found = (one.untyped_storage() for one in arguments.tensors(launch.arguments) if one.is_floating_point() is floats)
    return [(memory.data_ptr(), memory.data_ptr() + memory.nbytes()) for memory in found]


@dataclass
class _Programs:
    """The programs of a launch, interpreted while the language is hooked. ``kernel`` is the rewritten function.

    ``begun`` and ``done`` are numbers of programs, ``within`` the number of those that wait for others.
    """

    launch: Launch
    kernel: Callable[..., Any]
    counting: Counting
    processes: int
    progress: Callable[[str], None] | None
    #: The place of the program that passed the limit.
    at: str = ""
    reported: float = 0.0
    begun: int = 0
    done: int = 0
    within: int = 0

    def __post_init__(self) -> None:
        constants = self.launch.constants
        self.given = {n: v if n in constants else arguments.as_block(v) for n, v in self.launch.arguments.items()}
        interpreter_builder.set_grid_dim(*self.launch.grid)
        self.count = math.prod(self.launch.grid)
        self.reported = time.perf_counter()

    def left(self) -> float:
        """Seconds of work that the remaining programs take at the pace of those done; 0 where it is too early to tell."""
        work = self.counting.work
        return work / self.done * (self.count - self.done) if self.done and work > TELLING else 0.0

    def report(self, done: int) -> None:
        if self.progress is not None and time.perf_counter() - self.reported > 0.5:
            self.reported = time.perf_counter()
            self.progress(f"interpreting {self.launch.name}: program {done} of {self.count}")

    def too_long(self, allowance: Allowance) -> TooLong:
        if self.at and not (self.done or allowance.waited):
            return Unending(f"{self.at}: the first program had not ended after {allowance.seconds:g} s of work")
        # The message has no estimate, so that equal messages of several cases become one line.
        return TooLong(
            f"would take longer to interpret than a case may, {allowance.seconds:g} s of work: choose a smaller workload or allow more "
            "(--interpreter-limit)"
        )

    def interpret(self, number: int) -> None:
        """Interprets one program."""
        rest, z = divmod(number, self.launch.grid[2])
        place = (*divmod(rest, self.launch.grid[1]), z)
        within, waiting = getattr(interpreter_builder, "grid_idx", place), self.counting.program
        interpreter_builder.set_grid_idx(*place)
        self.counting.program = Program(number)
        try:
            self.kernel(**self.given)
        except OutOfTime as error:
            self.at = self._where(place, error)
            raise
        except (NeedsValues, TooLong, InterpretationFailed):
            raise
        except NotServed as error:
            raise error.at(self._where(place, error)) from None
        except Exception as error:
            raise self._failure(self._where(place, error), error) from error
        finally:
            # It may have run while another one waits.
            interpreter_builder.grid_idx, self.counting.program = within, waiting

    def _where(self, place: tuple[int, ...], error: Exception) -> str:
        frames, source = traceback.walk_tb(error.__traceback__), self.counting.source
        *_, line = 0, *(line for frame, line in frames if frame.f_code.co_filename == source)
        return f"{self.launch.name}, program {place}, line {line}"

    def _failure(self, where: str, error: Exception) -> Exception:
        if isinstance(error, AttributeError) and isinstance(error.obj, (InterpreterBuilder, InterpreterOptions)):
            missing = (error.name or "").removeprefix("create_")
            return NotServed(f"Triton's interpreter has no {missing}").at(where)
        if isinstance(error, accesses.OutOfBounds):
            return InterpretationFailed(f"{where}: {_out_of_bounds(self.launch, error)}")
        message = str(error).strip().splitlines()
        if type(self.launch.function).__name__ == "GluonJITFunction":
            return NotServed(f"of Gluon only layouts, loads, stores and arithmetic are interpreted: {error}").at(where)
        return InterpretationFailed(f"{where}: {type(error).__name__}: {message[-1] if message else ''}")

    def another(self) -> bool:
        """Interprets the next program that has not begun, if there is one. Returns whether there was.

        A program that waits for later ones, at a lock or a barrier of the grid, calls this, and continues when they have ended.
        """
        if self.begun == self.count or self.within == MOST_WAITING:
            return False
        number, self.begun = self.begun, self.begun + 1
        if self.within:
            sys.setrecursionlimit(max(sys.getrecursionlimit(), MOST_WAITING * FRAMES))
        self.within += 1
        try:
            self.interpret(number)
        finally:
            self.within -= 1
        self.done += 1
        self.report(self.done)
        # The first programs say little about the others.
        doubt = 1.5 if self.counting.work < SURE else 1.0
        if self.counting.work + self.left() > self.counting.limit * doubt:
            raise OutOfTime
        return True

    def interpret_all(self) -> None:
        """Interprets all programs, and shares the rest of them out over processes where that is worth it and allowed."""
        self.counting.another = self.another
        try:
            while self.begun < self.count:
                if self.processes > 1 and self.left() > WORTH_SHARING:
                    break
                self.another()
        finally:
            self.counting.another = None
        if self.begun < self.count and self.counting.meter is not None:
            self._share_out(range(self.begun, self.count), self.counting.meter)

    def _share_out(self, numbers: range, meter: Meter) -> None:
        # Each process counts from 0, and none may do more than all of them may.
        counting, before = self.counting, self.counting.work
        counting.meter = mine = meter.fresh()
        for counted, work in multiprocess.share_out(
            numbers,
            self.interpret,
            lambda: (mine, counting.work - before),
            lambda done: self.report(numbers.start + done),
            processes=min(self.processes, len(numbers)),
        ):
            meter.merge(counted)
            counting.work += work
        if counting.work > counting.limit:
            raise OutOfTime

    def follow_rule(self, meter: Meter, seconds: float) -> bool:
        """Derives the counts of all programs from some of them, within ``seconds``. Returns whether that was possible."""
        grid, began = self.launch.grid, self.counting.work
        self.counting.limit, self.counting.blind = began + seconds, True

        def one(place: regular.Place) -> Meter:
            self.counting.meter = traced = meter.traced()
            x, y, z = place
            self.interpret((x * grid[1] + y) * grid[2] + z)
            return traced

        try:
            all_of_them, counted = regular.count(grid, one, lambda: self.counting.work > began + seconds / 2)
        except (OutOfTime, regular.Irregular, NeedsValues, NotServed, InterpretationFailed):
            # An error of the kernel is found again when values are read.
            return False
        finally:
            self.counting.blind = False
        meter.counts, meter.lines = all_of_them.counts, all_of_them.lines
        meter.read, meter.written = all_of_them.read, all_of_them.written
        meter.by_rule = counted, self.count
        return True

    def interpret_sample(self, meter: Meter, seconds: float, last: float, *, independent: bool) -> None:
        """Counts some programs, spread evenly over the grid: as many as ``seconds`` allow, and at least ``FEWEST`` until ``last``.

        Then runs the last program uncounted, where a missing mask shows. The meter is not changed where there were too few. A program that is not ``independent`` may need the results of others:
        then an error in it ends the sample and is not reported.
        """
        mine, done = meter.fresh(), 0
        soon = self.counting.work + seconds
        self.counting.limit = max(soon, last)
        for number in spread(self.count):
            # The counts of an unfinished program are dropped.
            self.counting.meter = one = meter.fresh()
            try:
                self.interpret(number)
            except OutOfTime:
                break
            except InterpretationFailed:
                if independent:
                    raise
                return
            mine.merge(one)
            done += 1
            if self.counting.work > soon and done >= FEWEST:
                break
        if done >= FEWEST:
            meter.counts, meter.lines = mine.counts, mine.lines
            meter.sampled = done, self.count
            self.counting.meter = meter.fresh()
            with contextlib.suppress(OutOfTime, *(() if independent else (InterpretationFailed,))):
                self.interpret(self.count - 1)


def spread(count: int) -> Iterator[int]:
    """Yields the numbers below ``count``, each once, in steps of the golden section: any first few are spread evenly."""
    seen: set[int] = set()
    for step in itertools.count():
        number = int(step * _GOLDEN % 1.0 * count)
        if number not in seen:
            seen.add(number)
            yield number
        if len(seen) == count:
            return


def floats_only(launch: Launch) -> bool:
    """Whether a launch has only tensors of floating-point numbers, which cannot be addresses."""
    return all(tensor.is_floating_point() for tensor in arguments.tensors(launch.arguments))


def _out_of_bounds(launch: Launch, error: accesses.OutOfBounds) -> str:
    """Describes the access by the nearest tensors: their parameters, the element that it would be, and whether they are expanded."""
    memory = arguments.named(launch.arguments, error.near) if error.near is not None else ""
    said = f"{error.verb} {error.beside(memory or 'a tensor')}"
    near = {
        name: value
        for name, value in launch.arguments.items()
        if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == error.near
    }
    if len(near) == 1:
        (tensor,) = near.values()
        size, first, storage = tensor.element_size(), tensor.data_ptr(), tensor.untyped_storage()
        left = storage.data_ptr() + storage.nbytes() - first
        said += f": element {(error.at - first) // size:,} of {left // size:,}"
    expanded = [
        name
        for name, tensor in near.items()
        if any(extent > 1 and not stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    ]
    if expanded:
        are = "are" if len(expanded) > 1 else "is"
        said += f" ({' and '.join(expanded)} {are} expanded, as the gradient of a sum is: .contiguous() copies)"
    return said
