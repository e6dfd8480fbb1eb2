"""Loads, stores and atomics of Triton's language in NumPy, each reported to a meter. Imports triton."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from tilescope.interpreter import narrow, undefined
from tilescope.interpreter.accesses import Runs, runs
from tilescope.interpreter.blocks import Array, NeedsValues, NotServed, is_opaque, unknown
from tilescope.interpreter.meter import ACCESSED, Access, Counting
from tilescope.interpreter.races import Elements

#: Consecutive accesses to one unchanged address after which the program is taken to wait for ever.
PATIENCE = 10_000
#: Consecutive accesses to one unchanged address after which the next program runs.
_POLLS = 200
_WAITS = "it waits for a value that no other program writes, because all others have ended or wait too: time and count it on a GPU"


class Memory:
    """The builder's methods that touch memory."""

    def __init__(self, counting: Counting) -> None:
        self.counting = counting
        #: The single address of the last access, the number of accesses to it since the last write, and the number of those before
        #: other programs ran.
        self._asked, self._times, self._before = 0, 0, 0

    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods by their names in Triton's builder."""
        return {
            "create_load": self.load,
            "create_store": self.store,
            "create_masked_load": self.masked_load,
            "create_masked_store": self.masked_store,
            "create_atomic_rmw": self.atomic_rmw,
            "create_atomic_cas": self.atomic_cas,
            "create_descriptor_reduce": self.descriptor_reduce,
            "create_barrier": self.barrier,
        }

    def barrier(self) -> None:
        """``tl.debug_barrier``."""
        self.counting.program.stores.clear()

    def load(self, pointers: Any, *options: Any, **__: Any) -> Any:
        return self.masked_load(pointers, None, None, *options)

    def store(self, pointers: Any, value: Any, *_: Any, **__: Any) -> None:
        self.masked_store(pointers, value, None)

    def masked_load(self, pointers: Any, mask: Any, other: Any, *options: Any, **__: Any) -> Any:
        if options[-1:] == (True,):  # a volatile load, which polls
            self.counting.program.synchronized = True
        addresses = self._access(pointers, mask, "read")
        self._watch(pointers, addresses)
        element = pointers.get_element_ty()
        if (
            self.counting.blind
            or (not self.counting.values and element.is_floating())
            or _meet(addresses, self.counting.left_out)
        ):
            return unknown(element, pointers.data.shape)
        self._need(addresses)
        loaded = TensorHandle(_read(pointers, mask, other, element), element)
        narrow.loaded(self.counting, pointers, loaded)
        if self.counting.not_finite is not None:
            self.counting.not_finite.loaded(loaded, _mask(mask, pointers), self.counting.program)
        return loaded

    def masked_store(self, pointers: Any, value: Any, mask: Any, *_: Any, **__: Any) -> None:
        addresses = self._access(pointers, mask, "written", value=value)
        self._asked = 0
        narrow.stored(self.counting, pointers, value)
        if self.counting.not_finite is not None:
            self.counting.not_finite.stored(value, _mask(mask, pointers), self.counting.program)
        if is_opaque(value):
            self.counting.left_out.update(_meet(addresses, self.counting.integers))
        elif not self.counting.blind:
            interpreter._interpreter.store(_whole(pointers.data), _whole(value.data), _mask(mask, pointers))

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, *options: Any) -> Any:
        addresses = self._access(pointers, mask, "read", "written", value=value)
        self._order(options[0])
        if self.counting.blind or is_opaque(value) or _meet(addresses, self.counting.left_out):
            self.counting.left_out.update(_meet(addresses, self.counting.integers))
            return unknown(value.dtype, value.data.shape)
        self._need(addresses)
        if value.dtype.scalar.name in narrow.FORMATS:
            before = _add_narrow(pointers, value, _mask(mask, pointers))
        else:
            create = type(interpreter_builder).create_atomic_rmw
            before = create(interpreter_builder, operation, pointers, value, mask, *options)
            self._watch_atomic(pointers, mask, before)
        if operation == ir.ATOMIC_OP.FADD:
            narrow.atomic(self.counting, before, value, _mask(mask, pointers))
        return before

    def atomic_cas(self, pointers: Any, compare: Any, value: Any, *options: Any) -> Any:
        addresses = self._access(pointers, None, "read", "written", value=value)
        self._order(options[0])
        if self.counting.blind:
            return unknown(value.dtype, value.data.shape)
        if is_opaque((compare, value)) or _meet(addresses, self.counting.left_out):
            raise NeedsValues
        self._need(addresses)
        create = type(interpreter_builder).create_atomic_cas
        before = create(interpreter_builder, pointers, compare, value, *options)
        self._watch_atomic(pointers, None, before)
        return before

    def descriptor_reduce(self, kind: Any, descriptor: Any, value: Any, indices: Any) -> None:
        """``descriptor.atomic_add`` and others: an atomic on each element of the tile that is in the tensor."""
        pointers, mask = descriptor.materialize_pointers(indices)
        operation = _DESCRIPTOR_ATOMICS[kind]
        floating = value.dtype.scalar.is_floating()
        if kind in _ORDERED and (floating or value.dtype.scalar.is_int_unsigned()):
            raise NotServed("a descriptor's atomic minimum or maximum is interpreted of signed integers only")
        if kind == ir.DESCRIPTOR_REDUCE_KIND.ADD and floating:
            operation = ir.ATOMIC_OP.FADD
        options = (ir.MEM_SEMANTIC.RELAXED, ir.MEM_SYNC_SCOPE.GPU)
        # Triton before 3.7 has the mask as a bare array.
        mask = mask if isinstance(mask, TensorHandle) else TensorHandle(mask, tl.int1)
        self.atomic_rmw(operation, pointers, value, mask, *options)

    def _order(self, semantics: Any) -> None:
        if semantics != ir.MEM_SEMANTIC.RELAXED:
            self.counting.program.synchronized = True

    def _access(self, pointers: Any, mask: Any, *ways: str, value: Any = None) -> Array:
        """Counts an access that reads, writes or does both. Returns the addresses that the mask leaves."""
        if is_opaque((pointers, mask)):
            raise NeedsValues
        addresses: Array = pointers.data
        self.counting.spend(addresses.size, ACCESSED)
        undefined.accessed(self.counting, mask, pointers, value)
        wanted = None if mask is None else np.broadcast_to(_data(mask), addresses.shape)
        if wanted is not None and not wanted.all():
            addresses = addresses[wanted]
        if self.counting.meter is not None:
            about = Access(
                self.counting.line(),
                self.counting.program,
                floating=pointers.get_element_ty().is_floating(),
                elements=Elements(
                    addresses,
                    lambda: np.arange(addresses.size) if wanted is None else np.flatnonzero(wanted),
                    tile=pointers.data.ndim > 1,
                ),
                changed=lambda: self._changed(pointers, mask, value),
                repeated=lambda: _repeated(pointers, mask, value),
            )
            self.counting.meter.access(ways, addresses, _size(pointers), about)
        return addresses

    def _need(self, addresses: Array) -> None:
        """Raises NeedsValues where any of the addresses has no value."""
        if _meet(addresses, self.counting.undrawn):
            raise NeedsValues

    def _changed(self, pointers: Any, mask: Any, value: Any) -> Runs | None:
        """The bytes that a store will change; None where the value was left out."""
        if is_opaque(value):
            return None
        wanted = _mask(mask, pointers)
        self._need(pointers.data[wanted])
        before, after = (
            _read(pointers, mask, None, pointers.get_element_ty()),
            np.broadcast_to(value.data, pointers.data.shape),
        )
        differs = wanted & _different(before, after)
        return runs(pointers.data[differs], _size(pointers))

    def _watch(self, pointers: Any, addresses: Array, atomic: bool = False) -> None:
        """Counts repeated accesses to one address. Raises NotServed for a program that would poll for ever."""
        asked = int(addresses.flat[0]) if addresses.size == 1 else 0
        if not asked or asked != self._asked:
            self._asked, self._times, self._before = asked, 0, 0
            return
        self._times += 1
        if self._times % _POLLS == 0 and pointers.get_element_ty().is_int():
            self._let_another(pointers, atomic)
        if self._times > PATIENCE:
            raise NotServed(_WAITS)

    def _let_another(self, pointers: Any, atomic: bool) -> None:
        """Runs another program, if there is one. If it changed the polled value, the polls before are not counted."""
        element = pointers.get_element_ty()
        asked, times, before = self._asked, self._times, self._before
        was = _read(pointers, None, None, element)
        self._asked = 0
        ran = self.counting.another is not None and self.counting.another()
        self._asked, self._times, self._before = asked, times, before
        if not ran:
            return
        self._times, self._before = 0, before + times
        if self.counting.meter is not None and (_read(pointers, None, None, element) != was).any():
            self.counting.meter.forget(self._before, _size(pointers), self.counting.line(), written=atomic)
            self._before = 0

    def _watch_atomic(self, pointers: Any, mask: Any, before: Any) -> None:
        """Counts an atomic on one element as polling if it changed nothing; any other resets the count."""
        one = pointers.data.size == 1 and (mask is None or _data(mask).all())
        if one and _read(pointers, None, None, pointers.get_element_ty()).tobytes() == _whole(before.data).tobytes():
            self._watch(pointers, pointers.data, atomic=True)
        else:
            self._asked = 0


_KINDS = ir.DESCRIPTOR_REDUCE_KIND
_ORDERED = (_KINDS.MIN, _KINDS.MAX)
_DESCRIPTOR_ATOMICS = {getattr(_KINDS, n): getattr(ir.ATOMIC_OP, n) for n in ("ADD", "MIN", "MAX", "AND", "OR", "XOR")}


def _meet(addresses: Array, ranges: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in which some of the addresses may be."""
    if not ranges or not addresses.size:
        return []
    least, most = addresses.min(), addresses.max()
    return [(start, end) for start, end in ranges if least < end and most >= start]


def _repeated(pointers: Any, mask: Any, value: Any) -> tuple[Runs, Runs] | None:
    """The bytes that several lanes store to, and those at which their values differ; None where the value was left out."""
    if is_opaque(value):
        return None
    wanted = _mask(mask, pointers)
    addresses, values = pointers.data[wanted], np.broadcast_to(value.data, wanted.shape)[wanted]
    order = np.argsort(addresses, kind="stable")
    addresses, values = addresses[order], values[order]
    again = addresses[1:] == addresses[:-1]
    differs = again & _different(values[1:], values[:-1])
    every, differing = (runs(addresses[1:][chosen], _size(pointers)) for chosen in (again, differs))
    return every, differing


def _different(a: Array, b: Array) -> Array:
    """Where values differ. NaN counts as equal to NaN."""
    differs: Array = a != b
    return differs & ~(np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else differs


def _read(pointers: Any, mask: Any, other: Any, element: Any) -> Array:
    dtype = interpreter._get_np_dtype(element)
    instead = np.zeros(pointers.data.shape, dtype=dtype) if other is None else other.data
    found: Array = interpreter._interpreter.load(_whole(pointers.data), _mask(mask, pointers), _whole(instead), dtype)
    return found


def _add_narrow(pointers: Any, value: Any, mask: Array) -> Any:
    """An atomic addition, the only atomic of narrow floats. Repeated addresses are added to one after another."""
    kind = value.dtype.scalar
    addresses, added = _whole(pointers.data).reshape(-1), narrow.decode(_whole(value.data), kind.name).reshape(-1)
    before = np.zeros(addresses.shape, dtype=value.data.dtype)
    left = np.flatnonzero(mask.reshape(-1))
    while left.size:
        _, places = np.unique(addresses[left], return_index=True)
        now = left[places]
        at, everywhere = np.ascontiguousarray(addresses[now]), np.ones(now.shape, dtype=bool)
        before[now] = interpreter._interpreter.load(at, everywhere, before[now], before.dtype)
        sums = narrow.encode(narrow.decode(before[now], kind.name) + added[now], kind.name)
        interpreter._interpreter.store(at, sums, everywhere)
        left = np.delete(left, places)
    return TensorHandle(before.reshape(value.data.shape), kind)


def _data(mask: Any) -> Array:
    # The mask of a block pointer is a bare array.
    data: Array = mask.data if isinstance(mask, TensorHandle) else mask
    return data


def _mask(mask: Any, pointers: Any) -> Array:
    return np.ones(pointers.data.shape, dtype=bool) if mask is None else _whole(_data(mask))


def _whole(data: Array) -> Array:
    return np.ascontiguousarray(data).reshape(data.shape)


def _size(pointers: Any) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)
