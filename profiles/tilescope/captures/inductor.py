"""Hooks launches of the kernels that torch.compile generates: Inductor compiles and launches them without Triton's own functions.

Imports torch, and Inductor's runtime only where it is loaded already.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

from tilescope.execution.launches import Launch

_HEURISTICS = "torch._inductor.runtime.triton_heuristics"
_ASYNC = "torch._inductor.async_compile"


@contextlib.contextmanager
def watched(take: Callable[[Launch], Any]) -> Iterator[None]:
    """While active, passes every launch of a generated kernel to ``take`` and then makes it.

    Inductor chooses the config at the first launch; it is chosen here just before.
    """

    def noted(run: Callable[[], Any], tuner: Any, args: tuple[Any, ...]) -> Any:
        if len(tuner.launchers) == 0:
            tuner.precompile()
        if len(tuner.launchers) > 1:
            tuner.autotune_to_one_config(*args)
        take(_launch(tuner, args, tuner.launchers[0].config))
        return run()

    with _patched(noted):
        yield


@contextlib.contextmanager
def instead(make: Callable[[Launch], Any]) -> Iterator[None]:
    """While active, passes every launch of a generated kernel, with the first config, to ``make`` and does not make it.

    Files that torch.compile wrote compile their kernels, for the GPU that is there, as they are imported. None is then compiled.
    """

    def made(run: Callable[[], Any], tuner: Any, args: tuple[Any, ...]) -> Any:
        return make(_launch(tuner, args, tuner.configs[0]))

    def uncompiled(module: Any) -> Any:
        return mock.patch.object(module.CachingAutotuner, "precompile", lambda *_, **__: None)

    def here(module: Any) -> Any:
        # Another process would look for a GPU.
        return mock.patch.object(module.AsyncCompile, "use_process_pool", classmethod(lambda _: False))

    with _patched(made), once_imported(_HEURISTICS, uncompiled), once_imported(_ASYNC, here):
        yield


@contextlib.contextmanager
def _patched(run: Callable[..., Any]) -> Iterator[None]:
    """While active, ``run`` replaces ``CachingAutotuner.run``. It gets a call of the original, the tuner and the arguments."""

    def patch(module: Any) -> Any:
        original = module.CachingAutotuner.run

        def patched(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("benchmark_run"):
                return original(tuner, *args, **kwargs)
            return run(lambda: original(tuner, *args, **kwargs), tuner, args)

        return mock.patch.object(module.CachingAutotuner, "run", patched)

    with once_imported(_HEURISTICS, patch):
        yield


@contextlib.contextmanager
def once_imported(name: str, patch: Callable[[Any], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """While active, has entered what ``patch`` makes of the module ``name``, from its import on.

    Inductor's modules take seconds to import: they are patched when something else imports them.
    """
    with contextlib.ExitStack() as stack:

        def imported(module: Any) -> None:
            stack.enter_context(patch(module))

        if name in sys.modules:
            imported(sys.modules[name])
        else:
            finder = _WhenImported(name, imported)
            sys.meta_path.insert(0, finder)
            stack.callback(lambda: sys.meta_path.remove(finder) if finder in sys.meta_path else None)
        yield


class _WhenImported:
    """A finder on ``sys.meta_path`` that passes a module on once it is imported."""

    def __init__(self, name: str, imported: Callable[[Any], None]) -> None:
        self.name, self.imported = name, imported

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found is not None and found.loader is not None:
            load = found.loader.exec_module

            def loaded(module: Any) -> None:
                load(module)
                self.imported(module)

            found.loader.exec_module = loaded  # type: ignore[method-assign]
        return found


def _launch(tuner: Any, args: tuple[Any, ...], config: Any) -> Launch:
    """The launch in the form of a caught one."""
    given, grid = tuner._interpret_args_grid(args, config)
    constants: Mapping[str, Any] = {**tuner.triton_meta.get("constants", {}), **config.kwargs}
    named = {name: value for name, value in constants.items() if isinstance(name, str)}
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    x, y, z = (*(int(extent) for extent in grid), 1, 1)[:3]
    return Launch(_function(tuner), tuple(given), {**named, **options}, (x, y, z), {**config.kwargs, **options})


def _function(tuner: Any) -> Any:
    """The kernel's function. Inductor drops it when another process compiles it, and can load it again."""
    if tuner.fn.fn is None:
        tuner.fn = tuner._reload_kernel().fn
    return tuner.fn
