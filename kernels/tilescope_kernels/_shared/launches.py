"""Launches kernels on the tensors' GPU, with a cache that finds the compiled kernel faster than Triton does.

At each launch Triton binds arguments by name, computes the specialization of each, and formats the options as text: 10 us and more of
CPU time, longer than many kernels run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.compiler import compiler
from triton.runtime import autotuner, driver, jit

from tilescope_kernels._shared.launchers import Launcher, launcher_of, whole_launcher
from tilescope_kernels._shared.notes import Notes

#: Launches remembered, one for each set of shapes. The cache is cleared when it is full.
_MOST = 8192


class _Made(NamedTuple):
    """A compiled kernel, its launcher with its fixed arguments, and its key in Triton's cache."""

    start: Callable[..., Any]
    first: tuple[Any, ...]
    constants: tuple[Any, ...]
    compiled: Any
    name: str
    launcher: Launcher


_MADE: dict[Hashable, _Made] = {}
_JIT, _COMPILER, _AUTOTUNER = vars(jit), vars(compiler), vars(autotuner)
_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter

#: Name of Triton's and of Gluon's class. It is compared by name, as importing either takes long.
DESCRIPTOR = "TensorDescriptor"


class _Thread(threading.local):
    """A thread's state."""

    #: Whether a CUDA context is surely current in the thread.
    has_context = False


_THREAD = _Thread()


def ensure_context(device: int) -> None:
    """Sees to it that this thread has a CUDA context, without which no descriptor can be encoded.

    A thread of autograd's gets one with its first runtime call, and allocating from PyTorch's cache makes none. This call makes one, also
    while a graph is captured.
    """
    if not _THREAD.has_context:
        torch.cuda.mem_get_info(device)
        _THREAD.has_context = True


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> _Made | None:  # noqa: PLR0912, PLR0915 - each costs a call
    """``kernel[grid](*args, **constants)`` on the GPU of the first tensor. Returns the cached launch, or None where there is none.

    ``constants`` are the kernel's ``tl.constexpr`` parameters and the launch options. Launch hooks, a replaced ``JITFunction.run`` and
    the interpreter see the launch as they would see Triton's.
    """
    # Hashing the kernel itself takes as long as the rest of the key. The cache keeps the kernel alive, so its id stays its own.
    key: list[Any] = [id(kernel), *constants, *constants.values()]
    given: list[Any] = []
    add, give = key.append, given.append
    device = -1
    for value in args:
        kind = type(value)
        if kind is _TENSOR or kind is _PARAMETER:
            if device < 0:
                device = value.get_device()
            address = value.data_ptr()
            # Triton specializes on the dtype and on whether the address is a multiple of 16.
            add(value.dtype)
            add(address & 15)
            give(address)
        elif kind is int or value is None:
            # Triton may specialize on an integer's value.
            add(value)
            give(value)
        elif kind is float:
            add(float)  # Triton specializes on the type alone
            give(value)
        elif kind.__name__ == DESCRIPTOR:
            if device < 0:
                device = value.base.get_device()
            if device >= 0:
                ensure_context(device)
            # Triton specializes on these, not on shape and strides.
            key += (kind, value.base.dtype, *value.block_shape, getattr(value, "layout", None))
            give(value)
        else:
            add(value)
            give(value)
    if device < 0:
        kernel[grid](*args, **constants)
        if NOTES:
            _note(kernel, grid, args, None)
        return None
    active = driver.active
    if device != active.get_current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, *args, **constants)
    key += (device, *modes())
    try:
        made = _MADE.get(tuple(key))
    except TypeError:  # an argument is unhashable
        made = None
    if made is None or is_watched(kernel) or kernel.device_caches[device][0].get(made.name) is not made.compiled:
        compiled = kernel[grid](*args, **constants)
        made = None if is_watched(kernel) else _made(kernel, compiled, device, args, constants)
        if made:
            if len(_MADE) >= _MOST:
                _MADE.clear()
            _MADE[tuple(key)] = made
        if NOTES:
            _note(kernel, grid, args, made)
        return made
    x, y, z = (*grid, 1, 1)[:3]
    made.start(x, y, z, active.get_current_stream(device), *made.first, *given, *made.constants)
    if NOTES:
        _note(kernel, grid, args, made)
    return made


class _Chosen(NamedTuple):
    """What an autotuner and heuristics around ``kernel`` chose. ``asked`` is the outermost."""

    asked: Any
    kernel: Any
    grid: tuple[int, ...]
    constants: dict[str, Any]


_CHOSEN: dict[Hashable, _Chosen] = {}


def launch_tuned(kernel: Any, grid: Any, *args: Any, **options: Any) -> Mapping[str, Any] | None:
    """``kernel[grid](*args, **options)`` for kernels under an autotuner or heuristics. Returns all options of the launch.

    They are None where Triton was asked and the launch is not remembered: then ``best_config`` is this launch's.

    These are asked once for arguments of the same dtypes and values on the same GPU; what they chose is launched as by ``launch``.
    Triton would ask them at each launch: an interval of INT8 4096x4096x4096 with a scale a row was 269 us and is 107, the kernel's time (H200,
    2026-11-27, torch 2.11, triton 3.6).
    """
    key: tuple[Any, ...] | None = None
    if not has_watcher() and autotuner.Autotuner.run.__globals__ is _AUTOTUNER:
        values = [(x.dtype, x.get_device()) if isinstance(x, torch.Tensor) else x for x in args]
        key = (id(kernel), *values, *options, *options.values())
        if chosen := _CHOSEN.get(key):
            launch(chosen.kernel, chosen.grid, *args, **chosen.constants)
            return chosen.constants
    kernel[grid](*args, **options)
    if NOTES:
        _note(kernel, (), args, None)
    if key and (found := _choice(kernel, grid, args, options)):
        if len(_CHOSEN) >= _MOST:
            _CHOSEN.clear()
        _CHOSEN[key] = found
        return found.constants
    return None


def _choice(kernel: Any, grid: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> _Chosen | None:
    """What was chosen at the latest launch. None where more than that belongs to a launch, or for another compiler's kernel."""
    inner, constants = kernel, dict(options)
    given = dict(zip(kernel.arg_names, args, strict=False))
    while isinstance(inner, (autotuner.Autotuner, autotuner.Heuristics)):
        if isinstance(inner, autotuner.Autotuner):
            if inner.best_config.pre_hook is not None:
                return None
            constants |= inner.best_config.all_kwargs()
        else:
            for name, rule in inner.values.items():
                constants[name] = rule({**given, **constants})
        inner = inner.fn
    if not isinstance(inner, jit.JITFunction):
        return None
    return _Chosen(kernel, inner, grid({**given, **constants}) if callable(grid) else grid, constants)


class Noted(NamedTuple):
    """A recorded launch. ``made`` is None where Triton launched it itself, as it does while launches are watched (``watched``)."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    made: _Made | None
    watched: bool


#: Records of launches.
NOTES: Notes[Noted] = Notes()


def _note(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], made: _Made | None) -> None:
    if (notes := NOTES.here()) is not None:
        watched = isinstance(kernel, jit.JITFunction) and is_watched(kernel)
        notes.append(Noted(kernel, grid, args, made, watched))


def modes() -> tuple[Any, ...]:
    """Triton's global settings that change the compiled code."""
    return knobs.runtime.debug, knobs.compilation.instrumentation_mode


def has_watcher() -> bool:
    """Whether every launch must go through Triton: its launch functions are replaced, or a global launch hook is set."""
    if jit.JITFunction.run.__globals__ is not _JIT:
        return True
    if compiler.CompiledKernel.launch_metadata.__globals__ is not _COMPILER:
        return True
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    # A hook may be a chain, and the chain empty.
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def is_watched(kernel: Any) -> bool:
    """Whether this kernel's launches must go through Triton."""
    return bool(kernel.pre_run_hooks) or has_watcher()


def _made(kernel: Any, compiled: Any, device: int, args: tuple[Any, ...], constants: Mapping[str, Any]) -> _Made | None:
    """The launch as it is cached. None for launches only Triton can make, such as with tuples of tensors, or in an unknown version."""
    plain = all(
        isinstance(value, (torch.Tensor, int, float, str, type(None)))
        or type(value).__name__ == DESCRIPTOR
        or (type(value) is tuple and all(type(item) is int for item in value))
        for value in args
    )
    try:
        if not plain or not isinstance(kernel, jit.JITFunction) or not isinstance(compiled, compiler.CompiledKernel):
            return None
        rest = kernel.params[len(args) :]
        if not all(parameter.is_constexpr for parameter in rest):
            return None
        values = tuple(constants.get(p.name, p.default) for p in rest)
        name = next(name for name, kept in kernel.device_caches[device][0].items() if kept is compiled)
        launcher = launcher_of(compiled)
        # Descriptors as they are go to Triton's own.
        start, first, *_ = whole_launcher(compiled) if launcher.maps else launcher
        return _Made(start, first, values, compiled, name, launcher)
    except (AttributeError, LookupError, StopIteration):
        return None
