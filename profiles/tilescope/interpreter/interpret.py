"""Runs a caught Triton launch in Triton's interpreter and counts its memory accesses.

Programs of a grid run one after another, or in several processes where they cannot depend on each other. An access outside
the kernel's tensors is an error. Imports torch and triton.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions, interpreter_builder

from tilescope.execution import multiprocess
from tilescope.execution.launches import Launch
from tilescope.execution.not_applicable import NotApplicable
from tilescope.interpreter import accesses, arguments, regular, watch
from tilescope.interpreter.blocks import NeedsValues, NotServed
from tilescope.interpreter.memory import OutOfTime
from tilescope.interpreter.meter import Counting, Meter
from tilescope.interpreter.triton_hooks import hooked
from tilescope.interpreter.turns import Turns

#: A launch is shared out over processes if the rest of it would take longer than this many seconds.
WORTH_SHARING = 2.0
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
    return Meter(accesses.Footprint(allocations), accesses.Footprint(allocations))


def run(
    launch: Launch,
    *,
    meter: Meter | None = None,
    values: bool = True,
    allowance: Allowance | None = None,
    progress: Callable[[str], None] | None = None,
    sample: float = 0.0,
) -> None:
    """Interprets one launch on CPU tensors, program by program.

    ``values=False`` does not compute floating-point values. Several launches may share an ``allowance``. ``progress`` gets
    messages about the state.

    Raises TooLong as soon as the first programs show that the allowance will not suffice. With seconds for a ``sample``, some
    programs are counted instead: those from which the counts of all others follow (``meter.by_rule``), or otherwise ones spread
    evenly over the grid (``meter.sampled``). Raises NeedsValues where ``values`` is False and accesses depend on them,
    NotServed for an unsupported operation, and InterpretationFailed for any other error of the kernel.
    """
    python = launch.function.fn
    source = inspect.getsourcefile(python) or ""
    if type(launch.function).__name__ == "GluonJITFunction":
        raise NotServed(f"{launch.name} is written in Gluon, and what is interpreted is Triton's language")
    # Without values, programs that handle floats only cannot depend on each other.
    sharable = meter is not None and not values and floats_only(launch)
    clock = _Clock(launch, allowance or Allowance(), progress, multiprocess.processors() if sharable else 1)
    counting = Counting(meter, values, source, clock.deadline)
    constants = launch.constants
    given = {n: value if n in constants else arguments.as_block(value) for n, value in launch.arguments.items()}
    with hooked(python, counting) as kernel, np.errstate(all="ignore"), watch.watching(counting) as watched:
        interpreter_builder.set_grid_dim(*launch.grid)

        def interpret(number: int) -> None:
            rest, z = divmod(number, launch.grid[2])
            place = (*divmod(rest, launch.grid[1]), z)
            within = getattr(interpreter_builder, "grid_idx", place)
            interpreter_builder.set_grid_idx(*place)
            outer, watched.running = watched.running, True
            try:
                kernel(**given)
            except OutOfTime as error:
                clock.at = _where(launch.name, place, source, error)
                raise
            except (NeedsValues, TooLong, InterpretationFailed):
                raise
            except NotServed as error:
                raise error.at(_where(launch.name, place, source, error)) from None
            except Exception as error:
                raise _failure(launch, place, source, error) from error
            finally:
                # It may have run while another one waits.
                watched.running = outer
                interpreter_builder.grid_idx = within

        try:
            _interpret_all(interpret, counting, meter, clock)
        except (OutOfTime, TooLong):
            too_long = clock.too_long()
            if meter is None or not sample:
                raise too_long from None
            independent = not values and floats_only(launch)
            last = time.thread_time() + sample * (1 + AFTER_RULE)
            if values or not _interpret_by_rule(interpret, counting, meter, launch.grid, sample):
                _interpret_sample(
                    interpret,
                    counting,
                    meter,
                    clock.programs,
                    seconds=sample * AFTER_RULE,
                    last=last,
                    independent=independent,
                )
            if meter.sampled is meter.by_rule is None:
                raise too_long from None
        finally:
            clock.end()


def _interpret_all(interpret: Callable[[int], None], counting: Counting, meter: Meter | None, clock: _Clock) -> None:
    turns = Turns(clock.programs, interpret, clock.tick)
    counting.another = turns.another
    try:
        while turns.begun < clock.programs and not (
            clock.processes > 1 and (clock.left(turns.begun) or 0.0) > WORTH_SHARING
        ):
            turns.another()
    finally:
        counting.another = None
    if meter is not None and turns.begun < clock.programs:
        _share_out(interpret, range(turns.begun, clock.programs), counting, meter, clock)


def _interpret_by_rule(
    interpret: Callable[[int], None], counting: Counting, meter: Meter, grid: tuple[int, int, int], seconds: float
) -> bool:
    """Derives the counts of all programs from some of them, within ``seconds``. Returns whether that was possible."""
    began = time.thread_time()
    counting.deadline, counting.blind = began + seconds, True

    def one(place: regular.Place) -> Meter:
        counting.meter = traced = meter.traced()
        x, y, z = place
        interpret((x * grid[1] + y) * grid[2] + z)
        return traced

    try:
        all_of_them, counted = regular.count(grid, one, began + seconds / 2)
    except (OutOfTime, regular.Irregular, NeedsValues, NotServed, InterpretationFailed):
        # An error of the kernel is found again when values are read.
        return False
    finally:
        counting.blind = False
    meter.take(all_of_them)
    meter.read, meter.written = all_of_them.read, all_of_them.written
    meter.by_rule = counted, grid[0] * grid[1] * grid[2]
    return True


def _interpret_sample(
    interpret: Callable[[int], None],
    counting: Counting,
    meter: Meter,
    programs: int,
    *,
    seconds: float,
    last: float,
    independent: bool,
) -> None:
    """Counts some programs, spread evenly over the grid: as many as ``seconds`` allow, and at least ``FEWEST`` until ``last``.

    The meter is not changed where there were too few. A program that is not ``independent`` may need the results of others:
    then an error in it ends the sample and is not reported.
    """
    mine = meter.fresh()
    soon = time.thread_time() + seconds
    counting.deadline = max(soon, last)
    done: set[int] = set()
    for number in _spread(programs):
        # The counts of an unfinished program are dropped.
        counting.meter = one = meter.fresh()
        try:
            interpret(number)
        except OutOfTime:
            break
        except InterpretationFailed:
            if independent:
                raise
            return
        mine.merge(one)
        done.add(number)
        if time.thread_time() > soon and len(done) >= FEWEST:
            break
    if len(done) >= FEWEST:
        meter.take(mine)
        meter.sampled = len(done), programs


def _spread(count: int) -> Iterator[int]:
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
    given = arguments.tensors(launch.arguments)
    return all(isinstance(tensor, torch.Tensor) and tensor.is_floating_point() for tensor in given)


def _share_out(
    interpret: Callable[[int], None], numbers: range, counting: Counting, meter: Meter, clock: _Clock
) -> None:
    # Each process counts from 0.
    counting.meter = mine = meter.fresh()
    processes = min(clock.processes, len(numbers))
    # Of a forked process the CPU's seconds begin anew.
    counting.deadline = clock.share(numbers.start)
    for counted in multiprocess.share_out(
        numbers, interpret, lambda: mine, lambda done: clock.tick(numbers.start + done), processes=processes
    ):
        meter.merge(counted)


def _where(name: str, place: tuple[int, ...], source: str, error: Exception) -> str:
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == source:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f"{name}, program {place}, line {line}"


def _failure(launch: Launch, place: tuple[int, ...], source: str, error: Exception) -> Exception:
    where = _where(launch.name, place, source, error)
    if isinstance(error, AttributeError) and isinstance(error.obj, (InterpreterBuilder, InterpreterOptions)):
        missing = (error.name or "").removeprefix("create_")
        return NotServed(f"Triton's interpreter has no {missing}").at(where)
    if isinstance(error, accesses.OutOfBounds):
        beside = error.beside(_parameter(launch, error.near))
        return InterpretationFailed(
            f"{where}: {error.verb} {beside}{_element(launch, error)}{_repeated(launch, error.near)}"
        )
    message = str(error).strip().splitlines()
    return InterpretationFailed(f"{where}: {type(error).__name__}: {message[-1] if message else ''}")


def _parameter(launch: Launch, address: int | None) -> str:
    """The parameter whose tensor has its memory at an address, or several that are views of the same memory."""
    names = [
        name
        for name, value in launch.arguments.items()
        if any(storage.data_ptr() == address for storage in arguments.storages(value))
    ]
    return f"the memory of {', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names) or "a tensor"


def _element(launch: Launch, error: accesses.OutOfBounds) -> str:
    """The element of the nearest tensor that the access would be, counted from its pointer, of how many there are.

    Empty where several tensors share that memory.
    """
    near = [
        value
        for value in launch.arguments.values()
        if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == error.near
    ]
    if len(near) != 1:
        return ""
    size, first = near[0].element_size(), near[0].data_ptr()
    left = near[0].untyped_storage().data_ptr() + near[0].untyped_storage().nbytes() - first
    return f": element {(error.at - first) // size:,} of {left // size:,}"


def _repeated(launch: Launch, address: int | None) -> str:
    """A remark that tensors at an address are expanded: they have fewer elements in memory than their shape says."""
    names = [
        name
        for name, value in launch.arguments.items()
        if isinstance(value, torch.Tensor)
        and value.untyped_storage().data_ptr() == address
        and any(extent > 1 and not stride for extent, stride in zip(value.shape, value.stride(), strict=True))
    ]
    if not names:
        return ""
    many = len(names) > 1
    return f" ({' and '.join(names)} {'are' if many else 'is'} expanded, as the gradient of a sum is: .contiguous() copies)"


class _Clock:
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
