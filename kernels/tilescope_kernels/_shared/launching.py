"""Launches of kernels: grids, properties of the tensors' GPU, and ``launch``, which finds a kernel that was launched before in one lookup.

At each launch Triton binds arguments by name, specializes on each of them and writes the options as text. ``launch`` keeps what
Triton found beside Triton's own entry, in ``kernel.device_caches``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
from triton import knobs
from triton.compiler import compiler
from triton.runtime import cache, driver, jit

_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
#: The name of Triton's class and of Gluon's. Importing either takes long.
_DESCRIPTOR = "TensorDescriptor"
#: The least integer that int32 does not hold.
BEYOND = 2**31
_INT32 = range(-BEYOND, BEYOND)
#: Whether this Triton has the functions that the kernels in Gluon call: 3.9 removed some.
GLUON = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """``kernel[grid](*args, **constants)`` on the GPU of the first tensor.

    ``constants`` are ``tl.constexpr`` parameters and launch options. Triton launches where there is no GPU, where a hook or a
    profiler observes launches, and where no earlier launch had such arguments.
    """
    key, given, device = _described(args, kernel.params if getattr(kernel, "do_not_specialize", ()) else ())
    is_cached = bool(given) and isinstance(kernel, jit.JITFunction) and not is_observed(kernel)
    if is_cached:
        _make_ready()
    if device >= 0 and device != driver.active.get_current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *args, **constants)
        return
    if is_cached:
        key += (*constants, *constants.values(), knobs.runtime.debug, knobs.compilation.instrumentation_mode)
        launched, signature = kernel.device_caches[device][0], (None, *key)
        if found := launched.get(signature):
            (start, first, last), (x, y, z) = found, (*grid, 1, 1)[:3]
            start(x, y, z, driver.active.get_current_stream(device), *first, *given, *last)
            return
        if THREAD.prepares and not torch.cuda.is_current_stream_capturing():
            from tilescope_kernels._shared import compiling  # noqa: PLC0415 - to compile alone

            step, THREAD.prepares = THREAD.prepares, None
            compiling.compile_step(*step)
    for compiled in PENDING.get(kernel, ()):
        compiled.result(ignore_errors=True)
    PENDING.pop(kernel, None)
    if THREAD.started is not None:
        from tilescope_kernels._shared import compiling  # noqa: PLC0415 - to compile alone

        kernel.compile = compiling.compile_both
        if hasattr(compiled := kernel.warmup(*args, grid=grid, **constants), "result"):
            THREAD.started[compiled] = kernel
        return
    compiled = kernel[grid](*args, **constants)
    if is_cached and isinstance(compiled, compiler.CompiledKernel):
        rest = range(len(args), len(kernel.params))
        if all(kernel.params[place].is_constexpr for place in rest):
            # The compiler's constants have those that defaults added. Nobody observes the launch, so there are no hooks.
            last = tuple(compiled.src.constants.get((place,)) for place in rest)
            launched[signature] = compiled.run, (compiled.function, compiled.packed_metadata, None, None, None), last


@functools.cache
def _make_ready() -> None:
    """Hash Triton's files, which each compile asks for, while a C compiler makes Triton's driver."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(cache.triton_key)
        driver.active.get_current_device()


def _described(args: tuple[Any, ...], parameters: Sequence[Any]) -> tuple[list[Any], list[Any], int]:
    """What Triton specializes on, the arguments with addresses in place of tensors, and the GPU (-1 without one).

    ``parameters`` are the kernel's, which may say that Triton does not specialize on them, or none.
    The second is empty where only Triton can launch: without a GPU, and with arguments such as tensors of a subclass.
    """
    key: list[Any] = []
    given: list[Any] = []
    add, give = key.append, given.append
    device, is_known = -1, True
    for place, value in enumerate(args):
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
            if parameters and parameters[place].do_not_specialize and value in _INT32:
                add(0)
            else:
                add(value if value == 1 or value not in _INT32 else 16 if value & 15 == 0 else 0)
        elif kind is float or value is None:
            add(kind)
        elif kind.__name__ == _DESCRIPTOR:
            if device < 0:
                device = value.base.get_device()
            if device >= 0 and not THREAD.has_context:
                # Without a CUDA context no descriptor can be encoded, and autograd's threads start without one.
                torch.cuda.mem_get_info(device)
                THREAD.has_context = True
            key += (kind, value.base.dtype, *value.block_shape, getattr(value, "layout", None))
        elif kind is bool or (kind is tuple and {int}.issuperset(map(type, value))):
            key += (kind, value)
        else:
            is_known = False
    return key, given if is_known and device >= 0 else [], device


def is_observed(function: Any) -> bool:
    """Whether Triton must make a launch itself: its own functions are replaced, or a launch hook is set."""
    if jit.JITFunction.run.__module__ != jit.__name__:
        return True
    if compiler.CompiledKernel.launch_metadata.__module__ != compiler.__name__ or function.pre_run_hooks:
        return True
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    # A hook may be a chain, and the chain empty.
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


class _Thread(threading.local):
    """A thread's state."""

    has_context = False
    #: What ``compiled_alone`` yields while it is active.
    started: dict[Any, Any] | None = None
    #: The current call of an operator, its arguments, and whether it wants a gradient: what ``compile_step`` takes.
    prepares: tuple[Callable[..., Any], tuple[Any, ...], bool] | None = None


THREAD = _Thread()
#: By function what other threads compile of it. A launch waits for that.
PENDING: dict[Any, list[Any]] = {}


def cdiv(numerator: int, denominator: int) -> int:
    """The quotient of two integers, rounded up."""
    return -(-numerator // denominator)


def next_power_of_2(least: int) -> int:
    """The smallest power of two >= ``least``, at least 1. ``triton.next_power_of_2(0)`` is 0."""
    return 1 << max(0, least - 1).bit_length()


@functools.cache
def _properties(device: torch.device) -> Any:
    return torch.cuda.get_device_properties(device)


def multiprocessors(tensor: torch.Tensor) -> int:
    """Number of SMs of the tensor's GPU, the size of persistent grids.

    For a tensor on ``meta`` it is the current GPU's. Without a GPU it is an H200's 132, so that a launch compiled offline or interpreted has the grid of the recordings.
    """
    device = tensor.device
    if tensor.is_meta and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    return int(_properties(device).multi_processor_count) if device.type == "cuda" else 132


def capability(tensor: torch.Tensor) -> int:
    """Compute capability of the GPU that a launch is for, such as 90 for Hopper; 0 where it is interpreted.

    For a meta tensor it is the capability of Triton's compilation target.
    """
    if tensor.is_cuda:
        found = _properties(tensor.device)
        return int(10 * found.major + found.minor)
    try:
        target = driver.active.get_current_target() if tensor.is_meta else None
    except RuntimeError:  # no GPU and no target
        return 0
    return int(target.arch) if target and target.backend == "cuda" else 0


def gluon_capability(tensor: torch.Tensor) -> int:
    """The capability that kernels in Gluon are chosen by; 0 where Triton lacks what they call, so that other kernels serve."""
    return capability(tensor) if GLUON else 0


def shared_memory(tensor: torch.Tensor) -> int:
    """Bytes of shared memory that a thread block may use on the tensor's GPU; an H200's where a launch is interpreted.

    By compute capability: CUDA C++ Programming Guide, technical specifications.
    """
    if tensor.is_cuda:
        return int(_properties(tensor.device).shared_memory_per_block_optin)
    return {80: 163, 86: 99, 87: 163, 89: 99, 120: 99, 121: 99}.get(capability(tensor), 227) * 1024
