"""Triton's language in numpy, as its interpreter has it, with every access reported to a meter.

Triton's interpreter builds no code: its builder's methods compute with numpy arrays. ``Builder`` replaces those methods
while a launch is interpreted. They

* report each access, with its addresses, to a ``Meter``, and each floating-point operation;
* can leave floating-point values out (``values=False``): where memory is touched seldom depends on them, and without
  them a large workload takes seconds. Should an address, a mask or a branch depend on one, ``NeedsValues`` is raised;
* convert bfloat16 and e4m3 as the hardware does, and multiply matrices of them, which Triton 3.6's interpreter does not.

Patches ``triton.language`` while it is in use, so it belongs in a worker. Imports triton.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder, interpreter_semantic
from triton.runtime.jit import JITFunction

from tilescope import float8
from tilescope.meter import Meter

Array = npt.NDArray[Any]


class NeedsValues(Exception):
    """The kernel's accesses depend on floating-point values, and those were left out."""


class OutOfTime(Exception):
    """The deadline passed in the middle of a program."""


class Opaque(TensorHandle):  # type: ignore[misc]
    """A block whose shape and type are known and whose values are not. Its data is one element, seen everywhere."""

    def clone(self) -> Opaque:
        return Opaque(self.data, self.dtype)


def _opaque(sample: Array, shape: tuple[int, ...], dtype: Any) -> Opaque:
    return Opaque(np.broadcast_to(np.asarray(sample).reshape(-1)[:1].reshape(()), shape), dtype)


def _is_opaque(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_opaque(item) for item in value)
    return isinstance(value, Opaque)


#: Builder methods that work on each element by itself, with the flops of one element.
_ELEMENTWISE = {
    **dict.fromkeys(("fadd", "fsub", "fmul", "fdiv", "frem", "precise_divf"), 1),
    **dict.fromkeys(("exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf"), 1),
    "fma": 2,
    **dict.fromkeys(("floor", "ceil", "fabs", "clampf", "minimumf", "minnumf", "maximumf", "maxnumf", "select"), 0),
    **dict.fromkeys(("mul", "sdiv", "udiv", "idiv", "srem", "urem", "add", "sub", "shl", "lshr", "ashr", "iabs"), 0),
    **dict.fromkeys(("minsi", "minui", "maxsi", "maxui", "and", "or", "xor", "umulhi", "addptr"), 0),
    **dict.fromkeys((f"icmp{o}" for o in ("EQ", "NE", "SLE", "SLT", "SGE", "SGT", "ULE", "ULT", "UGE", "UGT")), 0),
    **dict.fromkeys((f"fcmp{s}{o}" for s in "OU" for o in ("EQ", "NE", "LE", "LT", "GE", "GT")), 0),
    **dict.fromkeys(("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "int_cast", "fp_to_fp"), 0),
    **dict.fromkeys(("bitcast", "int_to_ptr", "ptr_to_int"), 0),
}
#: Builder methods that move elements about; the first argument, or the first two, are blocks.
_SHAPE = ("reshape", "trans", "expand_dims", "broadcast", "cat", "join", "split", "splat", "unsplat")


class Builder:
    """The methods that replace those of Triton's interpreter while a launch runs."""

    def __init__(self, meter: Meter | None, values: bool, source: str, deadline: float) -> None:
        self.meter = meter
        self.values = values
        self.source = source
        self.deadline = deadline
        self.original = interpreter_builder

    def methods(self) -> dict[str, Callable[..., Any]]:
        methods: dict[str, Callable[..., Any]] = {
            "create_load": self.load,
            "create_store": self.store,
            "create_masked_load": self.masked_load,
            "create_masked_store": self.masked_store,
            "create_atomic_rmw": self.atomic_rmw,
            "create_atomic_cas": self.atomic_cas,
            "create_dot": self.dot,
            "cast_impl": self.cast,
            "create_fp_to_fp": self.fp_to_fp,
        }
        for name, flops in _ELEMENTWISE.items():
            created = f"create_{name}"
            if hasattr(self.original, created):
                methods[created] = self.elementwise(methods.get(created, getattr(self.original, created)), flops)
        if not self.values:
            for name in _SHAPE:
                methods[f"create_{name}"] = self.shape(getattr(self.original, f"create_{name}"))
            methods |= {
                "create_print": lambda *_: None,
                "create_assert": lambda *_: None,
                "create_gather": self.gather,
                "create_inline_asm": self.inline_asm,
                "create_extern_elementwise": self.extern_elementwise,
            }
            for name in dir(self.original):
                if name.startswith("create_") and name not in methods and "descriptor" not in name:
                    methods[name] = self.guarded(getattr(self.original, name))
        return methods

    # Memory.

    def load(self, pointers: Any, *_: Any, **__: Any) -> Any:
        return self.masked_load(pointers, None, None)

    def store(self, pointers: Any, value: Any, *_: Any, **__: Any) -> None:
        self.masked_store(pointers, value, None)

    def masked_load(self, pointers: Any, mask: Any, other: Any, *_: Any, **__: Any) -> Any:
        addresses = self._addresses(pointers, mask)
        if self.meter is not None:
            self.meter.load(addresses, _size(pointers), self._line())
        element = pointers.get_element_ty()
        dtype = interpreter._get_np_dtype(element)
        if not self.values and element.is_floating():
            return _opaque(np.zeros(1, dtype), pointers.data.shape, element)
        mask_data = np.ones(pointers.data.shape, dtype=bool) if mask is None else _data(mask)
        other_data = np.zeros(pointers.data.shape, dtype=dtype) if other is None else other.data
        loaded = interpreter._interpreter.load(_whole(pointers.data), _whole(mask_data), _whole(other_data), dtype)
        return TensorHandle(loaded, element)

    def masked_store(self, pointers: Any, value: Any, mask: Any, *_: Any, **__: Any) -> None:
        addresses = self._addresses(pointers, mask)
        if self.meter is not None:
            self.meter.store(addresses, _size(pointers), self._line())
        if _is_opaque(value):
            return
        mask_data = np.ones(pointers.data.shape, dtype=bool) if mask is None else _data(mask)
        interpreter._interpreter.store(_whole(pointers.data), _whole(value.data), _whole(mask_data))

    def atomic_rmw(self, operation: Any, pointers: Any, value: Any, mask: Any, *options: Any) -> Any:
        self._atomic(pointers, mask)
        if _is_opaque(value):
            return _opaque(value.data, value.data.shape, value.dtype.scalar)
        create = type(self.original).create_atomic_rmw
        return create(self.original, operation, pointers, value, mask, *options)

    def atomic_cas(self, pointers: Any, compare: Any, value: Any, *options: Any) -> Any:
        self._atomic(pointers, None)
        if _is_opaque((compare, value)):
            raise NeedsValues
        return type(self.original).create_atomic_cas(self.original, pointers, compare, value, *options)

    def _atomic(self, pointers: Any, mask: Any) -> None:
        addresses = self._addresses(pointers, mask)
        if self.meter is not None:
            self.meter.load(addresses, _size(pointers), self._line())
            self.meter.store(addresses, _size(pointers), self._line())

    def _addresses(self, pointers: Any, mask: Any) -> Array:
        if _is_opaque((pointers, mask)):
            raise NeedsValues
        if time.perf_counter() > self.deadline:
            raise OutOfTime
        addresses: Array = pointers.data
        if mask is None:
            return addresses
        wanted: Array = np.broadcast_to(_data(mask), addresses.shape)
        return addresses if wanted.all() else addresses[wanted]

    def _line(self) -> int:
        """The line of the kernel's file that is being executed."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self.source:
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    # Arithmetic.

    def elementwise(self, create: Callable[..., Any], flops: int) -> Callable[..., Any]:
        def created(*args: Any, **kwargs: Any) -> Any:
            if not _is_opaque(args):
                result = create(*args, **kwargs)
            else:
                blocks = [arg.data.shape for arg in args if isinstance(arg, TensorHandle)]
                small = [_one(arg) if isinstance(arg, TensorHandle) else arg for arg in args]
                made = create(*small, **kwargs)
                result = _opaque(made.data, np.broadcast_shapes(*blocks), made.dtype)
            # The sum in ``acc += tl.dot(a, b)`` is the product's own accumulation, which has been counted.
            counted = flops and not any(isinstance(arg, TensorHandle) and _PRODUCT in arg.attr for arg in args)
            if counted and self.meter is not None:
                self.meter.flops += flops * result.data.size
            return result

        return created

    def shape(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def created(*args: Any, **kwargs: Any) -> Any:
            made = create(*args, **kwargs)
            if not _is_opaque(args):
                return made
            if isinstance(made, tuple):
                return tuple(_opaque(part.data, part.data.shape, part.dtype) for part in made)
            return _opaque(made.data, made.data.shape, made.dtype)

        return created

    def dot(self, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if self.meter is not None:
            self.meter.flops += 2 * d.data.size * a.data.shape[-1]
        if _is_opaque((a, b, d)):
            product = _opaque(d.data, d.data.shape, d.dtype.scalar)
        else:
            a, b = self._multiplied(a), self._multiplied(b)
            product = type(self.original).create_dot(self.original, a, b, d, *options)
        if not _is_opaque(d) and not d.data.any():
            product.set_attr(_PRODUCT, True)
        return product

    def _multiplied(self, operand: Any) -> Any:
        """An operand of a product, as fp32 where its own numbers would be taken for integers."""
        narrow = operand.dtype.scalar in (tl.bfloat16, tl.float8e4nv)
        return self.fp_to_fp(operand, tl.float32, None) if narrow else operand

    def cast(self, source: Any, wanted: Any) -> Any:
        before, after = source.dtype.scalar, wanted.scalar
        if tl.bfloat16 not in (before, after) or before == after or "fp8" in f"{before}{after}":
            return type(self.original).cast_impl(self.original, source, wanted)
        values = _from_bfloat16(source.data) if before == tl.bfloat16 else source.data
        if after == tl.bfloat16:
            return TensorHandle(_to_bfloat16(values.astype(np.float32)), after)
        return TensorHandle(values.astype(interpreter._get_np_dtype(after)), after)

    def fp_to_fp(self, source: Any, wanted: Any, rounding: Any) -> Any:
        before, after = source.dtype.scalar, wanted.scalar
        if before == tl.float8e4nv:
            return self.cast(TensorHandle(float8.decode(source.data), tl.float32), wanted)
        if after == tl.float8e4nv and rounding != _TOWARDS_ZERO:
            return TensorHandle(float8.encode(self.cast(source, tl.float32).data), after)
        if tl.bfloat16 in (before, after) and "fp8" not in f"{before}{after}" and rounding != _TOWARDS_ZERO:
            return self.cast(source, wanted)
        return type(self.original).create_fp_to_fp(self.original, source, wanted, rounding)

    def gather(self, source: Any, indices: Any, axis: int) -> Any:
        if _is_opaque(source):
            return _opaque(source.data, indices.data.shape, source.dtype.scalar)
        if _is_opaque(indices):
            raise NeedsValues
        return type(self.original).create_gather(self.original, source, indices, axis)

    def inline_asm(self, _asm: str, _constraints: str, blocks: Any, kinds: Any, *_: Any) -> Any:
        """Assembly computes values, which are left out; it is trusted not to touch global memory."""
        shape = np.broadcast_shapes(*(block.data.shape for block in blocks)) if blocks else (1,)
        return _Results(_opaque(np.zeros(1, interpreter._get_np_dtype(k.scalar)), shape, k.scalar) for k in kinds)

    def extern_elementwise(self, _name: str, _path: str, _symbol: str, blocks: Any, kind: Any, _pure: bool) -> Any:
        shape = np.broadcast_shapes(*(block.data.shape for block in blocks))
        return _opaque(np.zeros(1, interpreter._get_np_dtype(kind)), shape, kind.scalar)

    def guarded(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def created(*args: Any, **kwargs: Any) -> Any:
            if _is_opaque(args):
                raise NeedsValues
            return create(*args, **kwargs)

        return created

    # Reductions and scans, which Triton's interpreter does outside its builder.

    def reduce(self, reduce: Callable[..., Any], scan: bool) -> Callable[..., Any]:
        def reduced(block: Any, axis: Any, combine: Any, *args: Any, **kwargs: Any) -> Any:
            parts = block if isinstance(block, (tuple, tl.tuple)) else (block,)
            if not _is_opaque([part.handle for part in parts]):
                result = reduce(block, axis, combine, *args, **kwargs)
                made = result if isinstance(result, tuple) else (result,)
            else:
                keep = bool(_plain(args[0] if args else kwargs.get("keep_dims", False))) and not scan
                made = tuple(_reduced(part, _plain(axis), keep, scan) for part in parts)
                result = made if isinstance(block, (tuple, tl.tuple)) else made[0]
            if self.meter is not None and parts[0].dtype.is_floating() and not _compares(combine):
                self.meter.flops += parts[0].handle.data.size - (0 if scan else made[0].handle.data.size)
            return result

        return reduced


class _Results(list[Any]):
    """What a call to inline assembly returns: a result for each output."""

    def get_result(self, index: int) -> Any:
        return self[index]


#: Marks a product that nothing has been added to yet.
_PRODUCT = "tilescope.product"
#: Where a block's type keeps what it was remembered under.
_KEY = "_tilescope_key"
_POINTER = np.dtype(np.uint64)
_TOWARDS_ZERO = interpreter._ir.ROUNDING_MODE.RTZ


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _compares(combine: Any) -> bool:
    """Whether a reduction picks an element instead of computing one: a comparison is not counted as an operation."""
    name = getattr(getattr(combine, "fn", combine), "__name__", "")
    return any(word in name for word in ("max", "min"))


def _reduced(block: Any, axis: int | None, keep: bool, scan: bool) -> Any:
    shape = tuple(block.handle.data.shape)
    if not scan:
        dropped = range(len(shape)) if axis is None else (axis % len(shape),)
        shape = tuple(1 if i in dropped else n for i, n in enumerate(shape) if keep or i not in dropped)
    handle = _opaque(block.handle.data, shape or (1,), block.dtype.scalar)
    return tl.core.tensor(handle, tl.block_type(block.dtype, list(shape)) if shape else block.dtype)


def _data(mask: Any) -> Array:
    # Block pointers hand a bare array.
    data: Array = mask.data if isinstance(mask, TensorHandle) else mask
    return data


def _whole(data: Array) -> Array:
    return np.ascontiguousarray(data).reshape(data.shape)


def _size(pointers: Any) -> int:
    return max(1, int(pointers.get_element_ty().primitive_bitwidth) // 8)


def _one(handle: Any) -> Any:
    """The same handle with one element in each dimension."""
    return TensorHandle(handle.data[(slice(0, 1),) * handle.data.ndim], handle.dtype)


def _from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: Array) -> Array:
    """Round to nearest, ties to even; a NaN stays one."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


@contextlib.contextmanager
def numpy_language(function: Any, builder: Builder) -> Iterator[Callable[..., Any]]:
    """Triton's language, in numpy. Yields the function as plain Python."""
    globals_patched = contextlib.ExitStack()
    rewritten: dict[Any, Any] = {}

    def call(device_function: Any, *args: Any, **kwargs: Any) -> Any:
        python = device_function.fn
        if python not in rewritten:
            rewritten[python] = rewrite(python)
        return rewritten[python](*args, **kwargs)

    def rewrite(python: Any) -> Any:
        result = interpreter.FunctionRewriter(python).rewrite_ast()
        # A loop's variable is a block to Triton: it has ``.to()``, for one.
        globals_patched.enter_context(mock.patch.dict(python.__globals__, {"range": _range}))
        return result

    def checked(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def converted(block: Any) -> Any:
            if isinstance(block.handle, Opaque):
                raise NeedsValues
            return convert(block)

        return converted

    # Each call of a device function would patch the language anew; once is enough.
    scope = interpreter._patch_lang(_with_all_languages(function))
    try:
        for language in (tl, tl.core):
            scope.set_attr(language, "reduce", builder.reduce(language.reduce, scan=False))
            scope.set_attr(language, "associative_scan", builder.reduce(language.associative_scan, scan=True))
            scope.set_attr(language, "range", _range)
        for module in {v for v in function.__globals__.values() if isinstance(v, types.ModuleType)}:
            if module.__name__.startswith("triton.language.extra"):
                interpreter._patch_builtin(module, interpreter_builder, scope)
        if not builder.values:
            for name in ("__index__", "__bool__"):
                scope.set_attr(tl.tensor, name, checked(getattr(tl.tensor, name)))
        with (
            globals_patched,
            mock.patch.object(JITFunction, "__call__", call),
            mock.patch.object(interpreter.InterpretedFunction, "__call__", call),
            mock.patch.dict(vars(interpreter_builder), builder.methods()),
            # Triton builds its table of dtypes at every call.
            mock.patch.object(interpreter, "_get_np_dtype", _numpy_dtype(interpreter._get_np_dtype)),
            _remembered_types(),
        ):
            yield rewrite(function)
    finally:
        scope.restore()


def _numpy_dtype(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, remembering what it answered for each element type."""
    of_scalar = functools.cache(original)

    def found(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return _POINTER if isinstance(element, tl.pointer_type) else of_scalar(element)

    return found


@contextlib.contextmanager
def _remembered_types() -> Iterator[None]:
    """Triton works out a block's type, and what a block takes from it, anew for each value: half of all the time.

    Both follow from element type and shape alone, so what the first of a kind worked out serves the others.
    """
    new_type, new_tensor = tl.block_type.__init__, tl.tensor.__init__
    types_seen: dict[Any, dict[str, Any]] = {}
    tensors_seen: dict[Any, dict[str, Any]] = {}

    def block_type(self: Any, element: Any, shape: Any) -> None:
        key = (element.name, tuple(_plain(extent) for extent in shape))
        seen = types_seen.get(key)
        if seen is None:
            new_type(self, element, shape)
            types_seen[key] = {**vars(self), _KEY: key}
        else:
            vars(self).update(seen)
            self.element_ty = element

    def tensor(self: Any, handle: Any, kind: Any) -> None:
        key = vars(kind).get(_KEY)
        seen = tensors_seen.get(key) if key else None
        if seen is None:
            new_tensor(self, handle, kind)
            if key:
                tensors_seen[key] = {name: vars(self)[name] for name in ("shape", "numel")}
        else:
            vars(self).update(seen, handle=handle, type=kind, dtype=kind.scalar)

    with mock.patch.object(tl.block_type, "__init__", block_type), mock.patch.object(tl.tensor, "__init__", tensor):
        yield


def _range(start: Any, stop: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """``tl.range``, and ``range`` in a kernel: the loop variable is a scalar block, as for the compiler."""
    bounds = [interpreter_semantic.to_tensor(_plain(bound)) for bound in (start, stop, step) if bound is not None]
    wide = any(bound.dtype.primitive_bitwidth == 64 for bound in bounds)
    dtype, kind = (np.int64, tl.int64) if wide else (np.int32, tl.int32)
    first, last = (0, bounds[0]) if stop is None else (bounds[0], bounds[1])
    for value in range(int(first), int(last), int(bounds[-1])):
        yield tl.core.tensor(TensorHandle(np.array([value], dtype=dtype), kind), kind)


def _with_all_languages(function: Any) -> Any:
    """A stand-in whose globals name both of Triton's language modules, whichever the kernel's own file imports."""
    return types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
