"""``tilescope.profile_model`` and ``tilescope model``: where a step's time goes, how far each kernel is from its roof, what to do next.

The step is measured in this process, as it runs. The result is an ordinary run, whose folder also has the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import tempfile
import types
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tilescope.collectors.foreign_files import contents, step_trace
from tilescope.collectors.ncu import counters
from tilescope.files.bounded_reading import one_line
from tilescope.hardware import device
from tilescope.models import ledger, next_steps, step_problems, step_text, terminal
from tilescope.notebook import live_progress, script_running
from tilescope.notebook.opened_run import Profile
from tilescope.runs import device_roofs, steps, store
from tilescope.runs.store import RunWriter
from tilescope.table import units
from tilescope.table.run import Run
from tilescope.table.step import COPY, FILL, Step, StepLaunch, Tried
from tilescope.version import VERSION

if TYPE_CHECKING:
    from tilescope.captures.step_boundaries import Boundaries
    from tilescope.captures.step_passes import Measured

#: The function of a script that is its step, where the script makes too few steps.
FUNCTION = "step"
_DONE = "the measurement has ended"
_EARLY = "the script ended before it was measured: let it make more steps"
_NO_STEPS = (
    "no step was found: a step is one loop of a training program, from one optimizer.step() to the next, or a call of a module; "
    "else write the step as a function step() of the script"
)


class ModelProfile(Profile):
    """The run of a model's step. Its text is the ledger, what to do next, and the kernels with the most time above their roof."""

    @functools.cached_property
    def step(self) -> Step:
        """The step, which is read once: it may have 100,000 launches. Raises StoreError for a damaged file, and where the run is of no step."""
        found = steps.read(self.folder)
        if found is None:
            raise store.StoreError(f"{self.run.id} is of no model's step: make one with 'tilescope model script.py'")
        return found

    @property
    def problems(self) -> list[step_problems.Problem]:
        """The step's distinct problems, the one with the most time first."""
        return step_problems.of(self.step, ledger.of(self.step, self.run.device))

    def write_problems(self, path: Path | str) -> None:
        """Writes the problems as JSON, for ``tilescope tune KERNEL --problems FILE``."""
        Path(path).write_text(json.dumps([dataclasses.asdict(one) for one in self.problems], indent=1) + "\n")

    def __repr__(self) -> str:
        notes = (f"note: {note}" for note in self.run.notes)
        said = [step_text.text(self.step, self.run.device), *notes, f"run: {self.folder}"]
        return terminal.plain("\n".join(said))


def profile_model(
    step: Callable[[], Any], *, title: str = "", runs_dir: Path | str | None = None, tries: Sequence[int] = ()
) -> ModelProfile:
    """Measures ``step``, a function without arguments that makes one training or inference step, which is called about 30 times.

    The suggestions with the numbers ``tries`` are applied one after the other, where that needs no edit: their results are compared
    with the plain step's, and the time that each won with its prediction. Raises ValueError, in one line, where there is no GPU.
    """
    folder = _ready(runs_dir)
    from tilescope.captures import step_boundaries, step_passes  # noqa: PLC0415 - they import torch

    telling = live_progress.Telling(_DONE)
    program, trials = step_boundaries.Boundaries(lambda found: None), Trials(tries, telling)
    passes = step_passes.Passes(
        lambda on: setattr(program, "annotating", on), then=lambda of: trials.made(of, program), tell=telling
    )
    with contextlib.closing(telling), program.watched():
        measured = step_passes.of_calls(step, passes, program)
    return kept(measured, title or f"a step of {getattr(step, '__name__', 'a model')}", folder, trials)


def profile_script(
    script: str,
    arguments: Sequence[str] = (),
    *,
    title: str = "",
    runs_dir: Path | str | None = None,
    tries: Sequence[int] = (),
) -> ModelProfile:
    """Runs a script until a step of it is measured. A script that makes too few steps may have a function ``step``, which is called instead.

    ``tries`` is as in ``profile_model``. Raises ValueError, in one line, for a script that cannot be run or that has no step, and where there is no GPU.
    """
    folder = _ready(runs_dir)
    from tilescope.captures import step_boundaries, step_passes  # noqa: PLC0415 - they import torch

    telling = live_progress.Telling(_DONE)
    trials = Trials(tries, telling)

    def made() -> step_passes.Passes:
        return step_passes.Passes(
            lambda on: setattr(boundaries, "annotating", on),
            then=lambda of: trials.made(of, boundaries),
            tell=telling,
        )

    passes = made()

    def begin(found: str) -> None:
        passes.begin(found)
        # Passes that are closed early leave the step to its function.
        if passes.done and passes.measured.trace:
            raise _MeasuredError

    boundaries = step_boundaries.Boundaries(begin)
    by_itself: list[Measured] = []

    def then(module: types.ModuleType) -> None:
        step = vars(module).get(FUNCTION)
        if callable(step) and not passes.done:
            passes.close()
            by_itself.append(step_passes.of_calls(step, made(), boundaries))

    ended = ""
    with contextlib.closing(telling), contextlib.suppress(_MeasuredError):
        ended = script_running.run_script(script, arguments, boundaries.watched(), then)
    passes.close()
    if ended:
        trials.tried = [dataclasses.replace(one, why=ended) if one.why == _EARLY else one for one in trials.tried]
    measured = by_itself[0] if by_itself else passes.measured
    if not measured.trace:
        why = passes.missing if passes.measured.steps else _NO_STEPS
        raise ValueError(f"{script}: {'; '.join(filter(None, [ended, why]))}")
    return kept(measured, title or script, folder, trials, script)


class Trials:
    """The suggestions of a step with these numbers, tried one after the other. Raises ValueError for a number below 1."""

    def __init__(self, numbers: Sequence[int] = (), tell: Callable[[str], None] = lambda doing: None) -> None:
        self._numbers, self.tried, self._tell = tuple(dict.fromkeys(numbers)), list[Tried](), tell
        if any(number < 1 for number in numbers):
            raise ValueError("suggestions are numbered from 1")

    def made(self, measured: Measured, program: Boundaries) -> Generator[None]:
        """Tries each. Each ``yield`` is a step of the program."""
        step = step_of(measured)[0] if self._numbers else None
        if step is None:
            return
        from tilescope.captures import trying  # noqa: PLC0415 - it imports torch

        # With the roofs that the run is shown with.
        gpu = device_roofs.settled(_run(), store.recorded_dir()).device
        found = next_steps.suggestions(step, ledger.of(step, gpu), gpu)
        early = Tried(why=_EARLY)
        absent = Tried(why=f"there are {units.several(len(found), 'suggestion')}")
        known = {number: found[number - 1] for number in self._numbers if number <= len(found)}
        self.tried = [
            _about(early, number, known[number]) if number in known else dataclasses.replace(absent, number=number)
            for number in self._numbers
        ]
        for place, number in enumerate(self._numbers):
            if one := known.get(number):
                self._tell(f"trying suggestion {number}: {one.text}")
                result = yield from trying.tried(one.kind, one.place, program)
                if result.plain and step.plain:
                    # A profiler that has ended still slows the CPU.
                    result = dataclasses.replace(result, plain=min(result.plain, step.plain))
                self.tried[place] = _about(result, number, one)


def _about(tried: Tried, number: int, one: next_steps.Suggestion) -> Tried:
    return dataclasses.replace(tried, number=number, text=one.text, predicted=one.saving)


class _MeasuredError(BaseException):
    """Ends a script whose step is measured."""


def open_model(name: str = "latest") -> ModelProfile:
    """Opens the run of a model's step by its id, the start of it, its folder, or ``latest``. Raises StoreError for a run of no step."""
    found = ModelProfile.of(store.open_run(store.find(name)))
    _ = found.step
    return found


def _ready(runs_dir: Path | str | None) -> Path:
    folder = (Path(runs_dir) if runs_dir else store.runs_dir()).absolute()
    store.check_writable(folder)
    if why := device.unavailable():
        raise ValueError(f"{why}; a trace of torch.profiler from another machine opens with 'tilescope open'")
    return folder


def step_of(measured: Measured) -> tuple[Step | None, list[str]]:
    """The measured step with its counters and lines, None for a trace without a launch, and notes on what was not found."""
    step = _read(measured.trace, measured.found)
    if step is None:
        return None, []
    step, notes = counted(step, measured)
    if measured.stacks and (stacks := _read(measured.stacks)):
        step = with_sites(step, stacks)
    return dataclasses.replace(step, plain=measured.plain, cpu=measured.cpu), notes


def kept(measured: Measured, title: str, folder: Path, trials: Trials | None = None, script: str = "") -> ModelProfile:
    """Writes the run of a measured step, of a ``script`` if it was one. Raises ValueError for a trace without a launch."""
    step, notes = step_of(measured)
    if step is None:
        raise ValueError(f"{title}: the step launches nothing on a GPU")
    step = dataclasses.replace(step, tried=tuple(trials.tried if trials else ()), power=measured.power)
    run = _run(title, script, (*measured.notes, *notes))
    return ModelProfile.of(write(run, table(step), step, folder))


def _run(title: str = "", script: str = "", notes: tuple[str, ...] = ()) -> Run:
    gpu = device.detect()
    versions = {**device.installed(), "driver": device.driver(), "tilescope": VERSION}
    return Run(
        id=store.new_id(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=gpu or contents.device(),
        kernels={},
        versions={name: version for name, version in versions.items() if version},
        settings={
            "target": gpu.target if gpu else "",
            "tool": "tilescope model",
            **({"script": script} if script else {}),
        },
        title=one_line(title),
        notes=notes,
    )


def _read(trace: bytes, found: str = "") -> Step | None:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(trace)
        file.flush()
        return step_trace.read(Path(file.name), found)


def with_sites(step: Step, stacks: Step) -> Step:
    """The step with the lines of code of another trace of it, by the order and names of its launches, and of the CPU's stops."""
    mine, theirs = (sorted(one.launches, key=_called) for one in (step, stacks))
    sites: dict[int, Counter[str]] = {}
    for here, there in _aligned([_bare(one.name) for one in mine], [_bare(one.name) for one in theirs]):
        place, site = mine[here].operator, stacks.operator(theirs[there]).site
        if place is not None and site:
            sites.setdefault(place, Counter())[site] += 1
    operators = tuple(
        dataclasses.replace(operator, site=sites[place].most_common(1)[0][0]) if place in sites else operator
        for place, operator in enumerate(step.operators)
    )
    waits = _aligned(*([f"{stop.name} {stop.operator}" for stop in one.stops] for one in (step, stacks)))
    stops = list(step.stops)
    for here, there in waits:
        stops[here] = dataclasses.replace(stops[here], site=stacks.stops[there].site)
    return dataclasses.replace(step, operators=operators, stops=tuple(stops))


def write(run: Run, rows: pd.DataFrame, step: Step, folder: Path) -> store.LoadedRun:
    with RunWriter(folder, run) as writer:
        writer.append(rows, store.MODEL)
        steps.write(writer.folder, step)
        return store.open_run(writer.finish())


def table(step: Step) -> pd.DataFrame:
    """The step's launches as rows of the table: times by torch.profiler, counters by CUPTI."""
    timed, told = contents.Rows("torch_profiler"), contents.Rows("cupti")
    for number, launch in enumerate(step.launches):
        workload = contents.workload(launch.grid, launch.block) if launch.moved is None else f"{launch.moved:.0f} bytes"
        threads, blocks = contents.product(launch.block), contents.product(launch.grid)
        values = {"gpu_time": launch.duration, "block_threads": threads, "grid_blocks": blocks}
        timed.add(launch.name, workload, number, values)
        # The time of a launch that is counted is longer, and not of the step.
        told.add(
            launch.name, workload, number, {name: value for name, value in launch.counted.items() if name != "gpu_time"}
        )
    return pd.concat([timed.frame(), told.frame()], ignore_index=True) if len(told) else timed.frame()


def counted(step: Step, measured: Measured) -> tuple[Step, list[str]]:
    """The step with the counters of each launch, aligned by order and name, and notes on launches that were not found."""
    if not measured.counted:
        return step, []
    launched = [place for place, launch in enumerate(step.launches) if launch.kind not in (COPY, FILL)]
    by_call = sorted(launched, key=lambda place: _called(step.launches[place]))
    pairs = list(
        _aligned([_bare(step.launches[place].name) for place in by_call], [_bare(name) for name in measured.launches])
    )
    launches: list[StepLaunch] = list(step.launches)
    for mine, theirs in pairs:
        place = by_call[mine]
        values = counters.metrics(measured.counted[theirs], measured.capability)
        launches[place] = dataclasses.replace(launches[place], counted=values)
    missing = len(by_call) - len(pairs)
    notes = (
        [f"{missing} of {len(by_call)} launches were not found among the counted ones, so their bytes are modelled"]
        if missing
        else []
    )
    return dataclasses.replace(step, launches=tuple(launches)), notes


def _called(launch: StepLaunch) -> float:
    return launch.start if launch.call is None else launch.call


def _aligned(mine: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    if mine == theirs:
        return [(place, place) for place in range(len(mine))]
    blocks = difflib.SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks()
    return [(block.a + offset, block.b + offset) for block in blocks for offset in range(block.size)]


def _bare(name: str) -> str:
    """A function's name without what demanglers write differently."""
    return "".join(
        letter for letter in name.replace("(anonymous namespace)", "").replace("<unnamed>", "") if letter.isalnum()
    )[:200]
