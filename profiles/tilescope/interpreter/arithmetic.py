"""Hooks for arithmetic that count floating-point operations, leave out values and correct narrow floats.

Triton's own interpreter computes with the codes of bfloat16 and 8-bit floats as if they were integers. Here they are decoded,
computed in fp32 and rounded once. Imports torch and triton.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle, interpreter_builder

from tilescope.interpreter import inline_assembly, libdevice, narrow, undefined
from tilescope.interpreter.blocks import NeedsValues, NotServed, first, is_opaque, opaque, unknown
from tilescope.interpreter.meter import MULTIPLIED, Counting

#: Elementwise builder methods on floating-point numbers, with the flops of one element. fadd has a hook of its own.
_FLOATING = {
    **dict.fromkeys(("fsub", "fmul", "fdiv", "frem", "precise_divf", "approx_divf", "fneg"), 1),
    **dict.fromkeys(("exp", "exp2", "log", "log2", "sqrt", "precise_sqrt", "rsqrt", "sin", "cos", "erf"), 1),
    "fma": 2,
    **dict.fromkeys(("floor", "ceil", "clampf", "minimumf", "minnumf", "maximumf", "maxnumf"), 0),
    **dict.fromkeys((f"fcmp{s}{o}" for s in "OU" for o in ("EQ", "NE", "LE", "LT", "GE", "GT")), 0),
}
#: Elementwise builder methods on bits or integers.
_BITS = (
    *("mul", "sdiv", "udiv", "idiv", "srem", "urem", "add", "sub", "shl", "lshr", "ashr", "iabs", "fabs", "select"),
    *("minsi", "minui", "maxsi", "maxui", "and", "or", "xor", "umulhi", "addptr"),
    *(f"icmp{o}" for o in ("EQ", "NE", "SLE", "SLT", "SGE", "SGT", "ULE", "ULT", "UGE", "UGT")),
    *("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc", "int_cast", "fp_to_fp"),
    *("bitcast", "int_to_ptr", "ptr_to_int"),
)
#: Builder methods that move elements. Their first one or two arguments are blocks.
_SHAPE = ("reshape", "trans", "expand_dims", "broadcast", "cat", "join", "split", "splat", "unsplat")
#: Builder methods that are right for codes of narrow floats. Others would take them for integers or other floats.
_NARROW = frozenset({
    *_FLOATING, *_SHAPE, "fadd", "dot", "select", "fabs", "addptr", "bitcast", "si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui",
    "fp_ext", "fp_trunc", "int_cast", "fp_to_fp",
})  # fmt: skip
#: Parts of the names of methods that move elements unchanged.
_MOVING = ("load", "store", "atomic", "descriptor", "gather", "print", "assert")
#: Attribute of a product whose accumulator was zero.
_PRODUCT = "tilescope.product"
_TOWARDS_ZERO = interpreter._ir.ROUNDING_MODE.RTZ


#: Lines that a launch may print.
PRINTED = 20


class Arithmetic:
    """The builder's methods that compute."""

    def __init__(self, counting: Counting) -> None:
        self.counting = counting
        self.original = interpreter_builder

    def methods(self) -> dict[str, Callable[..., Any]]:
        """The methods by their names in Triton's builder."""
        methods: dict[str, Callable[..., Any]] = {
            "create_dot": self.dot,
            "cast_impl": self.cast,
            "create_fp_to_fp": self.fp_to_fp,
            "create_erf": lambda block: TensorHandle(libdevice.erf(block.data), block.dtype.scalar),
            "create_inline_asm": self.inline_asm,
            "create_extern_elementwise": self.extern_elementwise,
            "create_print": self.show,
            "create_assert": self.require,
            "get_all_ones_value": _all_ones,
        }
        methods |= {f"get_{kind}": _constant(kind) for kind in narrow.FORMATS}
        for names, adapt in ((_FLOATING, self.in_fp32), (_BITS, lambda create: create)):
            for created in (f"create_{name}" for name in names):
                if hasattr(self.original, created):
                    create = adapt(methods.get(created, getattr(self.original, created)))
                    create = _of_bool(create) if "cmp" in created else create
                    methods[created] = self.elementwise(create, _FLOATING.get(created.removeprefix("create_"), 0))
        methods["create_fadd"] = self.add(self.in_fp32(self.original.create_fadd))
        if (looking := self.counting.not_finite) is not None:
            for name in ("fadd", "dot", "fp_trunc", "fp_to_fp", *_FLOATING):
                create = methods.get(f"create_{name}", getattr(self.original, f"create_{name}", None))
                if create is not None:
                    methods[f"create_{name}"] = looking.watched(name, create)
        if not self.counting.values:
            for name in _SHAPE:
                methods[f"create_{name}"] = self.shape(getattr(self.original, f"create_{name}"))
            methods["create_gather"] = self.gather
            for name in dir(self.original):
                if name.startswith("create_") and name not in methods and "descriptor" not in name:
                    methods[name] = self.guarded(getattr(self.original, name))
        for name in dir(self.original):
            known = name.removeprefix("create_") in _NARROW or any(part in name for part in _MOVING)
            if name.startswith("create_") and not known:
                methods[name] = _refusing_narrow(name, methods.get(name, getattr(self.original, name)))
        moving = [f"create_{name}" for name in _SHAPE]
        computing = ("cast_impl", *moving, *(f"create_{name}" for name in (*_BITS, *_FLOATING, "fadd")))
        made = {name: methods.get(name) or getattr(self.original, name, None) for name in computing}
        return methods | undefined.methods(self.counting, {n: create for n, create in made.items() if create}, moving)

    def show(self, prefix: str, hexadecimal: bool, values: Any, signed: Any) -> None:
        """Prints what a program prints, of the first ``PRINTED`` lines of a launch: thousands of programs would each print one."""
        if not self.counting.values or is_opaque(values):
            return
        self.counting.printed += 1
        if self.counting.printed <= PRINTED:
            # Not to standard output, which may be a protocol's.
            with contextlib.redirect_stdout(sys.stderr):
                type(self.original).create_print(self.original, prefix, hexadecimal, values, signed)
        elif self.counting.printed == PRINTED + 1:
            print(f"more than {PRINTED} lines of device_print: the others are left out", file=sys.stderr)

    def require(self, condition: Any, text: str) -> None:
        """Notes an assertion that does not hold. Without TRITON_DEBUG a GPU goes on."""
        if self.counting.meter is None:
            return
        if is_opaque((condition,)) and not self.counting.values:
            raise NeedsValues
        if is_opaque((condition,)) or condition.data.all():
            return
        # These end parts of the fault's line.
        told = re.sub(r"\s*[:;]\s*", ", ", " ".join(str(text).split()))[:200]
        place = self.counting.line(), repr(told) if told else ""
        self.counting.meter.seen.violated.setdefault(place, set()).add(self.counting.program.number)

    def in_fp32(self, create: Callable[..., Any]) -> Callable[..., Any]:
        """Extends an operation to narrow floats: they are computed in fp32."""

        def created(*args: Any, **kwargs: Any) -> Any:
            narrowed = next((arg.dtype.scalar for arg in args if _is_narrow(arg)), None)
            if narrowed is None:
                return create(*args, **kwargs)
            result = create(*(self.fp_to_fp(a, tl.float32, None) if _is_narrow(a) else a for a in args), **kwargs)
            return result if result.data.dtype == np.bool_ else self.fp_to_fp(result, narrowed, None)

        return created

    def elementwise(self, create: Callable[..., Any], flops: int) -> Callable[..., Any]:
        def created(*args: Any, **kwargs: Any) -> Any:
            if not is_opaque(args):
                result = create(*args, **kwargs)
                self.counting.spend(result.data.size)
            else:
                self.counting.spend()
                blocks = [arg.data.shape for arg in args if isinstance(arg, TensorHandle)]
                small = [first(arg) if isinstance(arg, TensorHandle) else arg for arg in args]
                made = create(*small, **kwargs)
                result = opaque(made.data, np.broadcast_shapes(*blocks), made.dtype)
            self.counting.flops(flops * result.data.size)
            return result

        return created

    def add(self, create: Callable[..., Any]) -> Callable[..., Any]:
        """Addition. The sum in ``acc += tl.dot(a, b)`` is not counted, because the product's accumulation already is."""
        counted, accumulated = self.elementwise(create, 1), self.elementwise(create, 0)

        def added(a: Any, b: Any) -> Any:
            result = (accumulated if _PRODUCT in a.attr or _PRODUCT in b.attr else counted)(a, b)
            if self.counting.values:
                narrow.added(self.counting, a, b, result)
            return result

        return added

    def shape(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def created(*args: Any, **kwargs: Any) -> Any:
            made = create(*args, **kwargs)
            if not is_opaque(args):
                return made
            if isinstance(made, tuple):
                return tuple(opaque(part.data, part.data.shape, part.dtype) for part in made)
            return opaque(made.data, made.data.shape, made.dtype)

        return created

    def dot(self, a: Any, b: Any, d: Any, *options: Any) -> Any:
        self.counting.flops(2 * d.data.size * a.data.shape[-1])
        self.counting.program.stores.clear()
        if is_opaque((a, b, d)):
            self.counting.spend()
            product = opaque(d.data, d.data.shape, d.dtype.scalar)
        else:
            self.counting.spend(d.data.size * a.data.shape[-1], MULTIPLIED)
            a, b = (self.fp_to_fp(x, tl.float32, None) if _is_narrow(x) else x for x in (a, b))
            product = type(self.original).create_dot(self.original, a, b, d, *options)
        if not is_opaque(d) and not d.data.any():
            product.set_attr(_PRODUCT, True)
        return product

    def cast(self, source: Any, wanted: Any) -> Any:
        result = self._converted(source, wanted)
        if self.counting.values:
            narrow.converted(self.counting, source, result)
        return result

    def _converted(self, source: Any, wanted: Any) -> Any:
        before, after = source.dtype.scalar, wanted.scalar
        if before == after or not {before.name, after.name} & narrow.FORMATS:
            return type(self.original).cast_impl(self.original, source, wanted)
        # The result of a comparison is bool, whatever its type says.
        coded = before.name in narrow.FORMATS and source.data.dtype != np.bool_
        values = narrow.decode(source.data, before.name) if coded else source.data
        if after.name in narrow.FORMATS:
            return TensorHandle(narrow.encode(values.astype(np.float32), after.name), after)
        return TensorHandle(values.astype(interpreter._get_np_dtype(after)), after)

    def fp_to_fp(self, source: Any, wanted: Any, rounding: Any) -> Any:
        before, after = source.dtype.scalar.name, wanted.scalar.name
        other_fp8 = any(name.startswith("fp8") and name not in narrow.FORMATS for name in (before, after))
        if rounding == _TOWARDS_ZERO or other_fp8:
            return type(self.original).create_fp_to_fp(self.original, source, wanted, rounding)
        result = self.cast(first(source) if is_opaque(source) else source, wanted)
        return opaque(result.data, source.data.shape, result.dtype) if is_opaque(source) else result

    def gather(self, source: Any, indices: Any, axis: int) -> Any:
        if is_opaque(source):
            return unknown(source.dtype, indices.data.shape)
        if is_opaque(indices):
            raise NeedsValues
        return type(self.original).create_gather(self.original, source, indices, axis)

    def inline_asm(
        self, text: str, _constraints: str, blocks: Any, kinds: Any, _pure: Any = None, pack: int = 1
    ) -> Any:
        """Computes inline assembly where its instructions are known; otherwise its values are left out.

        It is assumed not to access global memory.
        """
        shape = np.broadcast_shapes(*(block.data.shape for block in blocks)) if blocks else (1,)
        left_out = not self.counting.values and is_opaque(blocks)
        try:
            if not left_out:
                return _Results(_computed(text, blocks, kinds, pack, shape))
        except inline_assembly.NotKnown as error:
            if self.counting.values:
                why = f"the interpreter does not support inline assembly ({error}), whose result is needed here"
                raise NotServed(why) from None
        return _Results(unknown(kind, shape) for kind in kinds)

    def extern_elementwise(self, _name: str, path: str, symbol: str, blocks: Any, kind: Any, _pure: bool) -> Any:
        shape = np.broadcast_shapes(*(block.data.shape for block in blocks))
        size = int(np.prod(shape))
        if kind.scalar.is_floating() and not libdevice.selects(symbol):
            self.counting.flops(size)
        if not self.counting.values and is_opaque(blocks):
            return unknown(kind, shape)
        compute = None if path else libdevice.function(symbol)
        if compute is None:
            raise NotServed(f"the interpreter does not support {symbol}, whose result is needed here")
        computed = compute(*(block.data for block in blocks))
        return TensorHandle(computed.astype(interpreter._get_np_dtype(kind.scalar)).reshape(shape), kind.scalar)

    def guarded(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def created(*args: Any, **kwargs: Any) -> Any:
            if is_opaque(args):
                raise NeedsValues
            return create(*args, **kwargs)

        return created


def _computed(text: str, blocks: Any, kinds: Any, pack: int, shape: tuple[int, ...]) -> list[Any]:
    """Results of inline assembly on one element of each block at a time. Raises NotKnown."""
    dtypes = [interpreter._get_np_dtype(kind.scalar) for kind in kinds]
    sizes = {np.dtype(dtype).itemsize for dtype in dtypes} | {block.data.dtype.itemsize for block in blocks}
    scalars = [kind.scalar for kind in kinds] + [block.dtype.scalar for block in blocks]
    if pack != 1 or sizes - {2, 4} or any(scalar.name in narrow.FORMATS for scalar in scalars):
        raise inline_assembly.NotKnown("of packed elements, or of a format that it is not known for")
    whole = [np.ascontiguousarray(np.broadcast_to(block.data, shape)) for block in blocks]
    bits = inline_assembly.compute(text, len(dtypes), [block.view(f"u{block.dtype.itemsize}") for block in whole])
    sized = [
        np.ascontiguousarray(found.astype(f"u{np.dtype(d).itemsize}")) for found, d in zip(bits, dtypes, strict=True)
    ]
    return [TensorHandle(s.view(d), kind.scalar) for s, d, kind in zip(sized, dtypes, kinds, strict=True)]


class _Results(list[Any]):
    """The results of inline assembly, in the form that Triton expects."""

    def get_result(self, index: int) -> Any:
        return self[index]


def _is_narrow(value: Any) -> bool:
    coded = isinstance(value, TensorHandle) and value.data.dtype != np.bool_
    return coded and value.dtype.scalar.name in narrow.FORMATS


def _refusing_narrow(name: str, create: Callable[..., Any]) -> Callable[..., Any]:
    """The same method, which refuses narrow floats: it would compute with their codes."""

    def created(*args: Any, **kwargs: Any) -> Any:
        for block in (*args, *kwargs.values()):
            if _is_narrow(block) and not is_opaque(block):
                operation = f"{name.removeprefix('create_')} of {block.dtype.scalar.name}"
                raise NotServed(f"the interpreter does not support {operation}: convert to float32 first")
        return create(*args, **kwargs)

    return created


def _constant(kind: str) -> Callable[[float], Any]:
    """The builder's method for a scalar of a narrow format."""
    element = tl.dtype(kind)
    return lambda value: TensorHandle(narrow.encode(np.array([value], dtype=np.float32), kind), element)


def _all_ones(kind: Any) -> TensorHandle:
    """The operand of ``~`` on integers. Triton's own has -1, which NumPy converts to no unsigned type."""
    return TensorHandle(~np.zeros(1, dtype=interpreter._get_np_dtype(kind)), kind.scalar)


def _of_bool(compare: Callable[..., Any]) -> Callable[..., Any]:
    """The same comparison with a result of type bool. Triton gives it the operands' type, which makes a number of a scalar."""

    def compared(*args: Any, **kwargs: Any) -> Any:
        result = compare(*args, **kwargs)
        return result if result.dtype == tl.int1 else TensorHandle(result.data, tl.int1)

    return compared
