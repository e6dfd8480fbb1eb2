"""Launches on the tensors' GPU; those that were made before go to the compiled kernel without Triton's search for it.

Triton binds the arguments by their names, asks of each what the kernel is specialized on and writes the options as text, at each
launch: 10 us and more of a CPU, which is longer than many kernels run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import torch
from triton import knobs
from triton.compiler import compiler
from triton.runtime import driver, jit

#: Launches that are remembered; beyond, all are forgotten. Each set of extents is one.
_MOST = 8192


class _Made(NamedTuple):
    """A compiled kernel, what to launch it by, and the name by which Triton finds it."""

    run: Callable[..., Any]
    function: Any
    metadata: Any
    constants: tuple[Any, ...]
    compiled: Any
    name: str


_MADE: dict[Hashable, _Made] = {}
_JIT, _COMPILER, _TENSOR, _PARAMETER = vars(jit), vars(compiler), torch.Tensor, torch.nn.Parameter
#: Triton's and Gluon's classes have one name; to import them takes time that most kernels need not.
_DESCRIPTOR = "TensorDescriptor"


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:  # noqa: PLR0912 - each costs a call
    """``kernel[grid](*args, **constants)``, on the GPU of the first tensor.

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
        elif kind.__name__ == _DESCRIPTOR:
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
        return
    active = driver.active
    if device != active.get_current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *args, **constants)
        return
    key += (device, knobs.runtime.debug, knobs.compilation.instrumentation_mode)
    try:
        made = _MADE.get(tuple(key))
    except TypeError:  # something in it has no hash
        made = None
    if made is None or _is_watched(kernel) or kernel.device_caches[device][0].get(made.name) is not made.compiled:
        compiled = kernel[grid](*args, **constants)
        if not _is_watched(kernel) and (found := _made(kernel, compiled, device, args, constants)):
            if len(_MADE) >= _MOST:
                _MADE.clear()
            _MADE[tuple(key)] = found
        return
    x, y, z = (*grid, 1, 1)[:3]
    made.run(
        x,
        y,
        z,
        active.get_current_stream(device),
        made.function,
        made.metadata,
        None,
        None,
        None,
        *given,
        *made.constants,
    )


def _is_watched(kernel: Any) -> bool:
    """Whether a launch has to be Triton's own, because somebody stands in for what makes it or has a hook in it."""
    if jit.JITFunction.run.__globals__ is not _JIT:
        return True
    if compiler.CompiledKernel.launch_metadata.__globals__ is not _COMPILER:
        return True
    runtime = knobs.runtime
    enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
    # Hooks are a chain, which may be empty.
    return bool(kernel.pre_run_hooks or getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _made(kernel: Any, compiled: Any, device: int, args: tuple[Any, ...], constants: Mapping[str, Any]) -> _Made | None:
    """What launches this again; None for what only Triton can launch, such as tuples of tensors, or in another version."""
    plain = all(
        isinstance(value, (torch.Tensor, int, float, str, type(None)))
        or type(value).__name__ == _DESCRIPTOR
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
        return _Made(compiled.run, compiled.function, compiled.packed_metadata, values, compiled, name)
    except (AttributeError, LookupError, StopIteration):
        return None
