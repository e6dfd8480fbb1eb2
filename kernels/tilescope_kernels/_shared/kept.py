"""Replays an operator's launches, so that a repeated call skips its checks, lookups and specialization.

Those take longer than the launch. Two calls have the same signature when their tensors agree in dtype, shape, strides and alignment, and
their other arguments in value. The first call of a signature runs normally. The second is observed: if it only allocated tensors, made
views and launched kernels, later calls replay just that.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from tilescope_kernels._shared import launches
from tilescope_kernels._shared.launchers import Descriptor
from tilescope_kernels.dispatch import OnLooker

#: Signatures remembered per operator. The cache is cleared when it is full.
_MOST = 8192
#: Signatures in a row that cannot be replayed before the operator is given up.
_TRIES = 4
_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
#: Types of the other arguments that are compared by value.
PLAIN = {int, float, bool, str, type(None), torch.dtype}
_EXTENTS = {tuple, torch.Size}
#: Index of the stream in a launch's arguments: after the grid.
_STREAM = 3
#: States of a signature that has no replay: called once, and not replayable.
_SEEN, _NEVER = object(), object()


#: Every operator's cache.
_EVERY: list[Kept] = []


def forget() -> None:
    """Clears every operator's cache. Call it after changing anything that launches depend on besides their arguments."""
    for kept in _EVERY:
        kept.forget()


class Kept:
    """``function`` with a cache of its launches. It must return only tensors that it allocated."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._known: dict[Hashable, Any] = {}
        self._lost = 0
        #: The replay that served last, with what recognizes its arguments.
        self._latest: tuple[Recognizer, Again] | None = None
        _EVERY.append(self)

    def forget(self) -> None:
        """Clears this operator's cache."""
        self._known.clear()
        self._lost = 0
        self._latest = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, or replays its launches. Returns what the function would."""
        return self.call(args, kwargs)

    def repeat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The latest replay's result for arguments like its own, found without a signature. None, with nothing launched, for others.

        No function mode, profiler or forward-mode gradient may be active.
        """
        if (latest := self._latest) is None:
            return None
        recognizer, again = latest
        tensors = recognizer.tensors_of(args, kwargs)
        if tensors is None:
            return None
        addresses = [tensor.data_ptr() for tensor in tensors]
        return again(addresses, tensors) if recognizer.fits(addresses) else None

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As ``__call__``, for arguments that are packed already."""
        kind = _kind(args, kwargs) if self._lost < _TRIES else None
        if kind is None:
            return self.function(*args, **kwargs)
        found, addresses, tensors = kind
        again = self._known.get(found)
        if type(again) is Again:
            if again.recognizer is None:
                again.recognizer = Recognizer(args, kwargs, addresses)
            if again.recognizer.check:
                self._latest = again.recognizer, again
            if (made := again(addresses, tensors)) is not None:
                return made
        elif again is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[found] = _SEEN
        elif again is _SEEN:
            made, again = self._watched(args, kwargs, tensors)
            self._known[found] = again
            # Computing signatures takes time as well: give up on a function that is never replayable.
            self._lost = -1 if self._lost < 0 or type(again) is Again else self._lost + (again is _NEVER)
            return made
        return self.function(*args, **kwargs)

    def _watched(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> tuple[Any, Any]:
        """Call the function and observe it. Returns its result, and its replay or ``_NEVER``.

        While a hook or a profiler watches the launches there is no replay, but a later call may give one: ``_SEEN``.
        """
        seen = _Allocations()
        with launches.noted() as made, seen:
            result = self.function(*args, **kwargs)
        if seen.other or not made:
            return result, _NEVER
        if any(each.made is None for each in made):
            return result, _SEEN if all(each.made or each.watched for each in made) else _NEVER
        try:
            return result, Again(made, tensors, seen.tensors, result)
        except _Unknown:
            return result, _NEVER


def _kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, list[int], list[torch.Tensor]] | None:
    """The signature of a call, its tensors' addresses, and its tensors.

    None where the function must run normally: a gradient is wanted, a tensor is of a subclass, or tensors are on several GPUs.
    """
    tensors: list[torch.Tensor] = []
    addresses: list[int] = []
    key: list[Any] = [*kwargs]
    device = -1
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is _TENSOR or kind is _PARAMETER:
            where = value.get_device()
            if where != device:
                if where < 0 or device >= 0:
                    return None
                device = where
            if value.requires_grad and torch.is_grad_enabled():
                return None
            address = value.data_ptr()
            tensors.append(value)
            addresses.append(address)
            key += (value.dtype, value.shape, value.stride(), address & 15)
        elif kind in PLAIN or (kind in _EXTENTS and all(type(item) is int for item in value)):
            key.append(value)
        else:
            return None
    if device < 0:
        return None
    # Tensors that share an address cannot be told apart in a launch, so which ones do is part of the signature.
    same = len({*addresses}) == len(addresses) or tuple(map(addresses.index, addresses))
    return (*key, device, same), addresses, tensors


def _is_same(value: Any, known: Any) -> bool:
    """Whether arguments that are no tensors are of one type and value. ``known`` was in a signature."""
    kind = type(known)
    return type(value) is kind and value == known and (kind is not tuple or all(type(item) is int for item in value))


class Recognizer:
    """Recognizes arguments like those of an earlier call, in less time than a signature takes, but for that call alone.

    A signature takes 1.4 us for softmax and 3.4 for layer_norm with a weight and a bias, this 0.5 for softmax. Calls took 21 and 26 us
    and take 14, PyTorch's 11 and 18, then 8 and 12, as the host's load varied (H200, 2026-11-27, torch 2.11, triton 3.6).

    PyTorch's compiler has a check in C++ of several tensors: their types, dtypes, devices, shapes, strides and requires_grad, and
    that the same dispatch keys are active, which are others under autocast, function transforms, dispatch modes and tracing.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], addresses: Sequence[int]) -> None:
        values = (*args, *kwargs.values())
        self._names, self._count = (*kwargs,), len(values)
        self._places = [place for place, value in enumerate(values) if isinstance(value, _TENSOR)]
        self._others = [(place, value) for place, value in enumerate(values) if place not in self._places]
        tensors = [values[place] for place in self._places]
        self._offsets = [address & 15 for address in addresses]
        #: Whether the earlier call had no gradient only because gradients were switched off.
        self._switched = any(tensor.requires_grad for tensor in tensors)
        #: The check; None where there is none: with tensors that share an address, or in another version of PyTorch.
        self.check: Callable[..., bool] | None = None
        if len({*addresses}) == len(addresses):
            with contextlib.suppress(AttributeError, TypeError, SystemError):
                guards = torch._C._dynamo.guards.TensorGuards  # type: ignore[attr-defined]
                self.check = guards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check

    def tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor] | None:
        """The call's tensors, or None if it differs in anything but their addresses."""
        if self._switched and torch.is_grad_enabled():
            return None
        if kwargs or self._names:
            if (*kwargs,) != self._names:
                return None
            args = (*args, *kwargs.values())
        if len(args) != self._count:
            return None
        for place, value in self._others:
            if args[place] is not value and not _is_same(args[place], value):
                return None
        tensors = [args[place] for place in self._places]
        return tensors if self.check(*tensors) else None

    def fits(self, addresses: list[int]) -> bool:
        """Whether the tensors are aligned like the earlier call's and share no address."""
        return [address & 15 for address in addresses] == self._offsets and len({*addresses}) == len(addresses)


class _Allocations(OnLooker):
    """Records allocated tensors, and whether any ``other`` operator ran whose effect a launch could see."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.other = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function in _EMPTY:
            self.tensors.append(result)
        elif not function.is_view:
            self.other = True
        return result


_ATEN = torch.ops.aten
_EMPTY = {
    _ATEN.empty.memory_format, _ATEN.new_empty.default, _ATEN.empty_like.default, _ATEN.empty_strided.default,
    _ATEN.new_empty_strided.default,
}  # fmt: skip


class _Unknown(Exception):
    """A tensor that was neither given nor allocated."""


class _Output(NamedTuple):
    """A result: the index of its allocation, and its (shape, strides, offset) where it is a view."""

    which: int
    view: tuple[Any, Any, int] | None


class Again:
    """Replays recorded launches with other tensors. Raises _Unknown where a launch took a tensor from elsewhere."""

    def __init__(
        self,
        made: Sequence[launches.Noted],
        given: Sequence[torch.Tensor],
        allocated: Sequence[torch.Tensor],
        result: Any,
    ) -> None:
        #: Recognizes the arguments, from the first replay on.
        self.recognizer: Recognizer | None = None
        self._index, self._modes = given[0].get_device(), launches.modes()
        every = [*given, *allocated]
        # A given tensor may begin anywhere in its storage; an allocated one owns its storage.
        self._exact = {tensor.data_ptr(): place for place, tensor in reversed([*enumerate(every)]) if tensor.numel()}
        self._ranges = [
            (tensor.data_ptr(), tensor.untyped_storage().nbytes(), len(given) + place)
            for place, tensor in enumerate(allocated)
        ]
        self._kernels: list[tuple[Any, str, Any]] = []
        self._launches = [self._launch(each) for each in made]
        self._single = isinstance(result, torch.Tensor)
        outputs = [result] if self._single else result
        self._outputs = [self._output(output, allocated, len(given)) for output in outputs]
        extents = [(tuple(t.shape), t.stride()) for t in allocated]
        # An allocation that serves one result alone is made in that result's shape.
        uses = Counter(output.which for output in self._outputs if output)
        for index, output in enumerate(self._outputs):
            if output and output.view and uses[output.which] == 1 and self._is_all(output, allocated, len(given)):
                extents[output.which - len(given)] = output.view[:2]
                self._outputs[index] = _Output(output.which, None)
        # An allocation that no launch and no result uses is skipped, such as one for a gradient that is not wanted.
        taken = {which for _, _, pointers, tiles in self._launches for _, which, _ in (*pointers, *tiles)} | {*uses}
        # ``new_empty`` of a tensor of the same dtype is faster than ``torch.empty`` with a device and a dtype.
        dtypes = [t.dtype for t in given]
        self._allocations = [
            (dtypes.index(t.dtype) if t.dtype in dtypes else 0, *shape, {} if t.dtype in dtypes else {"dtype": t.dtype})
            if place in taken
            else None
            for place, (t, shape) in enumerate(zip(allocated, extents, strict=True), len(given))
        ]

    @staticmethod
    def _is_all(output: _Output, allocated: Sequence[torch.Tensor], given: int) -> bool:
        """Whether a result covers its whole allocation in memory order."""
        whole, (shape, strides, offset) = allocated[output.which - given], output.view or ((), (), 1)
        same = whole.is_contiguous() and offset == 0 and math.prod(shape) == whole.numel()
        return same and whole.view(shape).stride() == strides

    def _place(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Index of the tensor whose memory this one begins in, and the offset in bytes."""
        address = tensor.data_ptr()
        if address in self._exact:
            return self._exact[address], 0
        for start, size, place in self._ranges:
            if start <= address < start + size:
                return place, address - start
        raise _Unknown

    def _launch(self, each: launches.Noted) -> tuple[Any, ...]:
        launcher, run = each.made.launcher, each.made.compiled.run
        if getattr(run, "global_scratch_size", 0) or getattr(run, "profile_scratch_size", 0):
            raise _Unknown  # Triton then asks a user-set allocator
        facts = iter(launcher.maps)
        template: list[Any] = []
        pointers, tiles = [], []
        for value in each.args:
            described = type(value).__name__ == launches.DESCRIPTOR
            tensor = value.base if described else value
            if not isinstance(tensor, torch.Tensor):
                template.append(value)
                continue
            which, offset = self._place(tensor)
            place = len(template)
            template.append(None)
            if described:
                if offset:
                    raise _Unknown
                descriptor = Descriptor(value, launcher.make_map, next(facts, None))
                tiles.append((place, which, descriptor))
                template += descriptor.rest
            else:
                pointers.append((place, which, offset))
        # Order of the C launcher's arguments: grid, stream, kernel handles, the launch's own, constants.
        before = [*(*each.grid, 1, 1)[:3], None, *launcher.first]
        pointers = [(len(before) + place, which, offset) for place, which, offset in pointers]
        tiles = [(len(before) + place, which, descriptor) for place, which, descriptor in tiles]
        self._kernels.append((each.kernel, each.made.name, each.made.compiled))
        return launcher.start, [*before, *template, *each.made.constants], pointers, tiles

    @staticmethod
    def _output(output: Any, allocated: Sequence[torch.Tensor], given: int) -> _Output | None:
        if output is None:
            return None
        for place, tensor in enumerate(allocated):
            # PyTorch may wrap a tensor in a new object: compare storages.
            if output.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                if output.dtype != tensor.dtype:
                    raise _Unknown
                view = tuple(output.shape), output.stride(), output.storage_offset()
                return _Output(given + place, None if view == (tuple(tensor.shape), tensor.stride(), 0) else view)
        raise _Unknown

    def __call__(self, addresses: list[int], tensors: list[torch.Tensor]) -> Any:
        """Launch, and return the results. None, with nothing launched, while launches are watched or another GPU is current."""
        active, index = launches.driver.active, self._index
        if index != active.get_current_device() or launches.modes() != self._modes or launches.has_watcher():
            return None
        for kernel, name, compiled in self._kernels:
            if kernel.pre_run_hooks or kernel.device_caches[index][0].get(name) is not compiled:
                return None
        for allocation in self._allocations:
            if allocation is None:
                tensors.append(tensors[0])
                addresses.append(0)
                continue
            source, shape, strides, dtype = allocation
            tensor = tensors[source].new_empty_strided(shape, strides, **dtype)
            tensors.append(tensor)
            addresses.append(tensor.data_ptr())
        stream = active.get_current_stream(index)
        for start, template, pointers, tiles in self._launches:
            arguments = template.copy()
            arguments[_STREAM] = stream
            for place, which, offset in pointers:
                arguments[place] = addresses[which] + offset
            for place, which, descriptor in tiles:
                arguments[place] = descriptor.of(tensors[which], addresses[which])
            start(*arguments)
        if self._single:
            return self._returned(self._outputs[0], tensors)
        return tuple([self._returned(output, tensors) for output in self._outputs])

    @staticmethod
    def _returned(output: _Output | None, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        if output is None:
            return None
        tensor = tensors[output.which]
        return tensor if output.view is None else tensor.as_strided(*output.view)
