"""``tilescope.autotune``: the arguments of ``triton.autotune`` with Tilescope's search.

Exported winners are taken first, then this machine's memory. Otherwise configs are compiled in parallel and raced as they are
compiled; those that cannot run well are refused with their reason. Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton import knobs
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.driver import driver
from triton.runtime.errors import AutotunerError, OutOfResources, PTXASError
from triton.runtime.jit import JITFunction

from tilescope.execution import kernel_code as code
from tilescope.hardware import device as hardware
from tilescope.tuning import compile_jobs, compile_pool, memory, pruning, racing, search
from tilescope.tuning.cold_times import cold_times

#: Names a file of exported winners, which counts before the memory.
WINNERS = "TILESCOPE_WINNERS"
#: Exists where the NVIDIA driver is loaded.
_GPU = Path("/dev/nvidiactl")
#: The rules for a user's own benchmark, which returns quantiles: each answer counts as one sample.
_OWN_BENCHMARK = racing.Rules(first=1, fewest=2, turns=2)
#: Fewest configs for which starting processes saves time.
_FEW = 3


class Tuner(Autotuner):  # type: ignore[misc]
    """Triton's autotuner with another search. Hooks, keys, ``best_config`` and ``cache`` are Triton's.

    ``search`` is the outcome of the last race, None where none was needed; its lanes say why each config was dropped.
    """

    _do_bench: Any

    def __init__(
        self, *args: Any, cache_results: bool = True, winners: Path | str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, cache_results=cache_results, **kwargs)
        self.remembers = cache_results
        # Triton then calls ``check_disk_cache`` instead of timing by itself.
        self.cache_results = True
        self.search: racing.Outcome | None = None
        self._own_benchmark = self._do_bench is not None
        self._rules = _OWN_BENCHMARK if self._own_benchmark else racing.Rules()
        self._keywords: Mapping[str, Any] = {}
        self._winners = Path(winners) if winners else None

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Any]:
        """The configs that the user's own pruning leaves."""
        self._keywords = kwargs
        found: list[Any] = super().prune_configs(kwargs)
        return found

    def check_disk_cache(self, tuning_key: Any, configs: Sequence[Any], bench_fn: Callable[[], None]) -> bool:
        """Chooses the config for the key; returns whether that took no timing. ``bench_fn``, Triton's search, is not called.

        Raises AutotunerError with every reason where no config can be timed.
        """
        self.search = None
        by_text = {text_of(config): config for config in configs}
        here = None if knobs.runtime.interpret or len(by_text) == 1 else device()
        if here is None:
            self.cache[tuning_key] = configs[0]
            return True
        problem = self._problem(tuning_key, *here)
        if chosen := self._exported(problem, by_text):
            self.cache[tuning_key] = chosen
            return True
        # Hooks have no digest, so timings with them cannot be told apart.
        kept = memory.Memory() if self.remembers and not any(config.pre_hook for config in configs) else None
        known: dict[str, memory.Timing] = {}
        try:
            known = memory.usable(kept.known(problem) if kept else {}, by_text)
        except memory.WinnersError as error:
            kept = None
            warnings.warn(str(error), stacklevel=2)
        began = time.time()
        self.search = outcome = self._race(problem, by_text, known, kept)
        self.bench_time = time.time() - began
        if not outcome.winner:
            reasons = "; ".join(dict.fromkeys(lane.out for lane in outcome.lanes))
            raise AutotunerError(f"none of {len(by_text)} configs of {problem.kernel} could be timed: {reasons}")
        self.cache[tuning_key] = by_text[outcome.winner]
        samples = {lane.config: lane.samples for lane in outcome.lanes}
        self.configs_timings = {
            by_text[lane.config]: _quantiles(lane.samples or samples.get(lane.like, ())) for lane in outcome.lanes
        }
        if len(known) == len(by_text):
            return True
        self.pre_hook({**self.nargs, **self._keywords, **self.cache[tuning_key].all_kwargs()}, reset_only=True)
        return False

    def _exported(self, problem: memory.Problem, by_text: Mapping[str, Any]) -> Any:
        """The config from the file of winners, by the same problem or by the same launch; None where there is none."""
        path = self._winners or os.environ.get(WINNERS)
        winners = memory.load(Path(path)) if path else []
        if (text := memory.chosen(winners, problem)) in by_text:
            return by_text[text]
        given = {**self.nargs, **self._keywords}
        arguments = {name: given[name] for name in self.keys if name in given} | {
            name: str(value.dtype) for name, value in given.items() if hasattr(value, "dtype")
        }
        for launch in memory.launched(winners, problem, arguments):
            for config in by_text.values():
                if all(launch.get(name, value) == value for name, value in _numbers(config).items()):
                    return config
        return None

    def _race(
        self,
        problem: memory.Problem,
        by_text: Mapping[str, Any],
        known: Mapping[str, memory.Timing],
        kept: memory.Memory | None,
    ) -> racing.Outcome:
        """The race over known and new configs. Nothing is timed where all are known."""
        new = {text: config for text, config in by_text.items() if text not in known}
        facts: dict[str, dict[str, Any]] = {text: {} for text in by_text}

        def measured(text: str, count: int) -> list[float]:
            times = self._samples(by_text[text], count)
            facts[text].update(clocks())
            return times

        race = racing.Race(measured, len(by_text), self._rules)
        refused: set[str] = set()

        def on_compiled(text: str, found: search.Compiled) -> None:
            facts[text]["kernels"] = list(found.kernels)
            if found.reason and found.certain:
                refused.add(text)

        numbers = {text: _numbers(config) for text, config in new.items()}
        compiled = self._compiled({text: new[text] for text in search.order(numbers)})
        try:
            return search.run(
                race,
                known,
                compiled,
                launched=lambda text, kernels: self._launched(by_text[text], kernels),
                on_compiled=on_compiled,
                more=bool(new),
            )
        finally:
            if kept and new:  # after an interruption too
                # A failure while timing, such as too little memory, may not happen again.
                search.keep(
                    kept,
                    problem,
                    race,
                    known,
                    facts=facts,
                    certain=lambda lane: lane.samples or lane.like or lane.config in refused,
                )

    def _grid(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """The grid of a launch with this config; empty where it cannot be computed before the launch."""
        given = {**self.nargs, **self._keywords}
        grid = given.get("grid")
        try:
            sizes = grid({**given, **config}) if callable(grid) else grid
            return tuple(int(size) for size in sizes or ())
        except Exception:  # a user's function may need what exists only at the launch
            return ()

    def _launched(self, config: Any, kernels: search.Kernels) -> str:
        """The config's launch as a text (``search.Launched``): code, grid, and its run-time arguments."""
        codes = [kernel.get("code", "") for kernel in kernels]
        grid = self._grid(config.all_kwargs())
        # Under another decorator, or with a hook, more may depend on the config than is visible here.
        if not all(codes) or len(codes) != 1 or not grid or config.pre_hook or not isinstance(self.fn, JITFunction):
            return ""
        constants = {parameter.name for parameter in self.fn.params if parameter.is_constexpr}
        own = {name: value for name, value in config.kwargs.items() if name not in constants}
        return repr((codes, grid, sorted(own.items())))

    def _compiled(self, configs: Mapping[str, Any]) -> Iterator[tuple[str, search.Compiled]]:
        """Each config once it is compiled into Triton's cache, by other processes if its code can be sent to them."""
        describer, jobs = compile_jobs.Describer(), {}
        try:
            for text, config in configs.items():
                with describer.describing() as jobs[text]:
                    self._warm(config)
        except code.CannotRecord:
            for text, config in configs.items():
                yield text, self._compile(config)
        else:
            yield from compile_pool.Pool(describer.code).compile(jobs)

    def _warm(self, config: Any) -> None:
        if config.pre_hook:
            config.pre_hook({**self.nargs, **self._keywords, **config.all_kwargs()})
        self.fn.run(*self._positional(), **{**self._keywords, "warmup": True}, **config.all_kwargs())

    def _compile(self, config: Any) -> search.Compiled:
        try:
            with pruning.refusing():
                self._warm(config)
        except pruning.Refused as refused:
            return search.Compiled(str(refused))
        except (OutOfResources, CompileTimeAssertionFailure, PTXASError, triton.CompilationError) as error:
            return search.Compiled(compile_jobs.one_line(error))
        return search.Compiled()

    def _samples(self, config: Any, count: int) -> list[float]:
        """GPU times of a config in seconds. Raises ConfigFailed."""
        if self._own_benchmark:
            found = self._bench(*self._positional(), config=config, **self._keywords)
            # Triton's benchmarks return milliseconds.
            return [float(found[0] if isinstance(found, (list, tuple)) else found) / 1e3]
        times: list[float] = []

        def take(call: Callable[[], Any], quantiles: Any) -> list[float]:
            times.extend(cold_times(call, count))
            return times

        # Triton takes its benchmark from this attribute if it is set.
        self.__dict__["do_bench"] = take
        try:
            self._bench(*self._positional(), config=config, **self._keywords)
        finally:
            del self.__dict__["do_bench"]
        if not times:
            raise racing.ConfigFailed("it cannot be launched here")
        return times

    def _positional(self) -> tuple[Any, ...]:
        return tuple(self.nargs.values())

    def _problem(self, tuning_key: Any, name: str, uuid: str) -> memory.Problem:
        function = self.fn
        while not isinstance(function, JITFunction):
            function = function.fn
        return memory.Problem(
            self.base_fn.__name__, compile_jobs.source_digest(function), str(tuning_key), name, uuid, versions()
        )


def autotune(  # noqa: PLR0917 - the arguments are Triton's, in its order
    configs: Sequence[Any],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = True,
    winners: Path | str | None = None,
) -> Callable[[Any], Tuner]:
    """Wraps a ``@triton.jit`` function in a tuner; the arguments are those of ``triton.autotune``.

    ``winners`` names a file of ``tilescope tune --export`` or ``memory.export``, whose configs are taken without timing.
    ``cache_results`` keeps timings between processes; without it each process searches for itself. The first config that
    ``prune_configs_by`` leaves is taken unmeasured where there is no GPU, or where kernels are interpreted.

    On a machine with a GPU this forks a process that compiles for searches, before this one uses the GPU.
    """

    if len(configs) > 1 and winners is None and _GPU.exists() and not knobs.runtime.interpret:
        compile_pool.prepare()

    def wrap(function: Any) -> Tuner:
        return Tuner(
            function, function.arg_names, configs, key, reset_to_zero, restore_value,
            pre_hook=pre_hook, post_hook=post_hook, prune_configs_by=prune_configs_by, warmup=warmup, rep=rep,
            use_cuda_graph=use_cuda_graph, do_bench=do_bench, cache_results=cache_results, winners=winners,
        )  # fmt: skip

    return wrap


def text_of(config: Any) -> str:
    """The config in one line, by which it is remembered; its parameters are sorted."""
    return ", ".join(f"{name}: {value}" for name, value in sorted(config.all_kwargs().items()))


def device() -> tuple[str, str] | None:
    """Name and UUID of the current GPU, on which configs are timed; None where there is none."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties.name, str(getattr(properties, "uuid", ""))


def clocks() -> dict[str, float]:
    """``sm_clock`` of the current GPU in hertz; empty unless it is the first, which ``hardware.device.clocks`` reads."""
    with contextlib.suppress(AssertionError, RuntimeError):
        if torch.cuda.current_device() == 0:
            return hardware.clocks()
    return {}


def versions() -> str:
    """The compiler's versions and its target as one text."""
    target = driver.active.get_current_target()
    return memory.versions(f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch))


def _quantiles(samples: Sequence[float]) -> list[float]:
    """The median, 20 % and 80 % quantiles in milliseconds, as Triton keeps them; infinite without samples."""
    return [1e3 * float(value) for value in np.quantile(samples, (0.5, 0.2, 0.8))] if samples else [math.inf] * 3


def _numbers(config: Any) -> dict[str, int]:
    return {name: value for name, value in config.all_kwargs().items() if isinstance(value, int)}


def compile_ahead(tuner: Any, configs: Sequence[Any], args: Sequence[Any], keywords: Mapping[str, Any]) -> int:
    """Compiles the configs of a search that ``tuner`` begins with these arguments; returns how many compiled. Never raises.

    The tuner still times and chooses by itself. It also compiles the remaining configs: those with a hook, which may do
    anything, those whose code cannot be recorded, and those that fail or take far longer than the others.
    """
    describer, jobs = compile_jobs.Describer(), dict[str, list[compile_jobs.Specialization]]()
    plain = [config for config in configs if not config.pre_hook]
    if len(plain) < _FEW or isinstance(tuner, Tuner):  # it compiles in parallel by itself
        return 0
    done = 0
    with contextlib.suppress(Exception):  # the tuner's own attempt reports it
        for number, config in enumerate(plain):
            with describer.describing() as found:
                tuner.fn.run(*args, **{**keywords, "warmup": True}, **config.all_kwargs())
            if found:
                jobs[str(number)] = found
        for _, compiled in compile_pool.Pool(describer.code).compile(jobs):
            done += not compiled.reason
    return done
