"""Tensors that claim to be on an assumed GPU. Imports torch: worker-side only.

They are ordinary tensors in the memory of this process, or meta tensors, so that operators, the interpreter and the compiler
work on them as always. Their storage has a mark that means "cuda". It is set when ``device="cuda"`` makes a tensor or a tensor is
moved there. Views share it, and a dispatch mode below autograd sets it on results of marked tensors. Python's ``Tensor.device`` and
similar attributes read it.

A tensor subclass would lose the mark in a backward pass, where PyTorch makes the gradients. A wrapper subclass whose device is
"cuda" in C++ too has no memory that a kernel could read by its address, and needs a guard that PyTorch never removes.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tilescope_kernels import dispatch
from torch.overrides import _get_current_function_mode_stack
from torch.utils import dlpack
from torch.utils._device import DeviceContext

from tilescope.execution import fresh_memory

#: Whether an operator has a kernel of its own for a key, or one for all devices.
_has_computed_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
#: PyTorch's own device of a tensor.
_DEVICE: Any = torch._C.TensorBase.device.__get__
_MARK = "_on_assumed_gpu"
#: Mark of pinned host memory.
_PINNED = "_reached_by_assumed_gpu"
_GPU = torch.device("cuda", 0)
#: Methods of tensors and functions of ``torch`` that make a tensor like another, perhaps on another device.
_NEW = ("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
#: PyTorch's allocator allocates multiples of this many bytes (``kMinBlockSize`` of CUDACachingAllocator).
BLOCK = 512


def true_device(tensor: torch.Tensor) -> torch.device:
    """The tensor's real device, also while a GPU is assumed."""
    device: torch.device = _DEVICE(tensor)
    return device


def reachable(tensor: torch.Tensor) -> bool:
    """Whether a kernel on the GPU could access the tensor: it is there, in pinned host memory, or empty."""
    if true_device(tensor).type != "cpu" or on_assumed_gpu(tensor):
        return True
    storage = _storage(tensor)
    return (
        bool(getattr(storage, _PINNED, False)) or not isinstance(storage, torch.UntypedStorage) or not storage.nbytes()
    )


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse tensors, and those that wrap others
        return tensor


def on_assumed_gpu(tensor: torch.Tensor) -> bool:
    return bool(getattr(_storage(tensor), _MARK, False))


def _mark(tensor: torch.Tensor, on_gpu: bool) -> torch.Tensor:
    storage = _storage(tensor)
    if on_gpu and isinstance(storage, torch.UntypedStorage) and not getattr(storage, _MARK, False):
        memory.count(storage)
    setattr(storage, _MARK, on_gpu)
    return tensor


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    setattr(_storage(tensor), _PINNED, True)
    return tensor


def _type(device: Any) -> str:
    """The device's type: ``cuda`` for ``"cuda:0"``, ``torch.device("cuda")`` and ``0``; empty for None.

    Raises RuntimeError for a second GPU, as CUDA does on a machine with one.
    """
    if device is None:
        return ""
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type == "cuda" and (found.index or 0) > 0:
        raise RuntimeError(
            f"{found} is an invalid device: one GPU is assumed: use cuda:0, or run the script where there are more"
        )
    return found.type


def _default_device() -> torch.device | None:
    """The device of the innermost ``with torch.device``, or None. PyTorch's own function would make a tensor to find out."""
    modes = reversed(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)


class _GeneratorType(type(torch._C.Generator)):  # type: ignore[misc]
    """The type of ``_Generator``, of which every generator is an instance."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, torch._C.Generator)


class _Generator(torch._C.Generator, metaclass=_GeneratorType):
    """Stands for ``torch.Generator``: a generator of the host that claims the device it was made for."""

    _kind: str

    def __new__(cls, device: Any = "cpu") -> Any:
        kind = _type(device)
        made: Any = torch._C.Generator.__new__(cls, device="cpu" if kind == "cuda" else device)  # type: ignore[call-arg]
        made._kind = kind
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _GPU if self._kind == "cuda" else torch.device(self._kind)


class MarkingMode(dispatch.OnLooker):
    """Makes tensors for the GPU in ``place`` (``cpu`` or ``meta``), and marks them and what is computed from them.

    Operators with a CUDA implementation in Python, as custom operators may have, are called with that implementation.
    """

    def __init__(self, place: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place = place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        given = list(fresh_memory.tensors((args, kwargs)))
        asked = _type(kwargs.get("device"))
        pinned = kwargs.pop("pin_memory", None)
        if func is torch.ops.aten._pin_memory.default:
            return _pinned(args[0].clone())
        on_gpu = asked == "cuda" or any(map(on_assumed_gpu, given))
        reduced = fresh_memory.operated(func, args, kwargs) if on_gpu else None
        result = self._call(func, on_gpu, args, kwargs)
        if pinned:
            return _pinned(result)
        # Results are marked whatever device was named: PyTorch's own code names the host for the tensor's real place, and callers
        # that want the host go through ``DeviceReplacements``.
        if on_gpu:
            old = [id(_storage(tensor)) for tensor in given]
            for tensor in fresh_memory.tensors(result):
                if id(_storage(tensor)) not in old:
                    _mark(tensor, True)
                    fresh_memory.made(func, _storage(tensor), reduced)
        return result

    def _call(self, func: Any, on_gpu: bool, args: Any, kwargs: Any) -> Any:
        if _on_cuda_in_python(func) and (on_gpu or not _has_computed_kernel(func.name(), "CPU")):
            with self, _computing(False):
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *args, **kwargs)
        if _type(kwargs.get("device")) == "cuda":
            kwargs["device"] = torch.device(self.place)
        with _computing(True):
            return func(*args, **kwargs)


_inside = threading.local()


@contextlib.contextmanager
def _computing(operator: bool) -> Iterator[None]:
    """While an ``operator`` computes in this thread, tensors tell their real device, which PyTorch's own Python code needs."""
    before, _inside.operator = getattr(_inside, "operator", False), operator
    try:
        yield
    finally:
        _inside.operator = before


def _on_cuda_in_python(func: Any) -> bool:
    """Whether an operator has a CUDA implementation in Python. One in C++ would get addresses of host memory."""
    namespace, _, name = func.name().partition("::")
    written = {f"{namespace}/{name}/CUDA", f"{namespace}/{name.partition('.')[0]}/CUDA"}
    return bool(written & torch.library._impls)


class DeviceReplacements:
    """Replacements of PyTorch's functions and attributes that show marked tensors as being on the GPU."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._tensor = torch.tensor

    def replacements(self) -> Iterator[tuple[Any, str, Any]]:
        tensor = torch.Tensor
        yield tensor, "device", property(self._device)
        yield tensor, "is_cuda", property(lambda x: self._on_gpu(x) or _DEVICE(x).type == "cuda")
        yield tensor, "is_cpu", property(lambda x: _DEVICE(x).type == "cpu" and not self._on_gpu(x))
        yield tensor, "get_device", lambda x: 0 if self._on_gpu(x) else torch._C.TensorBase.get_device(x)
        yield tensor, "to", self._to
        yield tensor, "cuda", self._cuda
        yield tensor, "cpu", lambda x, **layout: self._to(x, "cpu", **layout)
        yield tensor, "new_tensor", self._new_tensor
        yield tensor, "__deepcopy__", _deep_copy
        yield tensor, "record_stream", lambda _x, _stream: None
        yield tensor, "__new__", _new
        for name in ("tensor", "as_tensor", "asarray"):
            yield torch, name, functools.partial(self._made, getattr(torch, name))
        for owner, names in ((tensor, _NEW), (torch, _LIKE)):
            for name in names:
                yield owner, name, functools.partial(_perhaps_on_host, getattr(owner, name))
        # Code that PyTorch's compiler generates allocates by this.
        yield torch._C._dynamo.guards, "_empty_strided_cuda", _empty
        for owner in (torch, dlpack):
            yield owner, "from_dlpack", _shared
        yield torch, "Generator", _Generator
        for name, answer in (("__enter__", _enter), ("__exit__", _exit)):
            yield torch.autocast, name, functools.partial(answer, getattr(torch.autocast, name))

    def _on_gpu(self, tensor: torch.Tensor) -> bool:
        if getattr(_inside, "operator", False):
            return False
        really = _DEVICE(tensor).type
        return really == self.place and (really == "meta" or on_assumed_gpu(tensor))

    def _device(self, tensor: torch.Tensor) -> torch.device:
        return _GPU if self._on_gpu(tensor) else true_device(tensor)

    def _to(self, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        rest = list(args)
        if (rest and isinstance(rest[0], torch.Tensor)) or "other" in kwargs:
            other = kwargs.pop("other") if "other" in kwargs else rest.pop(0)
            device, rest = other.device, [other.dtype, *rest]
        elif "device" in kwargs:
            device = kwargs.pop("device")
        elif rest and not isinstance(rest[0], (torch.dtype, bool)):
            device = rest.pop(0)
            if rest and rest[0] is None:  # ``Module.to`` passes None for "the same dtype"
                rest[0] = tensor.dtype
        else:
            device = None
        kind = _type(device)
        original = torch._C.TensorBase.to
        really = true_device(tensor).type
        if kind not in ("", "cuda", "cpu") or (kind == "cpu" and really != "cpu"):
            return original(tensor, device, *rest, **kwargs)
        if not kind or (kind == "cuda") == self._on_gpu(tensor):  # already there
            return original(tensor, *rest, **kwargs) if rest or kwargs else tensor
        if not any(isinstance(value, torch.dtype) for value in (*rest, *kwargs.values())):
            rest = [tensor.dtype, *rest]
        kwargs["copy"] = True
        moved = original(tensor, self.place, *rest, **kwargs) if kind == "cuda" else original(tensor, *rest, **kwargs)
        return _mark(moved, kind == "cuda")

    def _cuda(self, tensor: torch.Tensor, device: Any = None, non_blocking: Any = False, **layout: Any) -> Any:
        return self._to(tensor, "cuda" if device is None else device, non_blocking=bool(non_blocking), **layout)

    def _made(self, original: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
        """Makes a tensor of data on the host and moves it."""
        if _type(_default_device() if device is None else device) != "cuda":
            return original(*args, **kwargs) if device is None else original(*args, device=device, **kwargs)
        gradient = kwargs.pop("requires_grad", False)
        if original is not self._tensor and args and isinstance(args[0], torch.Tensor):
            made = args[0]
            dtype = kwargs.get("dtype") or (args[1] if len(args) > 1 else None)
            made = self._to(made, "cuda", *([dtype] if dtype else []))
            return made.requires_grad_() if gradient else made
        return self._to(original(*args, device="cpu", **kwargs), "cuda").requires_grad_(gradient)

    def _new_tensor(self, tensor: torch.Tensor, data: Any, *, device: Any = None, **kwargs: Any) -> Any:
        kwargs = {"dtype": tensor.dtype, **kwargs}
        return self._made(self._tensor, data, device=device or tensor.device, **kwargs)


def _new(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """A tensor of a subclass, too: PyTorch's own way cannot make one of what a dispatch mode has given a Python object."""
    made = torch._C.TensorBase.__new__(torch.Tensor, *args, **kwargs)
    return made if kind is torch.Tensor else made.as_subclass(kind)


def _empty(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


def _perhaps_on_host(original: Any, *args: Any, **kwargs: Any) -> Any:
    made = original(*args, **kwargs)
    return _mark(made, False) if _type(kwargs.get("device")) == "cpu" else made


def _shared(given: Any, *, original: Any = dlpack.from_dlpack, **layout: Any) -> torch.Tensor:
    """A tensor from DLPack, marked if its memory belongs to a marked tensor: a capsule does not tell."""
    made: torch.Tensor = original(given, **layout)
    address = made.untyped_storage().data_ptr()
    kinds = (torch.Tensor, torch.nn.Parameter)
    beside = [thing for thing in gc.get_objects() if type(thing) in kinds and on_assumed_gpu(thing)]
    return _mark(
        made,
        any(_storage(one).data_ptr() <= address < _storage(one).data_ptr() + _storage(one).nbytes() for one in beside),
    )


def _deep_copy(tensor: torch.Tensor, memo: dict[int, Any], *, original: Any = torch.Tensor.__deepcopy__) -> Any:
    return _mark(original(tensor, memo), on_assumed_gpu(tensor))


def _enter(original: Any, autocast: Any) -> Any:
    """Enters ``autocast("cuda")`` and an autocast of the host beside it, which casts by the host's lists of operators."""
    entered = original(autocast)
    if autocast.device == "cuda":
        beside = torch.autocast("cpu", autocast.fast_dtype, autocast._enabled)
        original(beside)
        autocast.__dict__.setdefault("_besides", []).append(beside)
    return entered


def _exit(original: Any, autocast: Any, *error: Any) -> Any:
    if autocast.device == "cuda" and autocast.__dict__.get("_besides"):
        original(autocast._besides.pop(), *error)
    return original(autocast, *error)


@contextlib.contextmanager
def replaced(replacements: Iterator[tuple[Any, str, Any]]) -> Iterator[None]:
    """While active, applies ``replacements`` (owner, name, value); attributes that were absent are removed afterwards.

    Functions that TorchScript knows as operators stay operators. A replaced function that a module has kept calls the original one
    afterwards.
    """
    absent = object()
    done: list[tuple[Any, str, Any]] = []
    operators = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    scripted: list[int] = []
    active = True

    def while_active(answer: Any, original: Any) -> Any:
        if original is None or isinstance(answer, type) or not callable(answer):
            return answer

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (answer if active else original)(*args, **kwargs)

        return call

    try:
        for owner, name, answer in replacements:
            value = while_active(answer, getattr(owner, name, None))
            before = vars(owner).get(name, absent)
            done.append((owner, name, before))
            setattr(owner, name, value)
            if id(before) in operators:
                operators[id(value)] = operators[id(before)]
                scripted.append(id(value))
        yield
    finally:
        active = False
        for key in scripted:
            del operators[key]
        for owner, name, before in reversed(done):
            if before is absent:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


class Memory:
    """Bytes in use: ``used`` now, and ``most`` at a time since ``reset_peak``."""

    def __init__(self) -> None:
        self.used = self.most = 0

    def count(self, storage: torch.UntypedStorage) -> None:
        held = -(-storage.nbytes() // BLOCK) * BLOCK
        self.used += held
        self.most = max(self.most, self.used)
        weakref.finalize(storage, self._gone, held).atexit = False

    def answers(self) -> dict[str, Callable[..., int]]:
        """Answers to ``torch.cuda``'s functions, by name. Reserved memory is the most in use, which is its lower bound."""
        return {
            "memory_allocated": lambda device=None: self.used,
            "max_memory_allocated": lambda device=None: self.most,
            "memory_reserved": lambda device=None: self.most,
            "max_memory_reserved": lambda device=None: self.most,
        }

    def reset_peak(self) -> None:
        self.most = self.used

    def _gone(self, held: int) -> None:
        self.used -= held


#: The memory of this process's assumed GPU.
memory = Memory()
