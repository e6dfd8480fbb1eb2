"""Catches Triton launches instead of making them.

Every launch goes through ``JITFunction.run``, whether by a launcher, an ``autograd.Function`` or a custom operator. While
``catch`` is active, each becomes a ``Launch`` that the caller gets. Imports torch and triton: worker-side only.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import triton
from tilescope_kernels import dispatch
from torch._library import custom_ops
from triton.compiler.compiler import CompiledKernel
from triton.runtime.autotuner import Autotuner
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, KernelInterface, TensorWrapper


@dataclass(frozen=True)
class Launch:
    """A caught launch.

    ``function`` is the ``JITFunction`` (an ``InterpretedFunction`` under TRITON_INTERPRET=1). ``args`` and ``kwargs`` are its
    arguments, with those of autotuners and heuristics. ``grid`` is resolved to three extents. ``config`` is an autotuner's
    choice, empty without one. ``tuner`` is the autotuner.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    grid: tuple[int, int, int]
    config: Mapping[str, Any]
    tuner: Any = None

    @property
    def name(self) -> str:
        return str(self.function.fn.__name__)

    @property
    def file(self) -> Path:
        return Path(self.function.fn.__code__.co_filename)

    @property
    def functions(self) -> Iterator[Any]:
        """The kernel, and the functions that it calls, without Triton's own."""
        return _reached(self.function)

    @property
    def source(self) -> dict[str, str]:
        """Texts by name of that file and of the files of functions that it calls, without Triton's own.

        Files that Python cannot find are left out.
        """
        files = dict.fromkeys(Path(function.fn.__code__.co_filename) for function in self.functions)
        texts = {file.name: "".join(linecache.getlines(str(file))) for file in files}
        return {name: text for name, text in texts.items() if text}

    @functools.cached_property
    def arguments(self) -> dict[str, Any]:
        """The kernel function's arguments by name, with defaults."""
        return {name: as_tensor(value) for name, value in _bind(self.function, self.args, self.kwargs).items()}

    @functools.cached_property
    def constants(self) -> dict[str, Any]:
        """The arguments that are ``tl.constexpr``, and launch options such as ``num_warps``."""
        bound = self.arguments
        parameters = inspect.signature(self.function.fn).parameters
        constants = {name: bound[name] for name, p in parameters.items() if name in bound and _is_constexpr(p)}
        return constants | {name: value for name, value in self.kwargs.items() if name not in parameters}


class Handle:
    """Stands for the compiled kernel that a launch returns. It compiles the launch when an attribute is read.

    Launchers read registers, spills, metadata and code from it, and launch it again.
    """

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # so that ``isinstance`` says what the launcher expects
        return CompiledKernel  # type: ignore[no-any-return]

    @functools.cached_property
    def _kernel(self) -> Any:
        from tilescope.execution import offline  # noqa: PLC0415 - imports this module

        return offline.compile_launch(self._launch)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if not hasattr(self._kernel, name):
            # Registers and spills are known once the code is loaded.
            self._kernel._init_handles()
        return getattr(self._kernel, name)

    def __getitem__(self, grid: Any) -> Any:
        return self._kernel[grid]


def as_tensor(value: Any) -> Any:
    """The tensor for a value that only has an address and a dtype, which is all that Triton asks for.

    Libraries have such views, with negative strides that PyTorch's tensors cannot have. Other values are returned unchanged.
    """
    if isinstance(value, (torch.Tensor, TensorWrapper)) or not hasattr(value, "data_ptr"):
        return value
    address, dtype = value.data_ptr(), getattr(value, "dtype", None)
    for base in getattr(value, "__dict__", {}).values():
        if not isinstance(base, torch.Tensor) or not isinstance(dtype, torch.dtype) or base.itemsize != dtype.itemsize:
            continue
        storage = base.untyped_storage()
        first, off = divmod(address - storage.data_ptr(), dtype.itemsize)
        left = storage.nbytes() // dtype.itemsize - first
        if first < 0 or left < 0 or off:
            continue
        strides = value.stride() if hasattr(value, "stride") else (-1,)
        shape = tuple(getattr(value, "shape", ()))
        reach = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=False))
        whole = len(shape) == len(strides) and min(strides, default=0) >= 0 and reach < left
        return base.detach().as_strided(shape if whole else (left,), strides if whole else (1,), first).view(dtype)
    return value


def _reached(function: Any) -> Iterator[Any]:
    """Yields the function and those that it calls, found by the names in their code."""
    seen, waiting = set[Any](), [function]
    while waiting:
        function = waiting.pop()
        if function.fn in seen:
            continue
        seen.add(function.fn)
        yield function
        named = inspect.getclosurevars(function.fn)
        values = [*named.nonlocals.values(), *named.globals.values()]
        modules = [value for value in values if inspect.ismodule(value)]
        values += [getattr(module, name, None) for module in modules for name in function.fn.__code__.co_names]
        waiting += [
            value
            for value in values
            if isinstance(value, (JITFunction, InterpretedFunction))
            and str(value.fn.__module__).partition(".")[0] != "triton"
        ]


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    return annotation is triton.language.constexpr or (isinstance(annotation, str) and "constexpr" in annotation)


def _bind(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(function.fn)
    own = {name: value for name, value in kwargs.items() if name in signature.parameters}
    try:
        bound = signature.bind(*args, **own)
    except TypeError as error:
        raise TypeError(f"{function.fn.__name__}: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _resolve(grid: Any, bound: Mapping[str, Any]) -> tuple[int, int, int]:
    extents = tuple(int(extent) for extent in (grid(dict(bound)) if callable(grid) else grid))
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


class ThroughCustomOps(dispatch.OnLooker):
    """Runs custom operators by the code that defines them, so that the launches inside are made.

    On meta tensors PyTorch would call the operator's shape function instead, without a launch.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        definition = custom_ops.OPDEFS.get(func.name().partition(".")[0])
        if definition is None:
            return func(*args, **(kwargs or {}))
        with self:
            return definition._init_fn(*args, **(kwargs or {}))


@contextlib.contextmanager
def catch(
    handle: Callable[[Launch], Any] | None = None, fits: Callable[[Launch], bool] | None = None
) -> Iterator[list[Launch]]:
    """While active, catches every launch and passes it to ``handle``. The launcher gets a ``Handle``.

    Yields the list of launches so far. An autotuner takes the first config that its own pruning leaves, or the first whose
    launch ``fits``, without timing any. Heuristics and hooks run as always. An explicit ``warmup`` is not caught. Not for use
    from two threads at once.
    """
    caught: list[Launch] = []
    chosen: list[tuple[Mapping[str, Any], Any]] = [({}, None)]

    def run(function: Any, /, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup:
            return original[type(function)](function, *args, grid=grid, warmup=True, **kwargs)
        for hook in function.pre_run_hooks:
            hook(*args, **kwargs)
        bound = _bind(function, args, kwargs)
        launch = Launch(function, args, kwargs, _resolve(grid, bound), *chosen[-1])
        caught.append(launch)
        if handle:
            handle(launch)
        return None if isinstance(function, InterpretedFunction) else Handle(launch)

    def autotuned(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
        tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
        configs = _configs(tuner, kwargs)
        config = configs[0] if fits is None else _first_that_fits(tuner, configs, args, kwargs, fits)
        options = _prepared(tuner, config, kwargs)
        # Launchers read the config, for instance to know the number of partial sums.
        tuner.best_config = config
        chosen.append((options, tuner))
        try:
            return tuner.fn.run(*args, **kwargs, **options)
        finally:
            chosen.pop()
            tuner.nargs = None

    def subclassed(kind: Any, /, **options: Any) -> None:
        super(KernelInterface, kind).__init_subclass__(**options)
        own_run(kind)

    def own_run(kind: Any) -> None:
        # A library's autotuner with a ``run`` of its own would time configs, and keep the result on disk.
        if "run" not in vars(kind) or kind.__module__.partition(".")[0] in ("torch", "triton"):
            return
        own = kind.run

        def instead(tuner: Any, /, *args: Any, **kwargs: Any) -> Any:
            tunes = all(hasattr(tuner, name) for name in ("fn", "arg_names", "configs"))
            return (autotuned if tunes else own)(tuner, *args, **kwargs)

        tuners.enter_context(mock.patch.object(kind, "run", instead))

    kinds: tuple[Any, ...] = (JITFunction, InterpretedFunction)
    original = {kind: kind.run for kind in kinds}
    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(InterpretedFunction, "run", run),
        mock.patch.object(Autotuner, "run", autotuned),
        mock.patch.object(KernelInterface, "__init_subclass__", classmethod(subclassed)),
        contextlib.ExitStack() as tuners,
        ThroughCustomOps(),  # type: ignore[no-untyped-call]
    ):
        for kind in _subclasses(KernelInterface):
            own_run(kind)
        yield caught


def _subclasses(kind: Any) -> Iterator[Any]:
    for below in kind.__subclasses__():
        yield below
        yield from _subclasses(below)


def _configs(tuner: Any, kwargs: Mapping[str, Any]) -> list[Any]:
    if getattr(tuner, "early_config_prune", None) is None:
        return list(tuner.configs)
    try:
        return list(tuner.early_config_prune(tuner.configs, tuner.nargs, **kwargs)) or list(tuner.configs)
    except Exception:
        # A pruning function may query the GPU, which may be absent.
        return list(tuner.configs)


def _prepared(tuner: Any, config: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a config. Calls its hook."""
    options: dict[str, Any] = config.all_kwargs()
    if config.pre_hook is not None:
        config.pre_hook({**tuner.nargs, **kwargs, **options})
    return options


def _first_that_fits(
    tuner: Any, configs: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], fits: Callable[[Launch], bool]
) -> Any:
    """The first config whose launch ``fits``, or the very first where none does."""
    for config in configs if len(configs) > 1 else ():
        with catch() as tried:
            tuner.fn.run(*args, **kwargs, **_prepared(tuner, config, kwargs))
        if tried and fits(tried[0]):
            return config
    return configs[0]
