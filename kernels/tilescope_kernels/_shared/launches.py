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

from tilescope_kernels._shared.launchers import Descriptor, Launcher, launcher_of, whole_launcher

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
_DESCRIPTOR = "TensorDescriptor"


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> _Made | None:  # noqa: PLR0912 - each costs a call
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
        return None
    active = driver.active
    if device != active.get_current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, *args, **constants)
    key += (device, *_modes())
    try:
        made = _MADE.get(tuple(key))
    except TypeError:  # something in it has no hash
        made = None
    if made is None or _is_watched(kernel) or kernel.device_caches[device][0].get(made.name) is not made.compiled:
        compiled = kernel[grid](*args, **constants)
        made = None if _is_watched(kernel) else _made(kernel, compiled, device, args, constants)
        if made:
            if len(_MADE) >= _MOST:
                _MADE.clear()
            _MADE[tuple(key)] = made
        return made
    x, y, z = (*grid, 1, 1)[:3]
    made.start(x, y, z, active.get_current_stream(device), *made.first, *given, *made.constants)
    return made


def signature(*tensors: torch.Tensor) -> Hashable:
    """All that an operator may choose launches by, but for addresses: extents, strides, and which tensors are one and the same."""
    first, same = tensors[0], [*map(id, tensors)]
    extents = [(tensor.dtype, tensor.shape, tensor.stride(), same.index(id(tensor))) for tensor in tensors]
    return (first.get_device(), *extents)


class Launches:
    """An operator's launches, to be made again with other tensors of the same extents, strides and dtypes.

    What an operator decides by those and what ``launch`` looks up by them takes longer than to launch. It creates this with the
    tensors it is given and returns, allocates what else the kernels need and launches them by its methods, and keeps it by the
    tensors' ``signature``. Later it calls it with the tensors of another call.
    """

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._tensors = list(tensors)
        self._scratch: list[tuple[tuple[int, ...], torch.dtype]] = []
        self._made: list[tuple[Any, ...]] = []
        self._complete = True
        self._device = tensors[0].get_device()
        self._modes = _modes()

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor that the kernels use and nobody else."""
        tensor = torch.empty(shape, dtype=dtype, device=self._tensors[0].device)
        self._tensors.append(tensor)
        self._scratch.append((shape, dtype))
        return tensor

    def launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        """As ``launches.launch``."""
        made = launch(kernel, grid, *args, **constants)
        if made is None:
            self._complete = False
            return
        places = {id(tensor): place for place, tensor in enumerate(self._tensors)}
        given: list[Any] = []
        pointers, tiles = [], []
        facts = iter(made.launcher.maps)
        for value in args:
            described = type(value).__name__ == _DESCRIPTOR
            tensor = value.base if described else value
            if not isinstance(tensor, torch.Tensor):
                given.append(value)
                continue
            if id(tensor) not in places:
                self._complete = False
                return
            place, which = len(given), places[id(tensor)]
            given.append(None)
            if described:
                descriptor = Descriptor(value, made.launcher.make_map, next(facts, None))
                tiles.append((place, which, descriptor))
                given += descriptor.rest
            else:
                pointers.append((place, which))
        self._made.append((kernel, made, (*grid, 1, 1)[:3], given, pointers, tiles))

    def keep(self, where: dict[Hashable, Launches], key: Hashable) -> None:
        """Remember this by ``key``, if all of it can be made again. It then holds no tensor."""
        self._alignment = [tensor.data_ptr() & 15 for tensor in self._tensors]
        self._tensors = []
        if self._complete and self._made:
            if len(where) >= _MOST:
                where.clear()
            where[key] = self

    def __call__(self, *tensors: torch.Tensor) -> bool:
        """Whether they were made; not where somebody looks on, where an address is aligned otherwise, or on another GPU."""
        active, device = driver.active, self._device
        if device != active.get_current_device() or _modes() != self._modes:
            return False
        for kernel, made, *_ in self._made:
            if _is_watched(kernel) or kernel.device_caches[device][0].get(made.name) is not made.compiled:
                return False
        if self._scratch:
            where = tensors[0].device
            tensors += tuple([torch.empty(shape, dtype=dtype, device=where) for shape, dtype in self._scratch])
        addresses = [tensor.data_ptr() for tensor in tensors]
        if [address & 15 for address in addresses] != self._alignment:
            return False
        stream = active.get_current_stream(device)
        for _, made, (x, y, z), template, pointers, tiles in self._made:
            given = template.copy()
            for place, which in pointers:
                given[place] = addresses[which]
            for place, which, descriptor in tiles:
                given[place] = descriptor.of(tensors[which], addresses[which])
            launcher = made.launcher
            launcher.start(x, y, z, stream, *launcher.first, *given, *made.constants)
        return True


def _modes() -> tuple[Any, ...]:
    """What else Triton compiles by."""
    return knobs.runtime.debug, knobs.compilation.instrumentation_mode


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
        launcher = launcher_of(compiled)
        # Descriptors as they are go to Triton's own.
        start, first, *_ = whole_launcher(compiled) if launcher.maps else launcher
        return _Made(start, first, values, compiled, name, launcher)
    except (AttributeError, LookupError, StopIteration):
        return None
