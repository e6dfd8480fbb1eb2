"""Observes Triton launches while they are made, and hooks into the stages of its compilations.

``JITFunction.run`` is not replaced, because kernels look at it to know whether launches are caught. Instead this hooks the
compiled kernel's metadata, which every launch asks for. Imports triton: worker-side only.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner

from tilescope.table import launch_configs
from tilescope.table.case import Case

#: It gets the backend and the stages by name.
Hook = Callable[[Any, dict[str, Any]], None]


@contextlib.contextmanager
def each_launch(handle: Callable[[Any, Any, tuple[Any, ...], Any], object]) -> Iterator[None]:
    """While active, calls ``handle`` before every launch with the compiled kernel, the grid, the arguments and the autotuner or None.

    Trials of autotuners and Inductor's own launches are left out.
    """
    state = threading.local()
    describe, tune, bench = CompiledKernel.launch_metadata, Autotuner.run, Autotuner._bench

    def described(kernel: Any, grid: Any, stream: Any, *args: Any) -> Any:
        if not getattr(state, "trial", False):
            handle(kernel, grid, args, getattr(state, "tuner", None))
        return describe(kernel, grid, stream, *args)

    def setting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The method of a tuner with the tuner as ``state.name`` meanwhile."""

        def called(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
            before = getattr(state, name, None)
            setattr(state, name, tuner)
            try:
                return call(tuner, *args, **kwargs)
            finally:
                setattr(state, name, before)

        return called

    with (
        mock.patch.object(CompiledKernel, "launch_metadata", described),
        mock.patch.object(Autotuner, "run", setting("tuner", tune)),
        mock.patch.object(Autotuner, "_bench", setting("trial", bench)),
    ):
        yield


@contextlib.contextmanager
def launches() -> Iterator[list[launch_configs.Launched]]:
    """While active, notes the config of every launch. Yields the list of launches so far."""
    seen: list[launch_configs.Launched] = []

    def note(kernel: Any, _grid: Any, args: tuple[Any, ...], tuner: Any) -> None:
        parameters = getattr(getattr(kernel.src, "fn", None), "params", ())
        constants = {p.name: value for p, value in zip(parameters, args, strict=False) if p.is_constexpr}
        chosen = tuner.best_config.all_kwargs() if tuner is not None else ()
        seen.append(launch_configs.launched(kernel.name, constants, kernel.metadata, chosen))

    with each_launch(note):
        yield seen


def once(run: Callable[[], Any], artefact: Path, case: Case) -> None:
    """Runs the case once and writes its configs beside the artefact. It comes before timing, because observing takes time."""
    with launches() as seen:
        run()
    launch_configs.write(artefact, case, seen)


@contextlib.contextmanager
def hooked(hook: Hook) -> Iterator[None]:
    """Calls ``hook`` for each compilation for NVIDIA's GPUs while active.

    Triton's own ``add_stages_inspection_hook`` is left to others, and from 3.9 on changes the keys of all kernels.
    """
    from triton.backends.nvidia.compiler import CUDABackend  # noqa: PLC0415

    original = CUDABackend.add_stages

    def add_stages(backend: Any, stages: dict[str, Any], options: Any, language: Any) -> None:
        original(backend, stages, options, language)
        hook(backend, stages)

    with mock.patch.object(CUDABackend, "add_stages", add_stages):
        yield
