"""Observes the config of each Triton launch while it is made.

``JITFunction.run`` is not replaced, because kernels look at it to know whether launches are caught. Instead this hooks the
compiled kernel's metadata, which every launch asks for. Imports triton: worker-side only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner

from tilescope.table import launch_configs
from tilescope.table.case import Case


@contextlib.contextmanager
def launches() -> Iterator[list[launch_configs.Launched]]:
    """While active, notes every launch that Triton makes. Yields the list of launches so far.

    Of an autotuner's launches, which include trials, only the last is kept, the one for its caller. Inductor's own launches are
    not seen. Not for use from two threads at once, but a backward pass may run in another.
    """
    seen: list[launch_configs.Launched] = []
    describe, tune = CompiledKernel.launch_metadata, Autotuner.run

    def described(kernel: Any, grid: Any, stream: Any, *args: Any) -> Any:
        parameters = getattr(getattr(kernel.src, "fn", None), "params", ())
        constants = {p.name: value for p, value in zip(parameters, args, strict=False) if p.is_constexpr}
        seen.append(launch_configs.launched(kernel.name, constants, kernel.metadata))
        return describe(kernel, grid, stream, *args)

    def tuned(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        before = len(seen)
        result = tune(tuner, *args, **kwargs)
        for last in seen[before:][-1:]:
            chosen = [name for name in tuner.best_config.all_kwargs() if name in last["config"]]
            seen[before:] = [{**last, "autotuned": [*last["autotuned"], *chosen]}]
        return result

    with mock.patch.object(CompiledKernel, "launch_metadata", described), mock.patch.object(Autotuner, "run", tuned):
        yield seen


def once(run: Callable[[], Any], artefact: Path, case: Case) -> None:
    """Runs the case once and writes its configs beside the artefact. It comes before timing, because observing takes time."""
    with launches() as seen:
        run()
    launch_configs.write(artefact, case, seen)
