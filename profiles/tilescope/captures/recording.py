"""Records every Triton launch of this process. The launch is still made: by the GPU, or without one by the interpreter, so that
the code after it computes with correct values.

Covers launches by ``JITFunction.run``, of compiled kernels that are called directly, of autotuned kernels and those with
heuristics, in operators of ``torch.library`` and in backward passes. Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner

from tilescope.captures import arguments, inductor
from tilescope.captures.data_flow import Flow
from tilescope.captures.never_written import NeverWritten
from tilescope.captures.recorder import Record, Recorder
from tilescope.collectors import fault_rules
from tilescope.execution import (
    assumed_answers,
    assumed_device,
    assumed_tensors,
    compiling,
    fresh_memory,
    kernel_code,
    launches,
    observe,
    offline,
)  # fmt: skip
from tilescope.interpreter import blocks, interpret
from tilescope.interpreter.arguments import tensors
from tilescope.table.kernel_faults import Fault

#: Called with an autotuner, the configs that it is about to try, and the arguments and keywords of the launch.
Searching = Callable[[Any, Sequence[Any], Sequence[Any], Mapping[str, Any]], object]
#: The share of the work for interpreting all launches that one may take.
ONE_LAUNCH = 1 / 5
#: Seconds for compiling configs to find one that fits: for all launches, and for one config.
FITTING, FITTING_ONE = 30.0, 10.0
#: Seconds for compiling launches that were not made, to find the parameters that they access: for all launches, and for one.
TOUCHING, TOUCHED = 30.0, 10.0
#: Launch options in a compiled kernel's metadata, and their defaults.
_OPTIONS = {
    "num_warps": None, "num_stages": None, "num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True,
    "launch_cooperative_grid": False, "launch_pdl": False,
}  # fmt: skip
#: Packages whose frames are skipped.
_BETWEEN = ("torch", "triton", "tilescope")
_STANDARD = str(Path(sysconfig.get_path("stdlib")))
_INSTALLED = ("site-packages", "dist-packages")


@contextlib.contextmanager
def on_gpu(recorder: Recorder, searching: Searching = lambda *about: None) -> Iterator[None]:
    """While active, records every launch just before the GPU makes it. Trials of autotuners are left out.

    ``searching`` is called before the first trial of an autotuner's search.
    """
    prune = Autotuner.prune_configs

    def take(kernel: Any, grid: Any, args: tuple[Any, ...], tuner: Any) -> None:
        function = getattr(kernel.src, "fn", None)
        if function is not None:
            best = tuner.best_config if tuner is not None and tuner.base_fn is function.fn else None
            launch = _launch(kernel, function, grid, args, best.all_kwargs() if best is not None else {})
            recorder.take(launch, call_site(), readable=not _capturing_graph(), stages=kernel.asm)

    def pruned(tuner: Any, kwargs: Mapping[str, Any]) -> Any:
        configs = prune(tuner, kwargs)
        if not tuner.cache_results:  # otherwise the choice may be on disk
            searching(tuner, configs, tuple(tuner.nargs.values()), kwargs)
        return configs

    def generated(launch: launches.Launch) -> None:
        record = recorder.take(launch, call_site(), readable=not _capturing_graph())
        if record is not None and "touched" not in record.data:
            # Inductor keeps no text of its code, so it is compiled again, as a replay will do.
            with contextlib.suppress(Exception):
                kernel = launch.function.run(*launch.args, **launch.kwargs, grid=launch.grid, warmup=True)
                record.data["touched"] = Flow(kernel.asm).touched

    with (
        observe.each_launch(take),
        mock.patch.object(Autotuner, "prune_configs", pruned),
        inductor.watched(generated),
    ):
        yield


@contextlib.contextmanager
def without_gpu(
    recorder: Recorder,
    target: str,
    limit: float,
    progress: Callable[[str], None] | None = None,
    *,
    not_finite: bool = False,
) -> Iterator[assumed_device.Assumed]:
    """While active, assumes a GPU of ``target``, and records and interprets every launch. Yields the assumed GPU.

    A launch is not made if it would take longer than a fifth of ``limit`` seconds of work or than what is left of them, or if
    the interpreter does not support it. Its record and later ones then have a note. A ``limit`` of 0 interprets none. ``progress``
    gets messages about slow launches. ``not_finite`` is that of ``interpret.run``.
    """
    maker = _Interpreting(recorder, limit, progress, not_finite=not_finite)

    def runner_of(kernel: Any, grid: Any) -> Callable[..., None]:
        def runner(*args: Any, stream: Any = None) -> None:
            maker(_launch(kernel, kernel.src.fn, grid, args, {}))

        return runner

    with (
        assumed_device.assumed(target) as there,
        there.without_compiler(),
        inductor.once_imported(
            "torch.utils.benchmark", lambda _: assumed_tensors.replaced(assumed_answers.timers(there.answers))
        ),
        inductor.once_imported(
            "torch._inductor.utils",
            lambda utils: assumed_tensors.replaced(assumed_answers.print_performance(there.answers, utils)),
        ),
        mock.patch.object(CompiledKernel, "__getitem__", runner_of),
        inductor.instead(maker),
        launches.catch(maker, _fitting(target)),
    ):
        try:
            yield there
        finally:
            maker.outputs.conclude()


def _capturing_graph() -> bool:
    """Whether a CUDA graph is being captured: memory must not be read then."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _fitting(target: str) -> Callable[[launches.Launch], bool]:
    """``offline.fits``, cached for equal launches. After ``FITTING`` seconds in all, and where one takes too long, it is True."""
    known: dict[Any, bool] = {}
    left = FITTING

    def fits(launch: launches.Launch) -> bool:
        nonlocal left
        shapes = tuple(arguments.shape_of(value, False) for value in launch.arguments.values())
        key = (id(launch.function), repr(launch.constants), shapes)
        if key not in known and left > 0:
            began = time.perf_counter()
            known[key] = True
            with contextlib.suppress(TimeoutError, RuntimeError):
                known[key] = compiling.in_time(min(left, FITTING_ONE), lambda: offline.fits(launch, target))
            left -= time.perf_counter() - began
        return known.get(key, True)

    return fits


class _Interpreting:
    """Makes launches by interpreting them."""

    def __init__(
        self, recorder: Recorder, limit: float, progress: Callable[[str], None] | None, *, not_finite: bool
    ) -> None:
        self.not_finite = not_finite
        self.recorder, self.left, self.limit, self.progress = recorder, limit, limit, progress
        self.lock = threading.RLock()
        self.touching = TOUCHING
        self.outputs = NeverWritten()
        cure = "choose smaller inputs, or allow more (--interpreter-limit, limit= or interpreter_limit=)"
        self._allowed = f"the {limit:g} s of work for interpreting: {cure}"

    def __call__(self, launch: launches.Launch) -> None:
        # One at a time: Triton's interpreter has one state for the process.
        with self.lock, fresh_memory.unseen():
            site = call_site()
            # A launch that cannot be recorded is still made. Its remarks go to a record that is dropped.
            record = self.recorder.take(launch, site) or Record(launch.function, {"notes": [], "touched": None})
            if "waited" in record.data:
                self.outputs.unmade(launch)
                return  # an equal launch took too long before
            where = f"the launch at {site[0] if site else launch.name}"
            if 0 in launch.grid:
                record.note(f"{where} has no program: its grid is {launch.grid}")
            # Autograd makes zeros for gradients that are not there, and nothing tells that they would be on the GPU.
            backward = torch._C._current_autograd_node() is not None
            far = _out_of_reach(launch) if "arguments" in record.data and not backward else {}
            if far:
                record.note(f"{where} would be refused by a GPU: {_refusal(far)}")
            if unmade := self.recorder.unmade:
                record.data.setdefault("after", unmade)
                record.note(f"{unmade} was not made before it, so its inputs may be wrong")
            if why := self._interpreted(launch, record):
                if not self.recorder.unmade:
                    self.recorder.unmade, self.recorder.why_unmade = launch.name, why
                self.outputs.unmade(launch)
                self._touch(launch, record)
                record.note(f"{where} was not made, so its results are missing from what follows: {why}")
            elif far and any(map(assumed_tensors.on_assumed_gpu, tensors(launch.arguments))):
                what = f"{_are(far)} on the CPU, and other tensors on the GPU, so Triton refuses the launch"
                fault = Fault(launch.function.starting_line_number, what, "move it to the GPU by .cuda()", wrong=True)
                record.data["counted"].setdefault("faults", []).append(fault._asdict())

    def _interpreted(self, launch: launches.Launch, record: Record) -> str:
        """Interprets the launch and records its counts. Returns the reason why that was not possible, otherwise nothing."""
        if self.left <= 0:
            return f"nothing is left of {self._allowed}"
        meter, allowed = interpret.meter(launch), min(self.left, self.limit * ONE_LAUNCH)
        allowance = interpret.Allowance(allowed)
        try:
            interpret.run(launch, meter=meter, allowance=allowance, progress=self.progress, not_finite=self.not_finite)
        except interpret.TooLong as error:
            record.data["waited"] = allowance.waited
            most = "one launch may" if allowed < self.left else "what is left"
            unending = f"{error}: a loop without end, or" if isinstance(error, interpret.Unending) else "it would take"
            return f"{unending} longer than {most} of {self._allowed}"
        except (blocks.NotServed, interpret.InterpretationFailed) as error:
            return str(error)
        finally:
            self.left -= allowance.waited
        if "counted" not in record.data:
            counted = fault_rules.record(launch, meter)
            record.data["counted"] = {n: v for n, v in counted.items() if n not in ("config", "constants", "grid")}
            if "after" in record.data and record.data["counted"].pop("faults", ()):
                record.data["doubtful"] = True
        self.outputs.launched(launch, meter, record.data["counted"])
        return ""

    def _touch(self, launch: launches.Launch, record: Record) -> None:
        """Records which parameters a launch accesses, as the compiler knows, though not how many bytes."""
        if "touched" not in record.data and self.touching > 0:
            began = time.perf_counter()
            with contextlib.suppress(Exception):
                kernel, _ = compiling.compiled(launch, min(TOUCHED, self.touching))
                record.data["touched"] = Flow(kernel.asm).touched
            self.touching -= time.perf_counter() - began


def _out_of_reach(launch: launches.Launch) -> dict[str, int]:
    """The parameters that a GPU could not access, because they are on the CPU, with Triton's numbers."""
    # Triton numbers the items of a tuple as parameters of their own.
    numbered = enumerate((name, item) for name, value in launch.arguments.items() for item in _items(value))
    far: dict[str, int] = {}
    for number, (name, item) in numbered:
        if not all(map(assumed_tensors.reachable, tensors(item))):
            far.setdefault(name, number)
    return far


def _refusal(far: Mapping[str, int]) -> str:
    words = f"Pointer argument (at {min(far.values())}) cannot be accessed from Triton (cpu tensor?)"
    return f"{_are(far)} on the CPU (Triton there: {words})"


def _are(far: Mapping[str, int]) -> str:
    return f"{', '.join(far)} {'is' if len(far) == 1 else 'are'}"


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _items(item)
    else:
        yield value


def _launch(kernel: Any, function: Any, grid: Any, args: tuple[Any, ...], chosen: Mapping[str, Any]) -> launches.Launch:
    """The launch of a compiled kernel as a launch of its function."""
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


def call_site() -> tuple[str, ...]:
    """Texts ``file:line``, innermost first: the line of the launch, and if that is a library's, the user's line that called it.

    In the thread of a backward pass on a GPU the latter is unknown.
    """
    found: list[str] = []
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        name, own = _named(frame.f_code.co_filename, frame.f_globals.get("__name__", ""))
        if name and (own or not found):
            found.append(f"{name}:{line}")
        if name and own:
            break
    return tuple(found)


def _named(file: str, module: str) -> tuple[str, bool]:
    """A file's name to show (empty: skipped), and whether it is the user's own and not an installed library's."""
    if kernel_code.is_cell(file):  # not cached: a cell that is run again has another number
        return f"cell {kernel_code.cell_number(file)}".rstrip(), True
    return _of_file(file, module)


@functools.lru_cache(maxsize=4096)
def _of_file(file: str, module: str) -> tuple[str, bool]:
    if module.partition(".")[0] in _BETWEEN or file.startswith("<frozen"):
        return "", False
    installed = next((place for place in _INSTALLED if f"/{place}/" in file), None)
    if installed:
        return file.rpartition(f"/{installed}/")[2], False
    if file.startswith(_STANDARD):
        return "", False
    try:
        return str(Path(file).relative_to(Path.cwd())), True
    except (ValueError, FileNotFoundError):  # a script may remove its folder
        return "/".join(Path(file).parts[-3:]).lstrip("/"), True
