"""A race over one sweep's configs in the worker: compiles them in the pool, checks, times and remembers them.

Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from unittest import mock

import torch
from tilescope_kernels.spec import FORWARD
from triton.backends.nvidia.driver import CudaUtils
from triton.runtime.autotuner import Autotuner

from tilescope.collectors import check, compiler
from tilescope.collectors.cupti import counters, planning
from tilescope.collectors.cupti.counters import roomy
from tilescope.execution import cold, execute, offline
from tilescope.execution import kernel_code as code
from tilescope.execution.launches import Launch
from tilescope.execution.not_applicable import NotApplicable
from tilescope.hardware import device
from tilescope.table.case import Case, parse_config
from tilescope.tuning import compile_jobs, compile_pool, memory, racing, search
from tilescope.tuning.cold_times import cold_times, sustained_times

#: The device that inputs are on.
PLACE = "cuda"
#: Sets of inputs taken in turn.
ROTATE = 3
#: Number of the fastest configs whose counters are read (``_count``).
COUNTED = 3
#: Number of configs that are timed without a rest, and how much slower than the default they may be with one.
_AGAIN, _NEAR = 2, 0.005
#: Seconds between two writes to the memory, and between two progress lines of one config.
_KEEP_EVERY, _TELL_EVERY = 1.0, 0.2
_AUTOTUNED = "an autotuner chooses for it, which this race stands in for"


def prepare() -> None:
    """Forks the compiling host while this process has not used the GPU, and makes the GPU's context in a thread. Never raises.

    The thread also compiles Triton's module for the driver. Both take time in which the configs are read.
    """
    compile_pool.prepare()
    threading.Thread(target=_use_gpu, daemon=True).start()


def _use_gpu() -> None:
    with contextlib.suppress(Exception):  # the first config's own attempt reports it
        if device.make_context():
            CudaUtils()


class Broken(Exception):
    """A fault of a config after which the GPU no longer answers this process."""

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(str(error))
        self.name, self.error = name, error


class Raced(NamedTuple):
    """A case's result: its problem, its timing, and whether that is ``remembered`` from before this race."""

    problem: memory.Problem
    timing: memory.Timing
    remembered: bool


class Sweep:
    """The cases of one sweep: one kernel, implementation, direction and workload, each with its config."""

    def __init__(
        self,
        cases: Sequence[Case],
        spec: Any,
        settings: Mapping[str, Any],
        begin: Callable[[Case, str], None],
    ) -> None:
        self._cases = {memory.config_name(case): case for case in cases}
        self._spec, self._settings, self._begin = spec, settings, begin
        self._target = str(settings.get("target", "sm_90"))
        self._facts: dict[str, dict[str, Any]] = {name: {} for name in self._cases}
        self._grids: dict[str, list[int]] = {}
        #: ``given`` of each config's launches.
        self._given: dict[str, list[str]] = {}
        self._expected: dict[Any, Any] = {}
        #: One for all configs, with the rest that the first one needs.
        self._flush: cold.Flush | None = None
        self._inputs: list[execute.Inputs] = []
        self._calls: dict[Case, Callable[[], Any]] = {}
        #: Reasons of configs that do not take part in the race.
        self._refused: dict[str, str] = {}
        #: Configs whose failure may be the machine's, so that it is not remembered.
        self._unsure: set[str] = set()
        self._keep: Callable[[], None] = lambda: None
        self._kept = time.monotonic()
        self._told = -math.inf

    def race(self) -> Iterator[tuple[Case, Raced | BaseException]]:
        """Races the configs; yields each case with its result, or with the error that kept it out.

        After a fault of the GPU only configs with a final verdict are yielded, the faulting one last.
        """
        any_case = next(iter(self._cases.values()))
        self._begin(any_case, "reading the configs of")
        describer, jobs, skipped = self._described()
        for name, error in skipped.items():
            yield self._cases.pop(name), error
        here = device.detect()
        if here is None or not self._cases:
            return
        problem = memory.of_sweep(
            any_case, memory.digest(any_case, describer.digests), here.name, device.uuid(), self._target
        )
        kept = memory.Memory() if problem.digest else None
        fresh = str(self._settings.get("fresh", ""))
        known = kept.known(problem) if kept else {}
        known = memory.usable({n: timing for n, timing in known.items() if timing.at >= fresh}, self._cases)
        new = {name: case for name, case in self._cases.items() if name not in known}
        for name, timing in known.items():
            self._facts[name] = {**self._facts[name], **timing.facts}
        contest = racing.Race(self._samples, len(self._cases), baseline=memory.DEFAULT)
        if kept and new:
            self._keep = lambda: search.keep(
                kept, problem, contest, known, facts=self._facts, certain=lambda lane: lane.config not in self._unsure
            )
        for name, reason in self._refused.items():
            if name in new:
                contest.refuse(name, reason)
        configs = {name: parse_config(case.config) for name, case in new.items() if name not in self._refused}
        order = search.order(configs)
        pool = compile_pool.Pool(describer.code, meanwhile=self._while_compiling)
        compiled = pool.compile({name: jobs[name] for name in order}) if order else ()
        broken: Broken | None = None
        try:
            search.run(
                contest,
                known,
                compiled,
                launched=self._launched,
                on_compiled=self._note,
                more=bool(order),
            )
            if order:
                self._sustain(contest)
        except Broken as error:
            broken = error
            contest.refuse(error.name, f"it faulted, and the worker was restarted: {error}")
        else:
            self._count([lane.config for lane in contest.outcome().lanes if lane.samples][:COUNTED] if order else [])
        self._keep()
        at = datetime.now(UTC).isoformat(timespec="seconds")
        timed = {lane.config for lane in search.found_out(contest, known)}
        timings = {
            name: memory.Timing(
                tuple(lane.samples), lane.out, at if name in timed else known[name].at, self._facts[name]
            )
            for name, lane in contest.lanes.items()
        }
        for name, told in memory.shared(timings).items():
            if broken and (name == broken.name or not told.reason):
                continue  # another process goes on with the race of the others
            yield self._cases[name], Raced(problem, told, name not in timed)
        if broken:
            yield self._cases[broken.name], broken.error

    def _described(
        self,
    ) -> tuple[compile_jobs.Describer, dict[str, list[compile_jobs.Specialization]], dict[str, BaseException]]:
        """The describer, the kernels that each config would compile, and the exceptions of configs that cannot be launched.

        The list of a config is empty where its launch cannot be recorded; it is then compiled when it is launched.
        """
        describer, skipped = compile_jobs.Describer(), dict[str, BaseException]()
        jobs: dict[str, list[compile_jobs.Specialization]] = {name: [] for name in self._cases}
        for name, case in self._cases.items():
            self._facts[name]["config"] = name
            try:
                caught, _ = compiler.launches_of(case, self._spec, self._target)
                if not case.config and any(launch.config for launch in caught):
                    self._refused[name] = _AUTOTUNED
                    continue
                self._grids[name] = [launch.grid[0] * launch.grid[1] * launch.grid[2] for launch in caught]
                self._facts[name]["launches"] = [described(launch) for launch in caught]
                self._given[name] = [given(launch) for launch in caught]
                with offline.targeting(self._target), describer.describing() as found:
                    for launch in caught:
                        offline.ask_compiler(launch)
                jobs[name] = found
            except code.CannotRecord:
                continue
            except Exception as error:
                skipped[name] = error
        return describer, jobs, skipped

    def _while_compiling(self) -> None:
        """Does what every config waits for: compiles the kernel that flushes the L2, runs the reference, and starts CUPTI, which takes half a second."""
        with contextlib.suppress(Exception):  # the first config's own attempt reports it
            flush = cold.Flush()
            flush()
            check.expect(next(iter(self._cases.values())), self._spec, self._expected)
            counters.of_calls([flush], [[cold.read_zeros.__name__]], planning.FIRST)

    def _note(self, name: str, found: search.Compiled) -> None:
        """Notes the pool's answer for a config. Writes to the memory once a second, so that an interruption loses little."""
        grids = self._grids.get(name, [])
        for kernel, blocks in zip(found.kernels, grids, strict=False):
            kernel["grid_blocks"] = blocks  # type: ignore[index]
        if not found.certain:
            self._unsure.add(name)
        self._facts[name]["kernels"] = [dict(kernel) for kernel in found.kernels]
        self._begin(self._cases[name], "racing")
        if time.monotonic() - self._kept > _KEEP_EVERY:
            self._keep()
            self._kept = time.monotonic()

    def _sustain(self, contest: racing.Race) -> None:
        """Times the best long configs and the default without a rest: a config that draws more power may be slower there."""
        default = contest.lanes.get(contest.baseline)
        if not default or not cold.LONG < default.median < math.inf:
            return
        near = [
            lane.config
            for lane in contest.outcome().lanes
            if lane is not default and not lane.like and lane.median < default.median * (1 + _NEAR)
        ][:_AGAIN]
        if not near:
            return
        winner = near[0]
        for facts in self._facts.values():
            facts.pop(memory.SUSTAINED, None)
        self._begin(self._cases[winner], "comparing with the default")
        try:
            found = sustained_times({name: self.call(self._cases[name]) for name in (*near, default.config)})
        except Exception as error:
            if broken():
                raise Broken(winner, error) from error
            self._facts[winner]["uncounted"] = f"not timed without rests: {compile_jobs.one_line(error)}"
            return
        for name, times in found.items():
            self._facts[name][memory.SUSTAINED] = times

    def _count(self, names: Sequence[str]) -> None:
        """Reads what one pass counts of these configs, such as bytes at HBM. They share a session where they can."""
        if not names:
            return
        for name in names:
            self._begin(self._cases[name], "counting")
        try:
            if reason := counters.unavailable():
                raise NotApplicable(reason)
            runs = [self._without_search(self._cases[name]) for name in names]
            counted = counters.of_calls(runs, [counters.launched(run) for run in runs], planning.FIRST)
            for name, data in zip(names, counted, strict=True):
                self._facts[name]["counted"] = data
        except Exception as error:
            if len(names) > 1:
                for name in names:
                    self._count([name])
            else:
                # The times stand without the counts.
                self._facts[names[0]]["uncounted"] = f"not counted: {compile_jobs.one_line(error)}"

    def _without_search(self, case: Case) -> Callable[[], Any]:
        """``call`` of a case whose default config must not be searched for."""
        call = self.call(case)
        return call if case.config else without_autotuners()(call)

    def _launched(self, name: str, kernels: search.Kernels) -> str:
        """A text that is equal for configs with the same launch of the same code, of which one is timed for all.

        Empty for a config with several launches, because its work between them is not known.
        """
        codes = [kernel.get("code", "") for kernel in kernels]
        launches = self._given.get(name, ())
        return repr((codes, launches)) if all(codes) and len(codes) == len(launches) == 1 else ""

    def _samples(self, name: str, count: int) -> list[float]:
        """Times of a config in seconds; compares its result with the reference first. Raises ConfigFailed and Broken."""
        case = self._cases[name]
        if "checked" not in self._facts[name] or time.monotonic() - self._told > _TELL_EVERY:
            self._begin(case, "racing")
            self._told = time.monotonic()
        try:
            with contextlib.nullcontext() if case.config else without_autotuners():
                # First the check, whose reference in fp64 needs most memory.
                if new := "checked" not in self._facts[name]:
                    self._facts[name]["checked"] = checked(case, self._spec, self._expected)
                call = self.call(case)
                if self._flush is None or (new and not self._facts[name]["checked"]):
                    call()  # a first call may take longer, and one rest is that of all configs
                self._flush = self._flush or cold.Flush(cold.rest(call))
                times = cold_times(call, count, self._flush)
                self._facts[name] |= device.clocks()
                return times
        except Exception as error:
            if broken():
                raise Broken(name, error) from error
            if isinstance(error, torch.OutOfMemoryError):
                self._unsure.add(name)
            raise racing.ConfigFailed(compile_jobs.one_line(error)) from error

    def call(self, case: Case) -> Callable[[], Any]:
        """A call of the case. Forward calls share their inputs; others keep their own while half of the GPU's memory is free."""
        if case.direction != FORWARD:
            if case not in self._calls:
                if not roomy():
                    self._calls.clear()
                self._calls[case] = execute.prepare(self._spec, case, PLACE, rotate=ROTATE)
            return self._calls[case]
        if not self._inputs:
            self._inputs = [execute.draw_inputs(self._spec, case, PLACE) for _ in range(ROTATE)]
        call, sets = execute.implementation(self._spec, case), itertools.cycle(self._inputs)
        return lambda: call(**next(sets))


def described(launch: Launch) -> dict[str, Any]:
    """A launch as ``memory.Winner.launches`` has it, by which an autotuner in a later process recognises it.

    A tensor is described by its dtype; other objects are left out.
    """
    arguments = {
        name: str(value.dtype) if isinstance(value, torch.Tensor) else value
        for name, value in launch.arguments.items()
        if isinstance(value, (torch.Tensor, bool, int, float, str))
    }
    constants = {name: value for name, value in launch.constants.items() if isinstance(value, (bool, int, float, str))}
    return {
        "function": launch.name,
        "digest": compile_jobs.source_digest(launch.function),
        "arguments": {**arguments, **constants},
    }


def given(launch: Launch) -> str:
    """The launch's grid and its run-time arguments as a text; a tensor is described by dtype, shape and strides."""
    constants = launch.constants
    arguments = {
        name: (str(value.dtype), tuple(value.shape), value.stride()) if isinstance(value, torch.Tensor) else repr(value)
        for name, value in launch.arguments.items()
        if name not in constants
    }
    return repr((launch.grid, arguments))


def checked(case: Case, spec: Any, expected: dict[str, Any]) -> dict[str, float]:
    """The error of the case's result against the reference, by metric; empty without a reference. Raises CheckFailed."""
    return {} if getattr(spec.reference, "absent", "") else check.require(case, spec, expected)


@contextlib.contextmanager
def without_autotuners() -> Iterator[None]:
    """Makes autotuners with several configs raise ConfigFailed while active: one would search within this search."""
    run = Autotuner.run

    def chosen(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if len(tuner.configs) > 1:
            raise racing.ConfigFailed(_AUTOTUNED)
        return run(tuner, *args, **kwargs)

    with mock.patch.object(Autotuner, "run", chosen):
        yield


def broken() -> bool:
    try:
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
    except Exception:
        return True
    return False
