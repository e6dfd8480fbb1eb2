"""Measures the steps of a running program as they come: their time, then every launch's counters, then a trace. No step is repeated.

Imports torch when it measures. CUPTI counts before torch.profiler runs, which keeps CUPTI for itself afterwards.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescope.collectors import energy
from tilescope.collectors.foreign_files.step_trace import STEP
from tilescope.hardware import device, gpu_lock

if TYPE_CHECKING:
    from tilescope.captures.step_boundaries import Boundaries

#: Steps that warm up, that are timed without a profiler, and that are traced.
WARMUP, PLAIN, TRACED = 3, 5, 5
#: Steps before the traced ones, and seconds of them, after which a GPU at its power limit has the clock that it keeps.
_SETTLES, _SETTLED = 8, 0.5
#: Metrics of tensor operations that are counted beside CUPTI's first pass.
_MORE = ("tensor_ops_tf32", "tensor_ops_fp8", "tensor_ops_fp16")


@dataclass
class Measured:
    """What the passes found. ``launches`` are the names of a step's launches in order, ``counted`` their counters by CUPTI's names.

    ``plain`` and ``cpu`` are a step's seconds without a profiler, on the GPU and on the CPU.
    ``trace`` is torch.profiler's file, ``stacks`` that of a step with lines of code. ``seconds`` maps a pass to the time of its step; ``notes`` say what could not be counted.
    ``power`` has a step's ``energy`` in joules, the ``power`` and ``power_limit`` in watts, and ``sm_clock``.
    """

    found: str = ""
    plain: float | None = None
    launches: list[str] = field(default_factory=list)
    counted: list[dict[str, float]] = field(default_factory=list)
    capability: str = ""
    trace: bytes = b""
    stacks: bytes = b""
    seconds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    power: dict[str, float] = field(default_factory=dict)
    cpu: float | None = None


class Passes:
    """A program that calls ``begin`` at the beginning of each of its steps is measured. ``done`` says that nothing is left.

    ``annotate`` is called with True before the traced steps, and with False after them. ``then`` goes on with the steps that follow.
    ``tell`` is called with what is being done.
    """

    def __init__(
        self,
        annotate: Callable[[bool], None] = lambda on: None,
        *,
        count: bool = True,
        then: Callable[[Measured], Generator[None]] | None = None,
        tell: Callable[[str], None] = lambda doing: None,
    ) -> None:
        self.measured = Measured()
        self.done = False
        self._annotate, self._count, self._then, self._tell = annotate, count, then, tell
        self._script: Generator[None] | None = None

    def begin(self, found: str = "") -> None:
        """Begins a step, and ends the one before it. Steps of another kind than before start all over, unless they are being traced."""
        if self.done or (self._script and inspect.getgeneratorstate(self._script) == inspect.GEN_RUNNING):
            return
        if self._script is None or (found != self.measured.found and not self.measured.seconds):
            self.measured.found, self._script = found, self._measure()
        elif found != self.measured.found:
            return
        self.measured.steps += 1
        if next(self._script, "ended") == "ended":
            self.done = True

    def close(self) -> None:
        """Ends a measurement whose program has ended. What a begun pass had is lost."""
        if self._script is not None:
            with contextlib.suppress(RuntimeError):
                self._script.close()
        self._script, self.done = None, True

    @property
    def missing(self) -> str:
        """Says what is not measured yet; empty once everything is."""
        if self.measured.trace:
            return ""
        needed = WARMUP + 2 * PLAIN + _SETTLES + TRACED + 4
        return f"it made {self.measured.steps} steps, and about {needed} are needed to warm up, count and trace"

    def _measure(self) -> Generator[None]:
        """Each ``yield`` is a step of the program. Other jobs on the GPU wait, except while the program warms up."""
        for _ in range(WARMUP):
            yield
        with alone():
            self._tell("timing the step")
            paces = list[float]()
            self.measured.plain = yield from timed(paces)
            if self._count:
                self._tell("counting the step's launches")
                yield from self._counters()
            self._tell("tracing the step")
            yield from self._trace()
            # The CPU is slower in a program's first steps: a later time is nearer to those that follow.
            self.measured.plain = min(self.measured.plain, (yield from timed(paces)))
            self.measured.cpu = min(paces)
        if self._then:
            yield from self._then(self.measured)
        if not _of_ranks():
            with alone():
                self.measured.power = yield from energy.counting()

    def _counters(self) -> Generator[None]:
        """Notes the names of a step's launches, and counts those of the following steps, as many as the counters take."""
        import torch  # noqa: PLC0415 - the program has imported it

        from tilescope.collectors.cupti import library, planning, ranges  # noqa: PLC0415

        measured = self.measured
        measured.capability = "{}.{}".format(*torch.cuda.get_device_capability())
        begun = time.perf_counter()
        try:
            cupti = library.load()
            cupti.initialize()
            chip = cupti.chip(torch.cuda.current_device())
            plans = planning.plans(cupti, chip, measured.capability, (*planning.FIRST, *_MORE))
            torch.cuda.synchronize()
            with ranges.seen(cupti) as names:
                yield
                torch.cuda.synchronize()
            measured.launches = list(names)
            if ranges.GRAPH in names:
                measured.notes.append(
                    "not counted: the step launches CUDA graphs, each of which CUPTI counts as one launch"
                )
                return
            if not names:
                measured.notes.append("not counted: the step launches nothing")
                return
            found: list[dict[str, float]] = [{} for _ in names]
            for number, plan in enumerate(plans):
                started = time.perf_counter()
                with ranges.Counting(cupti, chip, plan, len(names)) as counting:
                    more = True
                    while more:
                        torch.cuda.synchronize()
                        counting.begin()
                        yield
                        torch.cuda.synchronize()
                        more = counting.end()
                for known, values in zip(found, counting.values, strict=True):
                    known.update({name: value for name, value in values.items() if math.isfinite(value)})
                measured.seconds[f"counting {number + 1}"] = time.perf_counter() - started
            measured.counted = found
        except library.CuptiError as error:
            measured.notes.append(f"not counted: {error}")
            measured.counted = []
        measured.seconds["counting"] = time.perf_counter() - begun

    def _trace(self) -> Generator[None]:
        """Traces steps, and then one step with Python's stacks, which is too slow to be timed."""
        import torch  # noqa: PLC0415 - the program has imported it

        torch.cuda.synchronize()
        begun = time.perf_counter()
        self._annotate(True)
        self.measured.trace = yield from self._traced(TRACED, with_stack=False)
        self._annotate(False)
        self.measured.seconds["trace in all"] = time.perf_counter() - begun
        begun = time.perf_counter()
        # Else PyTorch's profiler stays attached and slows each later launch (pytorch/pytorch#144455).
        os.environ.setdefault("TEARDOWN_CUPTI", "1")
        self.measured.stacks = yield from self._traced(1, with_stack=True)
        self.measured.seconds["stacks in all"] = time.perf_counter() - begun

    def _traced(self, steps: int, *, with_stack: bool) -> Generator[None, None, bytes]:
        """The trace of the next steps, after those with which the profiler starts up and the GPU's clock settles."""
        import torch  # noqa: PLC0415 - the program has imported it
        from torch.autograd.profiler import record_function  # noqa: PLC0415
        from torch.profiler import ProfilerAction, profile  # noqa: PLC0415

        # Ranks of one program make equally many steps.
        until, settling, settled = time.perf_counter() + _SETTLED, 1 if with_stack or _of_ranks() else _SETTLES, False
        # What PyTorch 2.11 warns of concerns several cycles.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        with profile(
            schedule=lambda number: ProfilerAction.RECORD if settled else ProfilerAction.WARMUP,
            record_shapes=not with_stack, with_stack=with_stack,
        ) as profiler:  # fmt: skip
            while not settled:
                yield
                settling -= 1
                settled = not settling or time.perf_counter() >= until
                profiler.step()
            for number in range(steps):
                started = time.perf_counter()
                with record_function(f"{STEP}{number}"):
                    yield
                if number == 1:
                    self.measured.seconds["tracing"] = time.perf_counter() - started
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(path))
            return path.read_bytes()


def alone() -> contextlib.AbstractContextManager[object]:
    """Holds the GPU's lock: two programs that are timed at once disturb each other. Ranks of one program do not wait for each other."""
    return contextlib.nullcontext() if _of_ranks() else gpu_lock.held(gpu_lock.path(device.lock_name()))


def _of_ranks() -> bool:
    """Whether the program has several ranks, which must all make the same number of steps."""
    from torch import distributed  # noqa: PLC0415 - the program has imported torch

    return distributed.is_available() and distributed.is_initialized()


def timed(paces: list[float] | None = None) -> Generator[None, None, float]:
    """The median time of the next steps on the GPU. The CPU's times for each are added to ``paces``, in seconds."""
    import torch  # noqa: PLC0415 - the program has imported it

    marks, begun = [], []
    for _ in range(PLAIN + 1):
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record()
        marks.append(mark)
        begun.append(time.perf_counter())
        if len(marks) <= PLAIN:
            yield
    torch.cuda.synchronize()
    if paces is not None:
        paces += (after - before for before, after in itertools.pairwise(begun))
    return float(statistics.median(before.elapsed_time(after) * 1e-3 for before, after in itertools.pairwise(marks)))


def of_calls(step: Callable[[], Any], passes: Passes, program: Boundaries) -> Measured:
    """Measures a callable step, which is called as often as the passes need, while its modules are watched."""
    program.step = step
    while not passes.done:
        passes.begin(f"calls of {getattr(step, '__name__', 'a function')}")
        if not passes.done:
            program.step()
    return passes.measured
