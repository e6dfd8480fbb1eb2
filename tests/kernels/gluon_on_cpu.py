"""Enough of Gluon to run the kernels that keep rows on chip on CPU tensors: one program after the other, or a thread each.

Triton's interpreter knows nothing of Gluon. A copy to shared memory arrives here when the wait that covers it is passed,
and not before: until then its place holds NaN. An address outside its tensor fails. What threads do to each other is not
modelled: barriers do nothing.
"""

from __future__ import annotations

import time
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from triton.experimental.gluon._runtime import GluonJITFunction
from triton.language import constexpr

_TO = torch.Tensor.to
#: A NaN in fp32, and a pair of them in either 16-bit format.
_NOTHING = 0x7FFF7FFF


def _as(tensor, dtype, bitcast=False):
    return tensor.contiguous().view(dtype) if bitcast else _TO(tensor, dtype)


class Pointer:
    """Byte addresses into one tensor, read as ``dtype.element_ty``."""

    def __init__(self, bytes_of, address, element):
        self.bytes_of, self.address, self.element = bytes_of, address, element
        self.dtype = types.SimpleNamespace(element_ty=element)

    def __sub__(self, elements):
        return self + -torch.as_tensor(elements)

    def __add__(self, elements):
        return Pointer(self.bytes_of, self.address + torch.as_tensor(elements) * self.element.itemsize, self.element)

    def to(self, element, bitcast):
        assert bitcast
        return Pointer(self.bytes_of, self.address, element)

    def places(self, mask):
        """The tensor's elements, the indices among them, and which of those are meant: all of these must exist."""
        index, size = self.address // self.element.itemsize, self.element.itemsize
        elements = self.bytes_of[: len(self.bytes_of) // size * size].view(self.element)
        meant = torch.broadcast_to(torch.as_tensor(True if mask is None else mask), index.shape)
        assert (self.address % self.element.itemsize == 0).all(), "unaligned"
        assert ((index >= 0) & (index < len(elements)))[meant].all(), "outside of the tensor"
        return elements, torch.where(meant, index, 0), meant


def pointer(tensor):
    """To the first element of a contiguous tensor, which a kernel may write to."""
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return Pointer(tensor.view(-1).view(torch.uint8), torch.tensor(0), tensor.dtype)


def _load(ptr, mask=None, other=0):
    elements, index, meant = ptr.places(mask)
    return torch.where(meant, elements[index], torch.tensor(other, dtype=ptr.element))


def _store(ptr, value, mask=None, cache_modifier=""):
    elements, index, meant = ptr.places(mask)
    elements[index[meant]] = _TO(torch.broadcast_to(torch.as_tensor(value), index.shape)[meant], ptr.element)


class Shared:
    """A view of shared memory."""

    def __init__(self, tensor):
        self.tensor, self.shape = tensor, list(tensor.shape)

    def index(self, place):
        assert 0 <= int(place) < len(self.tensor), "outside of shared memory"
        return Shared(self.tensor[int(place)])

    def slice(self, start, length):
        assert 0 <= start <= start + length <= len(self.tensor), "outside of shared memory"
        return Shared(self.tensor[start : start + length])

    def load(self, layout):
        return self.tensor.clone()

    def store(self, value):
        self.tensor.copy_(value)


def _shared(dtype, shape, layout):
    assert all(extent & (extent - 1) == 0 for extent in shape[1:]), "tensors have a power of two of elements"
    words = torch.full((torch.Size(shape).numel() * dtype.itemsize // 4,), _NOTHING, dtype=torch.int32)
    return Shared(words.view(dtype).view(shape))


class Copies:
    """``async_copy``: copies that arrive when they are waited for."""

    def __init__(self):
        self.groups: list[list[Any]] = []
        self.open: list[Any] = []

    def async_copy_global_to_shared(self, place, ptr, mask=None):
        assert list(ptr.address.shape) == place.shape
        place.tensor.copy_(_shared(place.tensor.dtype, [1, *place.shape], None).tensor[0])
        self.open.append((place.tensor, ptr.places(mask)))

    def commit_group(self):
        self.groups.append(self.open)
        self.open = []

    def wait_group(self, outstanding):
        while len(self.groups) > outstanding:
            for place, (elements, index, meant) in self.groups.pop(0):
                place.copy_(torch.where(meant, elements[index], torch.tensor(0, dtype=place.dtype)))


def _awaited(asm, place, other):
    """Words of memory: those that are wanted, or, in a loop, what was not there when they were asked for before."""
    if "again:" not in asm:
        return _load(place, other != 0)
    end = time.monotonic() + 240
    while (other == -1).any():
        assert time.monotonic() < end, "nobody publishes what is awaited"
        time.sleep(0)
        other = torch.where(other == -1, _load(place, other == -1), other)
    return other


def _assembled(asm, constraints, args, **_):
    if "ld.relaxed" in asm:
        return _awaited(asm, *args)
    if asm.startswith("cvt.rn"):
        half = torch.bfloat16 if "bf16x2" in asm else torch.float16
        return torch.stack([_TO(arg, half) for arg in args], -1).view(torch.int32).squeeze(-1)
    assert "cvt.f32.f16" in asm, asm
    halves = args[0].contiguous().view(torch.float16).view(*args[0].shape, 2).float()
    return halves[..., 0], halves[..., 1]


def _reduce(values, axis, combine):
    assert axis == 0
    while len(values[0]) > 1:
        half = len(values[0]) // 2
        values = combine(*(value[:half] for value in values), *(value[half:] for value in values))
    return tuple(value[0] for value in values)


def _nothing(*_): ...


def _language(program, programs):
    def largest(x, axis):
        return torch.where(x.isnan(), float("-inf"), x).amax(axis)  # as the GPU's maximum, which leaves NaN out

    names = ("float32", "int32", "int64", "bfloat16", "float16")
    return types.SimpleNamespace(
        **{name: getattr(torch, name) for name in names}, int1=torch.bool,
        constexpr=constexpr, pointer_type=lambda element: element, static_range=range,
        program_id=lambda axis: torch.tensor(program), num_programs=lambda axis: torch.tensor(programs),
        load=_load, store=_store, reduce=_reduce, inline_asm_elementwise=_assembled, allocate_shared_memory=_shared,
        thread_barrier=_nothing, BlockedLayout=_nothing, SliceLayout=_nothing, SwizzledSharedLayout=_nothing,
        arange=lambda start, end, layout: torch.arange(start, end),
        full=lambda shape, value, dtype, layout: torch.full(shape, value, dtype=dtype),
        zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
        where=lambda condition, one, other: torch.where(torch.as_tensor(condition), one, other),
        max=largest, sum=lambda x, axis: x.sum(axis), log=torch.log, log2=torch.log2, exp2=torch.exp2, rsqrt=torch.rsqrt,
        maximum=lambda one, other: torch.fmax(torch.as_tensor(one), torch.as_tensor(other)),
        minimum=lambda one, other: torch.minimum(torch.as_tensor(one), torch.as_tensor(other)),
    )  # fmt: skip


def _range(*bounds):
    return (torch.tensor(index) for index in range(*map(int, bounds)))


@contextmanager
def _values():
    """Tensors as values, which ``+=`` does not change but replaces, and whose bits can be taken for another dtype."""
    with (
        mock.patch.object(torch.Tensor, "to", _as),
        mock.patch.object(torch.Tensor, "__iadd__", torch.Tensor.__add__),
        mock.patch.object(torch.Tensor, "__isub__", torch.Tensor.__sub__),
        mock.patch.object(torch.Tensor, "__imul__", torch.Tensor.__mul__),
    ):
        yield


def launch(kernel, programs, *args, together=False, **constants):
    """Runs the kernel, program by program or all ``together``; tensors among ``args`` become pointers."""
    given = [pointer(arg) if arg is None or isinstance(arg, torch.Tensor) else arg for arg in args]

    def run(program):
        copies = Copies()
        scope: dict[str, Any] = {
            name: value.value if isinstance(value, constexpr) else value
            for name, value in kernel.fn.__globals__.items()
        }
        scope |= {"gl": _language(program, programs), "async_copy": copies, "range": _range}
        for name, value in list(scope.items()):
            if isinstance(value, GluonJITFunction):
                scope[name] = types.FunctionType(value.fn.__code__, scope, name, value.fn.__defaults__)
        scope[kernel.fn.__name__](*given, **constants)
        copies.wait_group(0)

    with _values(), ThreadPoolExecutor(programs if together else 1) as threads:
        list(threads.map(run, range(programs)))
