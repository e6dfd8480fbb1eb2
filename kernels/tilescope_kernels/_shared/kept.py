"""Operators whose launches are made again: what one decides, looks up and specializes for tensors of the same kind is known.

That takes longer than to launch. A call is of the same kind as one before where its tensors agree in dtype, extents, strides and
alignment, and its other arguments in value. The first call of a kind is made as it is. The second is watched: if nothing but empty
tensors, views and launches of remembered kernels came of it, later ones make just those.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from tilescope_kernels._shared import launches
from tilescope_kernels._shared.launchers import Descriptor
from tilescope_kernels.dispatch import OnLooker

#: Kinds of calls of one operator that are remembered; beyond, all are forgotten.
_MOST = 8192
#: Kinds of calls of which none could be made again before no other is tried.
_TRIES = 4
_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
#: What is known of a kind of call before its launches are: that there was one, and that they are not to be had.
_SEEN, _NEVER = object(), object()


#: Each there is, one an operator.
_EVERY: list[Kept] = []


def forget() -> None:
    """Forgets what is known of every operator's calls: for whoever has changed what they depend on beside their arguments."""
    for kept in _EVERY:
        kept.forget()


class Kept:
    """``function``, of tensors and other arguments, without what it need not do again. Its results are those that it allocated."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._known: dict[Hashable, Any] = {}
        self._lost = 0
        _EVERY.append(self)

    def forget(self) -> None:
        """Has every kind of call be made as it is again."""
        self._known.clear()
        self._lost = 0

    def __call__(self, *args: Any) -> Any:
        """What the function returns."""
        if self._lost >= _TRIES:
            return self._function(*args)
        tensors: list[torch.Tensor] = []
        addresses: list[int] = []
        key: list[Any] = []
        add = key.append
        for value in args:
            kind = type(value)
            if kind is _TENSOR or kind is _PARAMETER:
                address = value.data_ptr()
                tensors.append(value)
                addresses.append(address)
                add(value.dtype)
                add(value.shape)
                add(value.stride())
                add(address & 15)
            else:
                add(value)
        if not tensors:
            return self._function(*args)
        add(tensors[0].get_device())
        # Where one tensor is given twice a launch may take either, which is the same as long as they are one.
        given = [*map(id, tensors)]
        found = (*key, len({*given}) == len(given) or tuple(map(given.index, given)))
        try:
            again = self._known.get(found)
        except TypeError:  # something in it has no hash
            return self._function(*args)
        if type(again) is Again:
            if (made := again(tensors[0].device, addresses, tensors)) is not None:
                return made
        elif again is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[found] = _SEEN
        elif again is _SEEN:
            made, again = self._watched(args, tensors, addresses)
            self._known[found] = again
            # Of a function that also does what cannot be done again none will be: to ask takes time, too.
            self._lost = -1 if self._lost < 0 or type(again) is Again else self._lost + (again is _NEVER)
            return made
        return self._function(*args)

    def _watched(self, args: tuple[Any, ...], tensors: list[torch.Tensor], addresses: list[int]) -> tuple[Any, Any]:
        """What the function returns, and what does it again; ``_NEVER`` where that is not all that it did.

        Where somebody looks on there is nothing to remember, but may be another time.
        """
        seen = _Allocations()
        with launches.noted() as made, seen:
            result = self._function(*args)
        # Of two tensors of one address, as views are, it is not known which of them a launch takes.
        if seen.other or not made or len({*addresses}) < len({*map(id, tensors)}):
            return result, _NEVER
        if any(each.made is None for each in made):
            return result, _SEEN if all(each.made or each.watched for each in made) else _NEVER
        try:
            return result, Again(made, tensors, seen.tensors, result)
        except _Unknown:
            return result, _NEVER


class _Allocations(OnLooker):
    """Notes the tensors that are allocated, and whether PyTorch did anything ``other`` that a launch could see."""

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
    """A result: which allocation it is, and how it is viewed if it is not that as it is."""

    which: int
    view: tuple[Any, Any, int] | None


class Again:
    """Launches that were made, to be made of other tensors. Raises _Unknown where one took a tensor from elsewhere."""

    def __init__(
        self,
        made: Sequence[launches.Noted],
        given: Sequence[torch.Tensor],
        allocated: Sequence[torch.Tensor],
        result: Any,
    ) -> None:
        self._device, self._modes = given[0].get_device(), launches.modes()
        self._allocations = [(tuple(t.shape), t.stride(), t.dtype) for t in allocated]
        every = [*given, *allocated]
        # The tensors that were given begin anywhere in memory of theirs, those that were allocated own it.
        self._exact = {tensor.data_ptr(): place for place, tensor in reversed([*enumerate(every)]) if tensor.numel()}
        self._ranges = [
            (tensor.data_ptr(), tensor.untyped_storage().nbytes(), len(given) + place)
            for place, tensor in enumerate(allocated)
        ]
        self._launches = [self._launch(each) for each in made]
        self._single = isinstance(result, torch.Tensor)
        outputs = [result] if self._single else result
        self._outputs = [self._output(output, allocated, len(given)) for output in outputs]

    def _place(self, tensor: torch.Tensor) -> tuple[int, int]:
        """Which tensor's memory it begins in, and how many bytes from that one's beginning."""
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
            raise _Unknown  # Triton asks whoever is the allocator then
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
        # After the launch's arguments come the constants that were compiled in.
        return each.kernel, each.made, (*each.grid, 1, 1)[:3], [*template, *each.made.constants], pointers, tiles

    @staticmethod
    def _output(output: Any, allocated: Sequence[torch.Tensor], given: int) -> _Output | None:
        if output is None:
            return None
        for place, tensor in enumerate(allocated):
            # PyTorch may wrap one tensor anew: it is told by its memory.
            if output.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
                if output.dtype != tensor.dtype:
                    raise _Unknown
                view = tuple(output.shape), output.stride(), output.storage_offset()
                return _Output(given + place, None if view == (tuple(tensor.shape), tensor.stride(), 0) else view)
        raise _Unknown

    def __call__(self, where: torch.device, addresses: list[int], tensors: list[torch.Tensor]) -> Any:
        """What the function would return; None where somebody looks on, or on another GPU: then nothing was launched."""
        active, device = launches.driver.active, self._device
        if device != active.get_current_device() or launches.modes() != self._modes:
            return None
        for kernel, made, *_ in self._launches:
            if launches.is_watched(kernel) or kernel.device_caches[device][0].get(made.name) is not made.compiled:
                return None
        for shape, strides, dtype in self._allocations:
            tensor = torch.empty_strided(shape, strides, dtype=dtype, device=where)
            tensors.append(tensor)
            addresses.append(tensor.data_ptr())
        stream = active.get_current_stream(device)
        for _, made, (x, y, z), template, pointers, tiles in self._launches:
            arguments = template.copy()
            for place, which, offset in pointers:
                arguments[place] = addresses[which] + offset
            for place, which, descriptor in tiles:
                arguments[place] = descriptor.of(tensors[which], addresses[which])
            launcher = made.launcher
            launcher.start(x, y, z, stream, *launcher.first, *arguments)
        if self._single:
            return self._returned(self._outputs[0], tensors)
        return tuple([self._returned(output, tensors) for output in self._outputs])

    @staticmethod
    def _returned(output: _Output | None, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        if output is None:
            return None
        tensor = tensors[output.which]
        return tensor if output.view is None else tensor.as_strided(*output.view)
