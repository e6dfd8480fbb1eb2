"""Stands where Triton launches in this process, whoever makes the launch, and lets it be made: on the GPU, or without one
interpreted on the CPU's tensors, so that what follows computes with right values.

Every launch of ``JITFunction.run``, of a compiled kernel that is called itself, of autotuned kernels and those with heuristics,
in operators of ``torch.library`` and in a backward pass. Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner

from tilescope.captures import arguments, inductor
from tilescope.captures.call_site import call_site
from tilescope.captures.recorder import Record, Recorder, torch_is_capturing
from tilescope.captures.touched import multiplies, touched
from tilescope.execution import assumed_device, assumed_tensors, compiling, launches, multiprocess, offline
from tilescope.interpreter import blocks, interpret

#: An autotuner, the configs that it is about to try, and the arguments and keywords of the launch.
Searching = Callable[[Any, Sequence[Any], Sequence[Any], Mapping[str, Any]], object]
#: Seconds that launches may be interpreted, all together, unless somebody says otherwise.
LIMIT = 60.0
#: The share of them that one launch may take.
ONE_LAUNCH = 1 / 5
#: Seconds for choosing configs that fit by compiling them, all together and for one.
FITTING, FITTING_ONE = 30.0, 10.0
#: Seconds for compiling launches that were not made, to know which parameters they read and write through: all together, and for one.
TOUCHING, TOUCHED = 30.0, 10.0
#: Options of a launch as a compiled kernel tells them, and what each is where nobody asks for it.
_OPTIONS = {
    "num_warps": None, "num_stages": None, "num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True,
    "launch_cooperative_grid": False, "launch_pdl": False,
}  # fmt: skip


@contextlib.contextmanager
def on_gpu(recorder: Recorder, searching: Searching = lambda *about: None) -> Iterator[None]:
    """While active, notes every launch just before the GPU makes it. An autotuner's trials are not the person's launches.

    ``searching`` is told of an autotuner's search before its first trial.
    """
    state = threading.local()
    describe, tune, bench, prune = (
        CompiledKernel.launch_metadata,
        Autotuner.run,
        Autotuner._bench,
        Autotuner.prune_configs,
    )

    def described(kernel: Any, grid: Any, stream: Any, *args: Any) -> Any:
        function = getattr(kernel.src, "fn", None)
        if function is not None and not getattr(state, "trial", False):
            tuner = getattr(state, "tuner", None)
            best = tuner.best_config if tuner is not None and tuner.base_fn is function.fn else None
            chosen = best.all_kwargs() if best is not None else {}
            launch = _launch(kernel, function, grid, args, chosen)
            record = recorder.take(launch, call_site(), readable=not torch_is_capturing(), stages=kernel.asm)
            if record is not None and "touched" not in record.data:
                record.data |= {"touched": touched(kernel.asm), "multiplies": multiplies(kernel.asm)}
        return describe(kernel, grid, stream, *args)

    def tuned(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        before, state.tuner = getattr(state, "tuner", None), tuner
        try:
            return tune(tuner, *args, **kwargs)
        finally:
            state.tuner = before

    def pruned(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        state.untried = tuner, prune(tuner, *args, **kwargs)
        return state.untried[1]

    def tried(tuner: Any, *args: Any, config: Any, **kwargs: Any) -> Any:
        before, state.trial = getattr(state, "trial", False), True
        (searcher, configs), state.untried = getattr(state, "untried", (None, ())), (None, ())
        try:
            if searcher is tuner:
                searching(tuner, configs, args, kwargs)
            return bench(tuner, *args, config=config, **kwargs)
        finally:
            state.trial = before

    def generated(launch: launches.Launch) -> None:
        record = recorder.take(launch, call_site(), readable=not torch_is_capturing())
        if record is not None and "touched" not in record.data:
            # Inductor keeps no text of what it compiled. Whoever makes the launch again has it compiled like this, too.
            with contextlib.suppress(Exception):
                kernel = launch.function.run(*launch.args, **launch.kwargs, grid=launch.grid, warmup=True)
                record.data |= {"touched": touched(kernel.asm), "multiplies": multiplies(kernel.asm)}

    with (
        mock.patch.object(CompiledKernel, "launch_metadata", described),
        mock.patch.object(Autotuner, "run", tuned),
        mock.patch.object(Autotuner, "prune_configs", pruned),
        mock.patch.object(Autotuner, "_bench", tried),
        inductor.watched(generated),
    ):
        yield


@contextlib.contextmanager
def without_gpu(
    recorder: Recorder, target: str, limit: float = LIMIT, progress: Callable[[str], None] | None = None
) -> Iterator[assumed_device.Assumed]:
    """While active, notes every launch and interprets it, and a GPU of ``target`` is assumed; yields that.

    Launches that would take longer than a fifth of ``limit`` seconds, or than what is left of them, and those that the
    interpreter does not serve, are not made: their records and those after them say so. 0 interprets none. ``progress`` is
    told how far a launch is that takes longer.
    """
    maker = _Interpreting(recorder, limit, progress)

    def runner_of(kernel: Any, grid: Any) -> Callable[..., None]:
        def runner(*args: Any, stream: Any = None) -> None:
            maker(_launch(kernel, kernel.src.fn, grid, args, {}))

        return runner

    with (
        assumed_device.assumed(target, tensors=True) as there,
        there.without_compiler(),
        mock.patch.object(CompiledKernel, "__getitem__", runner_of),
        inductor.instead(maker),
        launches.catch(maker, _fitting(target)),
    ):
        yield there


def _fitting(target: str) -> Callable[[launches.Launch], bool]:
    """``offline.fits``, asked once of launches that are compiled alike, and for ``FITTING`` seconds. What is not known by then is
    taken to fit, as an autotuner's first config is where none does.
    """
    known: dict[Any, bool] = {}
    left = FITTING

    def fits(launch: launches.Launch) -> bool:
        nonlocal left
        shapes = tuple(arguments.shape_of(value, False) for value in launch.arguments.values())
        key = (id(launch.function), repr(launch.constants), shapes)
        if key not in known and left > 0:
            began = time.perf_counter()
            known[key] = _fits_soon(launch, target, min(left, FITTING_ONE))
            left -= time.perf_counter() - began
        return known.get(key, True)

    return fits


def _fits_soon(launch: launches.Launch, target: str, seconds: float) -> bool:
    """``offline.fits``, or True where that takes longer: compiling cannot be stopped, but the process that does it."""
    deadline = time.perf_counter() + seconds
    answers: list[bool] = []

    def compiled(_: int) -> None:
        # Triton prints the whole code that its assembler refuses.
        with contextlib.redirect_stdout(io.StringIO()):
            answers.append(offline.fits(launch, target))

    def until(_: int) -> None:
        if time.perf_counter() > deadline:
            raise TimeoutError

    try:
        return bool(multiprocess.share_out([0], compiled, lambda: answers[0], until, processes=1)[0])
    except (TimeoutError, RuntimeError):
        return True


class _Interpreting:
    """Makes launches by interpreting them."""

    def __init__(self, recorder: Recorder, limit: float, progress: Callable[[str], None] | None) -> None:
        self.recorder, self.left, self.limit, self.progress = recorder, limit, limit, progress
        self.lock = threading.RLock()
        self.touching = TOUCHING
        #: The first launch that was not made, after which values are not right.
        self.unmade = ""
        cure = "choose smaller inputs, or allow more (--interpreter-limit, limit= or interpreter_limit=)"
        self._allowed = f"the {limit:g} seconds for interpreting: {cure}"

    def __call__(self, launch: launches.Launch) -> None:
        # One at a time: Triton's interpreter has one state for the whole process.
        with self.lock:
            self._make(launch)

    def _make(self, launch: launches.Launch) -> None:
        site = call_site()
        record = self.recorder.take(launch, site)
        notes: list[str] = record.data["notes"] if record else []
        if record is not None and "waited" in record.data:
            return  # The same would be waited for in vain again.
        if 0 in launch.grid:
            _note(notes, f"the launch at {site[0] if site else launch.name} has no program: its grid is {launch.grid}")
        if record is not None and (refused := _out_of_reach(launch)):
            _note(notes, f"the launch at {site[0] if site else launch.name} would be refused by a GPU: {refused}")
        if self.unmade:
            _note(notes, f"{self.unmade} was not made before it: contents may not be what they would be")
        if self.left <= 0:
            self._not_made(launch, site, record, f"nothing is left of {self._allowed}")
            return
        began = time.perf_counter()
        meter = interpret.meter(launch)
        allowed, why = min(self.left, self.limit * ONE_LAUNCH), ""
        try:
            interpret.run(launch, meter=meter, allowance=interpret.Allowance(allowed), progress=self.progress)
        except interpret.TooLong as error:
            most = "one launch may" if allowed < self.left else "what is left"
            if record is not None:
                record.data["waited"] = time.perf_counter() - began
            unending = f"{error}: a loop without end, or" if isinstance(error, interpret.Unending) else "it would take"
            why = f"{unending} longer than {most} of {self._allowed}"
        except (blocks.NotServed, interpret.InterpretationFailed) as error:
            why = str(error)
        finally:
            self.left -= time.perf_counter() - began
        if why:
            self._not_made(launch, site, record, why)
        elif record is not None and "counted" not in record.data:
            counted = meter.record(launch)
            record.data["counted"] = {n: v for n, v in counted.items() if n not in ("config", "constants", "grid")}

    def _not_made(self, launch: launches.Launch, site: Sequence[str], record: Record | None, why: str) -> None:
        notes: list[str] = record.data["notes"] if record else []
        self.unmade = self.unmade or launch.name
        where = site[0] if site else launch.name
        if record is not None and "touched" not in record.data and self.touching > 0:
            # What it reads and writes can be told by the compiler, though not how much of it.
            began = time.perf_counter()
            with contextlib.suppress(Exception):
                record.data["touched"] = touched(compiling.compiled(launch, min(TOUCHED, self.touching))[0].asm)
            self.touching -= time.perf_counter() - began
        _note(notes, f"the launch at {where} was not made, so its results are missing from what follows: {why}")


def _out_of_reach(launch: launches.Launch) -> str:
    """Which parameters lead to the host's memory, in our words and Triton's; empty where a GPU could follow them all."""
    # Triton numbers a tuple's items as parameters of their own.
    numbered = enumerate((name, item) for name, value in launch.arguments.items() for item in _items(value))
    far: dict[str, int] = {}
    for number, (name, item) in numbered:
        if not all(map(assumed_tensors.reachable, arguments.tensors(item))):
            far.setdefault(name, number)
    if not far:
        return ""
    words = f"Pointer argument (at {min(far.values())}) cannot be accessed from Triton (cpu tensor?)"
    return f"{', '.join(far)} {'is' if len(far) == 1 else 'are'} on the CPU (Triton there: {words})"


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)


def _launch(kernel: Any, function: Any, grid: Any, args: tuple[Any, ...], chosen: Mapping[str, Any]) -> launches.Launch:
    """The launch of a compiled kernel, as its function would be launched to get the same."""
    constants = {path[0]: value for path, value in (kernel.src.constants or {}).items() if len(path) == 1}
    given = [args[n] if n < len(args) else constants.get(n) for n in range(max(len(args), len(function.arg_names)))]
    options = {name: getattr(kernel.metadata, name, usual) for name, usual in _OPTIONS.items()}
    asked = {
        name: value
        for name, value in options.items()
        if value is not None and value != _OPTIONS[name] and name not in function.arg_names
    }
    x, y, z = (*(int(extent) for extent in grid), 1, 1)[:3]
    return launches.Launch(function, tuple(given), asked, (x, y, z), dict(chosen))
