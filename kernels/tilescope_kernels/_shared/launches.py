"""Launches kernels on the tensors' GPU. A kernel that was launched before is found in one lookup.

At each launch Triton binds arguments by name, specializes on each of them and writes the options as text, and an autotuner does so
several times. ``launch`` keeps what Triton found beside Triton's own entry, in ``kernel.device_caches``.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.compiler import compiler
from triton.runtime import autotuner, driver, jit

#: Triton's autotuner keeps the arguments of a call in itself, so only one thread may use it at a time.
_LOCK = threading.RLock()
_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
#: The name of Triton's class and of Gluon's. Importing either takes long.
_DESCRIPTOR = "TensorDescriptor"
_INT32 = range(-(2**31), 2**31)
_WRAPPERS = autotuner.Autotuner, autotuner.Heuristics


class _Found(NamedTuple):
    """A compiled kernel with what Triton passes it beside the arguments. ``grid`` is what a function of them gave, else None."""

    start: Any
    first: tuple[Any, ...]
    constants: tuple[Any, ...]
    grid: tuple[int, ...] | None


def launch(kernel: Any, grid: Any, *args: Any, **constants: Any) -> None:
    """``kernel[grid](*args, **constants)`` on the GPU of the first tensor.

    ``kernel`` may be wrapped in an autotuner and heuristics. ``grid`` may be a function of all arguments, and of nothing else.
    ``constants`` are ``tl.constexpr`` parameters and launch options. Triton launches where there is no GPU, where a hook or a
    profiler observes launches, and where no earlier launch had such arguments.
    """
    function = kernel
    while isinstance(function, _WRAPPERS):
        function = function.fn
    by_value = function is not kernel or callable(grid)
    key, given, device = _described(args, by_value)
    if device >= 0 and device != driver.active.get_current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *args, **constants)
        return
    is_cached = bool(given) and isinstance(function, jit.JITFunction) and not is_observed(function)
    if is_cached:
        key += (*constants, *constants.values(), knobs.runtime.debug, knobs.compilation.instrumentation_mode)
        cache, signature = function.device_caches[device][0], (kernel if by_value else None, *key)
        if found := cache.get(signature):
            x, y, z = (*(found.grid or grid), 1, 1)[:3]
            found.start(x, y, z, driver.active.get_current_stream(device), *found.first, *given, *found.constants)
            return
    with _LOCK:
        compiled = kernel[grid](*args, **constants)
    rest = function.params[len(args) :] if is_cached else ()
    if is_cached and isinstance(compiled, compiler.CompiledKernel) and all(each.is_constexpr for each in rest):
        cache[signature] = _found(function, compiled, args, grid)


def _described(args: tuple[Any, ...], by_value: bool) -> tuple[list[Any], list[Any], int]:
    """What Triton specializes on, the arguments with addresses in place of tensors, and the GPU (-1 without one).

    The second is empty where only Triton can launch: without a GPU, and with arguments such as tensors of a subclass. ``by_value``
    distinguishes all integers, as an autotuner may.
    """
    key: list[Any] = []
    given: list[Any] = []
    add, give = key.append, given.append
    device, is_known = -1, True
    for value in args:
        kind = type(value)
        if kind is _TENSOR or kind is _PARAMETER:
            if device < 0:
                device = value.get_device()
            address = value.data_ptr()
            add(value.dtype)
            add(address & 15)
            give(address)
            continue
        give(value)
        if kind is int:
            # Triton compiles 1 into the code, and distinguishes multiples of 16 and integers of more than 32 bits.
            add(value if by_value or value == 1 or value not in _INT32 else 16 if value & 15 == 0 else 0)
        elif kind is float or value is None:
            add(kind)
        elif kind.__name__ == _DESCRIPTOR:
            if device < 0:
                device = value.base.get_device()
            if device >= 0:
                _ensure_context(device)
            key += (kind, value.base.dtype, *value.block_shape, getattr(value, "layout", None))
        elif kind is bool or (kind is tuple and all(type(item) is int for item in value)):
            key += (kind, value)
        else:
            is_known = False
    return key, given if is_known and device >= 0 else [], device


def _found(function: Any, compiled: Any, args: tuple[Any, ...], grid: Any) -> _Found:
    """What launches ``compiled`` again with arguments like ``args``."""
    # The compiler's constants have those that an autotuner, heuristics and defaults added.
    known = compiled.src.constants
    constants = tuple(known.get((place,)) for place in range(len(args), len(function.params)))
    extents = grid(dict(zip(function.arg_names, (*args, *constants), strict=True))) if callable(grid) else None
    hooks = (None, None, None)
    return _Found(compiled.run, (compiled.function, compiled.packed_metadata, *hooks), constants, extents)


def is_observed(function: Any) -> bool:
    """Whether Triton must make a launch itself: its own functions are replaced, or a launch hook is set."""
    if jit.JITFunction.run.__module__ != jit.__name__ or autotuner.Autotuner.run.__module__ != autotuner.__name__:
        return True
    if compiler.CompiledKernel.launch_metadata.__module__ != compiler.__name__ or function.pre_run_hooks:
        return True
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    # A hook may be a chain, and the chain empty.
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


class _Thread(threading.local):
    """A thread's state."""

    has_context = False


_THREAD = _Thread()


def _ensure_context(device: int) -> None:
    """Give this thread a CUDA context, without which no descriptor can be encoded. Autograd's threads start without one."""
    if not _THREAD.has_context:
        torch.cuda.mem_get_info(device)
        _THREAD.has_context = True
