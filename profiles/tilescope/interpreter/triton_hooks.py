"""Hooks into Triton's own interpreter, active while a launch is interpreted.

The methods of the interpreter's builder compute with NumPy arrays. The hooks replace those methods and

* report each access, with its addresses, and each floating-point operation to a ``Meter``;
* can leave out floating-point values (``values=False``): addresses seldom depend on them, and without them a large workload
  takes seconds. An address, a mask or a branch that depends on such a value raises ``NeedsValues``;
* compute with bfloat16 and 8-bit floats as the hardware does. Unknown methods refuse such operands.

Patches ``triton.language`` meanwhile, so it belongs in a worker. Imports triton.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import triton.language as tl
from triton.experimental.gluon.language import _layouts
from triton.language.extra import cuda, hip
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder, interpreter_semantic
from triton.runtime.jit import JITFunction

from tilescope.interpreter import kernel_source
from tilescope.interpreter.arithmetic import Arithmetic
from tilescope.interpreter.blocks import NeedsValues, NotServed, Opaque, as_tensor, is_opaque, plain
from tilescope.interpreter.memory import Memory
from tilescope.interpreter.meter import Counting
from tilescope.interpreter.reductions import Reductions
from tilescope.interpreter.scaled_products import dot_scaled, product

#: Attribute of a block's type with its cache key, and the key of all scalars.
_KEY, _SCALAR = "_tilescope_key", "scalar"
_POINTER = np.dtype(np.uint64)
#: NVIDIA's library of device functions, and the module that stands for any device's.
_LIBRARIES = {
    module.__name__: module for module in (cuda.libdevice, importlib.import_module("triton.language.extra.libdevice"))
}
_OPTIONS = dataclasses.replace(
    interpreter_builder.options, sanitize_overflow=interpreter_builder.options.debug, debug=True
)
_GLUON = "triton.experimental.gluon.language"
#: Triton's mark for an attribute that was absent before.
_ABSENT = interpreter._MISSING
#: Functions that are Triton's but for their layout, and those that only change a layout.
_ALIKE = frozenset({
    "arange", "full", "zeros", "zeros_like", "full_like", "load", "store", "program_id", "num_programs", "where", "maximum", "minimum",
    "sum", "max", "min", "xor_sum", "reduce", "associative_scan", "expand_dims", "broadcast", "reshape", "permute", "join", "split", "cast",
    "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or", "atomic_xchg", "atomic_xor", "cdiv",
    "exp", "exp2", "fma", "log", "log2", "cos", "rsqrt", "sin", "sqrt", "sqrt_rn", "abs", "fdiv", "div_rn", "erf", "floor", "ceil", "umulhi",
    "assume", "multiple_of", "max_contiguous", "static_assert", "static_range", "constexpr", "tensor", "dtype", "tuple", "to_tensor",
    "device_assert",
})  # fmt: skip
_SAME = frozenset({"convert_layout", "set_auto_layout"})


@contextlib.contextmanager
def hooked(function: Any, counting: Counting) -> Iterator[Callable[..., Any]]:
    """Activates the hooks. Yields the kernel ``function`` as plain Python."""
    rewritten: dict[Any, Any] = {}

    def rewrite(python: Any) -> Any:
        if python not in rewritten:
            rewritten[python] = kernel_source.rewrite(python, stand_in)
        return rewritten[python]

    def stand_in(value: Any) -> Any:
        if id(value) in replaced:
            return replaced[id(value)]
        if isinstance(value, types.ModuleType) and value.__name__ == _GLUON:
            return Language()
        # A file that loads the device's library by its path has other function objects.
        module = getattr(value, "__module__", None) if isinstance(value, types.FunctionType) else None
        return getattr(_LIBRARIES[module], value.__name__, value) if module in _LIBRARIES else value

    def call(device_function: Any, *args: Any, **kwargs: Any) -> Any:
        return rewrite(device_function.fn)(*args, **kwargs)

    # Patched once, not at each call of a device function as Triton does.
    scope = interpreter._patch_lang(types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    try:
        _patch(scope, counting)
        # Names that a file has imported still refer to the originals.
        replaced = {id(old): getattr(where, name) for where, name, old in scope._changes if old is not _ABSENT}
        # Arithmetic guards all methods against missing values; Memory's own replace those.
        methods = Arithmetic(counting).methods() | Memory(counting).methods()
        methods["create_dot_scaled"] = functools.partial(product, counting)
        with (
            mock.patch.object(JITFunction, "__call__", call),
            mock.patch.object(interpreter.InterpretedFunction, "__call__", call),
            mock.patch.dict(vars(interpreter_builder), methods),
            # Assertions are checked. Triton would compute each integer sum, difference and product twice, for those of overflow.
            mock.patch.object(interpreter_builder, "options", _OPTIONS),
            # Triton rebuilds its table of dtypes at every call.
            mock.patch.object(interpreter, "_get_np_dtype", _numpy_dtype(interpreter._get_np_dtype)),
            _remembered_types(),
        ):
            yield rewrite(function)
    finally:
        scope.restore()


def _patch(scope: Any, counting: Counting) -> None:
    """Patches parts of the language that Triton's interpreter does not handle, or handles slowly."""
    reductions = Reductions(counting)
    for language in (tl, tl.core):
        scope.set_attr(language, "reduce", reductions.reduce)
        scope.set_attr(language, "associative_scan", reductions.scan)
        scope.set_attr(language, "map_elementwise", map_elementwise)
        scope.set_attr(language, "dot_scaled", dot_scaled)
        scope.set_attr(language, "range", kernel_source.loop)
        scope.set_attr(language, "static_print", lambda *_, **__: None)
    for name, member in inspect.getmembers(tl.tensor):
        if isinstance(member, (JITFunction, interpreter.InterpretedFunction)):
            scope.set_attr(tl.tensor, name, functools.partialmethod(member))
    for module in (cuda, cuda.libdevice):
        interpreter._patch_builtin(module, interpreter_builder, scope)
    for name in ("gdc_wait", "gdc_launch_dependents"):
        scope.set_attr(cuda, name, lambda **_: None)
    # The compiler resolves functions of the general module in the device's own.
    general = _LIBRARIES["triton.language.extra.libdevice"]
    for name in vars(general):
        if hasattr(cuda.libdevice, name) and isinstance(getattr(general, name), types.FunctionType):
            scope.set_attr(general, name, getattr(cuda.libdevice, name))
    for name, member in vars(hip.libdevice).items():
        if isinstance(member, types.FunctionType):
            scope.set_attr(hip.libdevice, name, _refused(f"{name} of AMD's device library"))
    # NumPy 2.5 does not convert an array with a dimension by itself.
    scope.set_attr(tl.tensor, "__index__", lambda block: int(block.handle.data.item()))
    if not counting.values:
        for name in ("__index__", "__bool__"):
            scope.set_attr(tl.tensor, name, _needing_values(getattr(tl.tensor, name)))


def _refused(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotServed(f"{name} is not interpreted")

    return refused


def _needing_values(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def converted(block: Any) -> Any:
        if isinstance(block.handle, Opaque):
            raise NeedsValues
        return convert(block)

    return converted


def _numpy_dtype(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same function, cached by element type."""
    of_scalar = functools.cache(original)

    def found(kind: Any) -> Any:
        element = kind.element_ty if isinstance(kind, tl.block_type) else kind
        return _POINTER if isinstance(element, tl.pointer_type) else of_scalar(element)

    return found


@contextlib.contextmanager
def _remembered_types() -> Iterator[None]:
    """Caches the attributes of block types and blocks by element type and shape.

    Triton computes them again for each value, which takes half of all the time.
    """
    new_type, new_tensor = tl.block_type.__init__, tl.tensor.__init__
    types_seen: dict[Any, dict[str, Any]] = {}
    tensors_seen: dict[Any, dict[str, Any]] = {}

    def block_type(self: Any, element: Any, shape: Any) -> None:
        key = (element.name, tuple(plain(extent) for extent in shape))
        seen = types_seen.get(key)
        if seen is None:
            new_type(self, element, shape)
            types_seen[key] = {**vars(self), _KEY: key}
        else:
            vars(self).update(seen)
            self.element_ty = element

    def tensor(self: Any, handle: Any, kind: Any) -> None:
        # Scalars have no shape, whatever their type.
        key = vars(kind).get(_KEY) if kind.is_block() else _SCALAR
        seen = tensors_seen.get(key) if key else None
        if seen is None:
            new_tensor(self, handle, kind)
            if key:
                tensors_seen[key] = {name: vars(self)[name] for name in ("shape", "numel")}
        else:
            vars(self).update(seen, handle=handle, type=kind, dtype=kind.scalar)

    with mock.patch.object(tl.block_type, "__init__", block_type), mock.patch.object(tl.tensor, "__init__", tensor):
        yield


def map_elementwise(function: Callable[..., Any], *blocks: Any, pack: Any = 1, **_: Any) -> Any:
    """Calls ``function`` for each element. Returns a block, or a tuple of blocks where it returns several numbers.

    Raises NeedsValues without values, since the operations of an element depend on its value, and NotServed for a ``pack``
    other than 1.
    """
    if plain(pack) != 1:
        raise NotServed("map_elementwise is interpreted with one element to a call: leave pack out")
    operands = [interpreter_semantic.to_tensor(block) for block in blocks]
    if is_opaque([operand.handle for operand in operands]):
        raise NeedsValues
    data = np.broadcast_arrays(*(operand.handle.data for operand in operands))
    scalar = not any(operand.type.is_block() for operand in operands)
    made: list[tuple[Any, ...]] = []
    several = False
    for place in np.ndindex(data[0].shape):
        element = [
            as_tensor(TensorHandle(values[place].reshape(1), operand.dtype), operand.dtype, ())
            for values, operand in zip(data, operands, strict=True)
        ]
        result = function(*element)
        several = isinstance(result, (tuple, tl.tuple))
        made.append(tuple(interpreter_semantic.to_tensor(x) for x in (result if several else (result,))))
    results = tuple(
        as_tensor(
            TensorHandle(np.concatenate([x.handle.data for x in column]).reshape(data[0].shape), column[0].dtype),
            column[0].dtype,
            () if scalar else data[0].shape,
        )
        for column in zip(*made, strict=True)
    )
    return results if several else results[0]


class Language:
    """Stands for ``triton.experimental.gluon.language`` in a kernel whose layouts do not change what it computes.

    Layouts are left out. Shared memory, barriers, asynchronous copies and other functions raise NotServed.
    """

    def __getattr__(self, name: str) -> Any:
        if name in _SAME:
            return lambda block, *_, **__: block
        if hasattr(_layouts, name):
            return getattr(_layouts, name)
        theirs = getattr(tl, name, None)
        if isinstance(theirs, tl.dtype):
            return theirs
        if name not in _ALIKE or theirs is None:
            raise NotServed(f"{name} of Gluon is not interpreted: time it on a GPU")
        return _without_layout(theirs) if callable(theirs) and not isinstance(theirs, type) else theirs


def _without_layout(function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, layout: Any = None, **kwargs: Any) -> Any:
        kept = [one for one in args if type(one).__module__ != _layouts.__name__]
        return function(*kept, **kwargs)

    return called
