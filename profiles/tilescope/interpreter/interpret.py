"""Runs a caught Triton launch in Triton's interpreter and counts its memory accesses.

Programs of a grid run one after another, or in several processes where they cannot depend on each other. An access outside
the kernel's tensors is an error. Imports torch and triton.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, interpreter_builder

from tilescope.execution import multiprocess
from tilescope.execution.launches import Launch
from tilescope.execution.not_applicable import NotApplicable
from tilescope.interpreter import accesses, arguments, regular
from tilescope.interpreter.blocks import NeedsValues, NotServed
from tilescope.interpreter.meter import Counting, Meter, OutOfTime
from tilescope.interpreter.not_finite import NotFinite
from tilescope.interpreter.races import Program, Races
from tilescope.interpreter.triton_hooks import hooked

#: A launch is shared out over processes if the rest of it would take longer than this many seconds.
WORTH_SHARING = 2.0
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


class Unending(TooLong):
    """The first program alone takes longer than allowed. The message is one line and names the place."""


@dataclass
class Allowance:
    """The seconds that launches may take together; ``waited`` of them are spent, and each launch adds its own.

    They are seconds of CPU time, so that other work on the machine ends no launch. A launch that is shared among processes is timed by
    the clock.
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
    allowance: Allowance | None = None,
    progress: Callable[[str], None] | None = None,
    sample: float = 0.0,
    not_finite: bool = False,
) -> None:
    """Interprets one launch on CPU tensors, program by program.

    ``values=False`` does not compute floating-point values. Several launches may share an ``allowance``. ``progress`` gets
    messages about the state. With ``not_finite``, the meter's faults have the origin of the first NaN or infinity that is stored.

    Raises TooLong as soon as the first programs show that the allowance will not suffice. With seconds for a ``sample``, some
    programs are counted instead: those from which the counts of all others follow (``meter.by_rule``), or otherwise ones spread
    evenly over the grid (``meter.sampled``). Raises NeedsValues where ``values`` is False and accesses depend on them,
    NotServed for an unsupported operation, and InterpretationFailed for any other error of the kernel.
    """
    # Without values, programs that handle floats only cannot depend on each other.
    independent = not values and floats_only(launch)
    processes = multiprocess.processors() if independent and meter is not None else 1
    clock = Clock(launch, allowance or Allowance(), progress, processes)
    python = launch.function.fn
    counting = Counting(meter, values, inspect.getsourcefile(python) or "", clock.deadline)
    if not_finite and values:
        counting.not_finite = NotFinite(counting.line, lambda: interpreter_builder.grid_idx)
    with hooked(python, counting) as kernel, np.errstate(all="ignore"):
        programs = _Programs(launch, kernel, counting, clock)
        try:
            programs.interpret_all()
        except (OutOfTime, TooLong):
            too_long = clock.too_long()
            last = time.thread_time() + sample * (1 + AFTER_RULE)
            if meter is None or not sample:
                raise too_long from None
            if values or not programs.follow_rule(meter, sample):
                programs.interpret_sample(meter, sample * AFTER_RULE, last, independent=independent)
            if meter.sampled is meter.by_rule is None:
                raise too_long from None
        finally:
            clock.end()
            if meter is not None and counting.not_finite is not None:
                meter.faults.origin = counting.not_finite.found


@dataclass
class _Programs:
    """The programs of a launch, interpreted while the language is hooked. ``kernel`` is the rewritten function.

    ``begun`` and ``done`` are numbers of programs, ``within`` the number of those that wait for others.
    """

    launch: Launch
    kernel: Callable[..., Any]
    counting: Counting
    clock: Clock
    begun: int = 0
    done: int = 0
    within: int = 0

    def __post_init__(self) -> None:
        constants = self.launch.constants
        self.given = {n: v if n in constants else arguments.as_block(v) for n, v in self.launch.arguments.items()}
        interpreter_builder.set_grid_dim(*self.launch.grid)

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
            self.clock.at = self._where(place, error)
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
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.counting.source:
                line = trace.tb_lineno
            trace = trace.tb_next
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
        if self.begun == self.clock.programs or self.within == MOST_WAITING:
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
        self.clock.tick(self.done)
        return True

    def interpret_all(self) -> None:
        """Interprets all programs, and shares the rest of them out over processes where that is worth it and allowed."""
        clock, self.counting.another = self.clock, self.another
        try:
            while self.begun < clock.programs:
                if clock.processes > 1 and (clock.left(self.begun) or 0.0) > WORTH_SHARING:
                    break
                self.another()
        finally:
            self.counting.another = None
        if self.begun < clock.programs and self.counting.meter is not None:
            self._share_out(range(self.begun, clock.programs), self.counting.meter)

    def _share_out(self, numbers: range, meter: Meter) -> None:
        # Each process counts from 0.
        self.counting.meter = mine = meter.fresh()
        processes = min(self.clock.processes, len(numbers))
        # The CPU time of a forked process begins at 0.
        self.counting.deadline = self.clock.share(numbers.start)
        for counted in multiprocess.share_out(
            numbers,
            self.interpret,
            lambda: mine,
            lambda done: self.clock.tick(numbers.start + done),
            processes=processes,
        ):
            meter.merge(counted)

    def follow_rule(self, meter: Meter, seconds: float) -> bool:
        """Derives the counts of all programs from some of them, within ``seconds``. Returns whether that was possible."""
        grid, began = self.launch.grid, time.thread_time()
        self.counting.deadline, self.counting.blind = began + seconds, True

        def one(place: regular.Place) -> Meter:
            self.counting.meter = traced = meter.traced()
            x, y, z = place
            self.interpret((x * grid[1] + y) * grid[2] + z)
            return traced

        try:
            all_of_them, counted = regular.count(grid, one, began + seconds / 2)
        except (OutOfTime, regular.Irregular, NeedsValues, NotServed, InterpretationFailed):
            # An error of the kernel is found again when values are read.
            return False
        finally:
            self.counting.blind = False
        meter.counts, meter.lines = all_of_them.counts, all_of_them.lines
        meter.read, meter.written = all_of_them.read, all_of_them.written
        meter.by_rule = counted, self.clock.programs
        return True

    def interpret_sample(self, meter: Meter, seconds: float, last: float, *, independent: bool) -> None:
        """Counts some programs, spread evenly over the grid: as many as ``seconds`` allow, and at least ``FEWEST`` until ``last``.

        The meter is not changed where there were too few. A program that is not ``independent`` may need the results of others:
        then an error in it ends the sample and is not reported.
        """
        mine, done = meter.fresh(), 0
        soon = time.thread_time() + seconds
        self.counting.deadline = max(soon, last)
        for number in spread(self.clock.programs):
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
            if time.thread_time() > soon and done >= FEWEST:
                break
        if done >= FEWEST:
            meter.counts, meter.lines = mine.counts, mine.lines
            meter.sampled = done, self.clock.programs


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


class Clock:
    """Estimates the duration of a launch from the pace of its programs, and stops it when it would take too long."""

    def __init__(
        self, launch: Launch, allowance: Allowance, progress: Callable[[str], None] | None, processes: int
    ) -> None:
        self.name = launch.name
        self.programs = launch.grid[0] * launch.grid[1] * launch.grid[2]
        self.progress = progress
        self.allowed, self.waited = allowance.seconds, allowance.waited
        self._allowance, self._now = allowance, time.thread_time
        #: The place of the program that ran out of time.
        self.at = ""
        #: Processes that the rest could be shared out over.
        self.processes = processes
        self._begin(0, max(0.0, allowance.seconds - allowance.waited))

    def _begin(self, done: int, left: float) -> None:
        self.began = self.last = self.reported = self._now()
        self.deadline = self.began + left
        self.counted = self.done = done
        #: The longest time between two ticks, and the programs done in it.
        self.longest = (0.0, 0)

    def left(self, done: int) -> float | None:
        """Seconds that the remaining programs take at this pace in one process; None where it is too early to tell.

        The longest step is left out: the first program includes the warm-up, and a busy machine may pause in any.
        """
        elapsed = self._now() - self.began
        counted = done - self.counted - self.longest[1]
        return (elapsed - self.longest[0]) / counted * (self.programs - done) if elapsed > 0.5 and counted > 0 else None

    def end(self) -> None:
        """Adds the launch's seconds to those spent."""
        self._allowance.waited += self._now() - self.began

    def share(self, done: int) -> float:
        """Measures the pace of all processes together from here on, by the clock, as this one only waits. Returns the seconds left."""
        self.end()
        left = self.deadline - self._now()
        self._now, self.processes = time.perf_counter, 1
        self._begin(done, left)
        return left

    def tick(self, done: int) -> None:
        now = self._now()
        self.longest = max(self.longest, (now - self.last, done - self.done))
        self.last, self.done = now, done
        left = self.left(done)
        if left is None or now - self.reported < 0.5:
            return
        self.reported = now
        # The first programs say little about the pace.
        doubt = 0.5 * self.allowed if now - self.began < 5.0 else 0.0
        if now + left / self.processes > self.deadline + doubt:
            raise self.too_long()
        if self.progress is not None:
            self.progress(f"interpreting {self.name}: program {done} of {self.programs}")

    def too_long(self) -> TooLong:
        if self.at and not (self.done or self.waited):
            return Unending(f"{self.at}: the first program had not ended after {self.allowed:g} s of CPU time")
        # The message has no estimate, so that equal messages of several cases become one line.
        return TooLong(
            f"would take longer to interpret than a case may, {self.allowed:g} s of CPU time: choose a smaller workload"
        )
