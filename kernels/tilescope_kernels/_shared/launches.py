"""Launches on the tensors' GPU; those that were made before go to the compiled kernel without Triton's search for it.

Triton binds the arguments by their names, asks of each what the kernel is specialized on and writes the options as text, at each
launch: 10 us and more of a CPU, which is longer than many kernels run.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.compiler import compiler
from triton.runtime import driver, jit

from tilescope_kernels._shared.launchers import Launcher, launcher_of, whole_launcher

#: Launches that are remembered; beyond, all are forgotten. Each set of extents is one.
_MOST = 8192


class _Made(NamedTuple):
    """A compiled kernel, what to launch it by, and the name by which Triton finds it."""

    start: Callable[..., Any]
    first: tuple[Any, ...]
    constants: tuple[Any, ...]
    compiled: Any
    name: str
    launcher: Launcher


_MADE: dict[Hashable, _Made] = {}
_JIT, _COMPILER, _TENSOR, _PARAMETER = vars(jit), vars(compiler), torch.Tensor, torch.nn.Parameter
#: Triton's and Gluon's classes have one name; to import them takes time that most kernels need not.
DESCRIPTOR = "TensorDescriptor"


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> _Made | None:  # noqa: PLR0912, PLR0915 - each costs a call
    """``kernel[grid](*args, **constants)``, on the GPU of the first tensor. Returns what was remembered of it.

    ``constants`` are what the kernel declares ``tl.constexpr``, and launch options. Whoever looks on sees the launch: hooks, what
    stands in for ``JITFunction.run``, the interpreter.
    """
    # A kernel's own hash takes as long as the rest of the key; what is remembered keeps the kernel, and with it the id.
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
            # Of a number all that Triton may specialize on is its value.
            add(value)
            give(value)
        elif kind is float:
            add(float)  # and of these only what they are
            give(value)
        elif kind.__name__ == DESCRIPTOR:
            if device < 0:
                device = value.base.get_device()
            # Triton specializes on these; extents and strides are the launch's.
            key += (kind, value.base.dtype, *value.block_shape, getattr(value, "layout", None))
            give(value)
        else:
            add(value)
            give(value)
    if device < 0:
        kernel[grid](*args, **constants)
        if _NOTES:
            _note(kernel, grid, args, None)
        return None
    active = driver.active
    if device != active.get_current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, *args, **constants)
    key += (device, *modes())
    try:
        made = _MADE.get(tuple(key))
    except TypeError:  # something in it has no hash
        made = None
    if made is None or is_watched(kernel) or kernel.device_caches[device][0].get(made.name) is not made.compiled:
        compiled = kernel[grid](*args, **constants)
        made = None if is_watched(kernel) else _made(kernel, compiled, device, args, constants)
        if made:
            if len(_MADE) >= _MOST:
                _MADE.clear()
            _MADE[tuple(key)] = made
        if _NOTES:
            _note(kernel, grid, args, made)
        return made
    x, y, z = (*grid, 1, 1)[:3]
    made.start(x, y, z, active.get_current_stream(device), *made.first, *given, *made.constants)
    if _NOTES:
        _note(kernel, grid, args, made)
    return made


def launch_tuned(kernel: Any, grid: Any, *args: Any, **options: Any) -> None:
    """``kernel[grid](*args, **options)`` of a kernel that has an autotuner or heuristics around it, or that asks Triton for memory."""
    kernel[grid](*args, **options)
    if _NOTES:
        _note(kernel, (), args, None)


class Noted(NamedTuple):
    """A launch, and what was remembered of it: None where it is Triton's own, as it is where somebody looks on (``watched``)."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    made: _Made | None
    watched: bool


#: Notes that are being taken, by thread: gradients are computed in a thread of their own.
_NOTES: dict[int, list[Noted]] = {}


@contextlib.contextmanager
def noted() -> Iterator[list[Noted]]:
    """The launches of this thread while it is active."""
    thread = threading.get_ident()
    notes = _NOTES[thread] = []
    try:
        yield notes
    finally:
        del _NOTES[thread]


def is_noted() -> bool:
    """Whether the launches of this thread are noted."""
    return threading.get_ident() in _NOTES


def _note(kernel: Any, grid: tuple[int, ...], args: tuple[Any, ...], made: _Made | None) -> None:
    if (notes := _NOTES.get(threading.get_ident())) is not None:
        watched = isinstance(kernel, jit.JITFunction) and is_watched(kernel)
        notes.append(Noted(kernel, grid, args, made, watched))


def modes() -> tuple[Any, ...]:
    """What else Triton compiles by."""
    return knobs.runtime.debug, knobs.compilation.instrumentation_mode


def has_watcher() -> bool:
    """Whether launches have to be Triton's own, because somebody stands in for what makes them or has a hook in all."""
    if jit.JITFunction.run.__globals__ is not _JIT:
        return True
    if compiler.CompiledKernel.launch_metadata.__globals__ is not _COMPILER:
        return True
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    # Hooks are a chain, which may be empty.
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def is_watched(kernel: Any) -> bool:
    """Whether this kernel's launches have to be Triton's own."""
    return bool(kernel.pre_run_hooks) or has_watcher()


def _made(kernel: Any, compiled: Any, device: int, args: tuple[Any, ...], constants: Mapping[str, Any]) -> _Made | None:
    """What launches this again; None for what only Triton can launch, such as tuples of tensors, or in another version."""
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
