"""Replays an operator's launches, so that a repeated call skips its checks, lookups and specialization.

Those take longer than the launch. Two calls have the same signature when their tensors agree in type, dtype, shape, strides, alignment
and whether they require a gradient, and their other arguments in value. The first call of a signature runs normally. The second is
observed: if it only allocated tensors, made views and launched kernels, later calls replay just that. Where a gradient is wanted they
apply the operator that it applied (``applied``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from tilescope_kernels._shared import applied, launches
from tilescope_kernels._shared.allocations import Allocated, Plan
from tilescope_kernels._shared.applied import Applied, Unknown
from tilescope_kernels._shared.launchers import Descriptor
from tilescope_kernels._shared.recognizer import Recognizer
from tilescope_kernels.dispatch import OnLooker

#: Signatures remembered per operator. The cache is cleared when it is full.
_MOST = 8192
#: Signatures in a row that cannot be replayed before a function is given up, with a gradient or without.
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
    """``function`` with a cache of its launches. It must return only tensors that it allocated; instead of None a replay returns ()."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._known: dict[Hashable, Any] = {}
        #: How many signatures could not be replayed, by whether a gradient is wanted; less than 0 where one could.
        self._lost = [0, 0]
        #: Calls whose signatures are not computed any more: those with a gradient (True), those without (False).
        self._given_up: set[bool] = set()
        #: The replay that served last.
        self._latest: Again | Applied | None = None
        _EVERY.append(self)

    def forget(self) -> None:
        """Clears this operator's cache."""
        self._known.clear()
        self._lost = [0, 0]
        self._given_up.clear()
        self._latest = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function, or replays its launches. Returns what the function would."""
        return self.call(args, kwargs)

    def repeat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The expected replay's result for arguments like its own, found without a signature. None, with nothing launched, for others.

        Expected is the replay that followed the latest one before: a step of training makes the same calls in the same order. No function
        mode, profiler or forward-mode gradient may be active.
        """
        if (latest := self._latest) is None:
            return None
        again = latest.next
        found = again.recognizer.recognized(args, kwargs)
        if found is None:
            return None
        self._latest = again
        return again(*found)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As ``__call__``, for arguments that are packed already."""
        if self._given_up and _wants_gradient(args, kwargs) in self._given_up:
            return self.function(*args, **kwargs)
        kind = _kind(args, kwargs)
        if kind is None:
            return self.function(*args, **kwargs)
        found, addresses, tensors, wants_gradient = kind
        again = self._known.get(found)
        if type(again) in _REPLAYS:
            if again.recognizer is None:
                again.recognizer = Recognizer(args, kwargs, addresses)
            if again.recognizer.check:
                (self._latest or again).next = again
                self._latest = again
            if (made := again(addresses, tensors)) is not None:
                return made
        elif again is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[found] = _SEEN
        elif again is _SEEN:
            watched = self._applied if wants_gradient else self._watched
            made, again = watched(args, kwargs, tensors)
            self._known[found] = again
            self._judge(again, wants_gradient)
            return made
        return self.function(*args, **kwargs)

    def _judge(self, again: Any, wants_gradient: bool) -> None:
        """Give the function up where it is never replayable, as computing signatures takes time as well.

        One that is not where a gradient is wanted may be elsewhere, and the other way round.
        """
        lost = self._lost[wants_gradient]
        lost = self._lost[wants_gradient] = -1 if lost < 0 or type(again) in _REPLAYS else lost + (again is _NEVER)
        if lost >= _TRIES:
            self._given_up.add(wants_gradient)

    def _applied(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> tuple[Any, Any]:
        """As ``_watched``, where a gradient is wanted."""
        with applied.NOTES.taken() as notes:
            result = self.function(*args, **kwargs)
        try:
            return result, Applied(notes, tensors, result)
        except Unknown:
            return result, _NEVER

    def _watched(self, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[torch.Tensor]) -> tuple[Any, Any]:
        """Call the function and observe it. Returns its result, and its replay or ``_NEVER``.

        While a hook or a profiler watches the launches there is no replay, but a later call may give one: ``_SEEN``.
        """
        seen = _Allocations()
        with launches.NOTES.taken() as made, seen:
            result = self.function(*args, **kwargs)
        if seen.other or not made:
            return result, _NEVER
        if any(each.made is None for each in made):
            return result, _SEEN if all(each.made or each.watched for each in made) else _NEVER
        try:
            return result, Again(made, tensors, seen.tensors, result)
        except Unknown:
            return result, _NEVER


def is_extents(value: Any) -> bool:
    """Whether an argument is a tuple of integers, which is compared by value too."""
    return type(value) in _EXTENTS and all(type(item) is int for item in value)


def _wants_gradient(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a gradient is wanted, as ``_kind`` finds on its way."""
    if torch.is_grad_enabled():
        for value in (*args, *kwargs.values()) if kwargs else args:
            kind = type(value)
            if (kind is _TENSOR or kind is _PARAMETER) and value.requires_grad:
                return True
    return False


def _kind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, list[int], list[torch.Tensor], bool] | None:
    """The signature of a call, its tensors' addresses, its tensors, and whether a gradient is wanted.

    None where the function must run normally: a tensor is of a subclass or negated, as of the imaginary part of a conjugate, where memory
    has the other sign and the dispatcher negates it; or tensors are on several GPUs.
    """
    tensors: list[torch.Tensor] = []
    addresses: list[int] = []
    key: list[Any] = [*kwargs]
    device, wants_gradient = -1, False
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if (kind is _TENSOR or kind is _PARAMETER) and not value.is_neg():
            where = value.get_device()
            if where != device:
                if where < 0 or device >= 0:
                    return None
                device = where
            address = value.data_ptr()
            tensors.append(value)
            addresses.append(address)
            requires = value.requires_grad
            wants_gradient = wants_gradient or requires
            key += (kind, value.dtype, value.shape, value.stride(), address & 15, requires, value.is_inference())
        elif kind in PLAIN or is_extents(value):
            key.append(value)
        else:
            return None
    if device < 0:
        return None
    # Tensors that share an address cannot be told apart in a launch, so which ones do is part of the signature.
    same = len({*addresses}) == len(addresses) or tuple(map(addresses.index, addresses))
    wants_gradient = wants_gradient and torch.is_grad_enabled()
    # What a recognizer tells apart is part of it, too, as that of the first call would not recognize the others.
    return (*key, device, same, wants_gradient, torch.is_inference_mode_enabled()), addresses, tensors, wants_gradient


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


class _Output(NamedTuple):
    """A result: the index of its allocation, and its (shape, strides, offset) where it is a view."""

    which: int
    view: tuple[Any, Any, int] | None


class Again:
    """Replays recorded launches with other tensors. Raises Unknown where a launch took a tensor from elsewhere."""

    def __init__(
        self,
        made: Sequence[launches.Noted],
        given: Sequence[torch.Tensor],
        allocated: Sequence[torch.Tensor],
        result: Any,
    ) -> None:
        #: Recognizes the arguments, from the first replay on.
        self.recognizer: Any = None
        #: The replay that followed this one.
        self.next: Any = self
        self._index, self._modes = given[0].get_device(), launches.modes()
        self._driver = launches.driver.active
        current = self._driver.get_current_device
        # PyTorch's function asks in Python whether CUDA is initialized, which it is.
        self._current_device = torch._C._cuda_getDevice if current is torch.cuda.current_device else current
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
        outputs = [result] if self._single else result or ()
        self._outputs = [self._output(output, allocated, len(given)) for output in outputs]
        extents = [(tuple(t.shape), t.stride()) for t in allocated]
        # An allocation that serves one result alone is made in that result's shape.
        uses = Counter(output.which for output in self._outputs if output)
        for index, output in enumerate(self._outputs):
            if output and output.view and uses[output.which] == 1 and self._is_all(output, allocated, len(given)):
                extents[output.which - len(given)] = output.view[:2]
                self._outputs[index] = _Output(output.which, None)
        whole = {*uses} | {which for *_, tiles in self._launches for _, which, _ in tiles}
        taken = whole | {which for _, _, pointers, _ in self._launches for _, which, _ in pointers}
        plan = Plan(given, [Allocated(t, *extent) for t, extent in zip(allocated, extents, strict=True)], taken, whole)
        self._allocations = plan.allocations
        for _, _, pointers, tiles in self._launches:
            pointers[:] = [(place, *plan.found(which, offset)) for place, which, offset in pointers]
            tiles[:] = [(place, plan.found(which)[0], descriptor) for place, which, descriptor in tiles]
        self._outputs = [output and output._replace(which=plan.found(output.which)[0]) for output in self._outputs]

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
        raise Unknown

    def _launch(self, each: launches.Noted) -> tuple[Any, ...]:
        launcher, run = each.made.launcher, each.made.compiled.run
        if getattr(run, "global_scratch_size", 0) or getattr(run, "profile_scratch_size", 0):
            raise Unknown  # Triton then asks a user-set allocator
        facts = iter(launcher.maps)
        template: list[Any] = []
        pointers, tiles = [], []
        for value in each.args:
            described = type(value).__name__ == launches.DESCRIPTOR
            tensor = value.base if described else value
            if not isinstance(tensor, torch.Tensor):
                template.append(value)
                continue
            if not (described or tensor.data_ptr()):
                template.append(0)  # without elements, so without memory
                continue
            which, offset = self._place(tensor)
            place = len(template)
            template.append(None)
            if described:
                if offset:
                    raise Unknown
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
                    raise Unknown
                view = tuple(output.shape), output.stride(), output.storage_offset()
                return _Output(given + place, None if view == (tuple(tensor.shape), tensor.stride(), 0) else view)
        raise Unknown

    def __call__(self, addresses: list[int], tensors: list[torch.Tensor]) -> Any:
        """Launch, and return the results. None, with nothing launched, while launches are watched or another GPU is current."""
        index = self._index
        if launches.driver.active is not self._driver or self._current_device() != index:
            return None
        if launches.modes() != self._modes or launches.has_watcher():
            return None
        for kernel, name, compiled in self._kernels:
            if kernel.pre_run_hooks or kernel.device_caches[index][0].get(name) is not compiled:
                return None
        for source, shape, strides, dtype in self._allocations:
            tensor = tensors[source].new_empty_strided(shape, strides, **dtype)
            tensors.append(tensor)
            addresses.append(tensor.data_ptr())
        stream = self._driver.get_current_stream(index)
        for start, template, pointers, tiles in self._launches:
            arguments = template.copy()
            arguments[_STREAM] = stream
            for place, which, offset in pointers:
                arguments[place] = addresses[which] + offset
            if tiles:
                launches.ensure_context(index)
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


_REPLAYS = {Again, Applied}
