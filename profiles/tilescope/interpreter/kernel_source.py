"""Rewrites a kernel's Python so that it behaves as Triton's compiler understands it, where plain Python differs.

Numbers that are assigned or returned become scalar blocks. ``and``, ``or`` and ``not`` work on whole blocks. ``min``, ``max``
and ``range`` are the language's. Functions of the language that a file imports by name are replaced by the hooked ones. The
function is compiled again in a namespace of its own, and its module is not changed. Imports triton.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_semantic

from tilescope.interpreter.blocks import plain

_PREFIX = "_tilescope_"


def rewrite(function: Any, stand_in: Callable[[Any], Any]) -> Any:
    """Rewrites the Python function of a kernel, to be called while the language is hooked.

    ``stand_in`` maps each object that the function names to its replacement. Raises OSError where the source cannot be read,
    TypeError for a lambda.
    """
    lines, number = inspect.getsourcelines(function)
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, number - 1)
    definition = tree.body[0]
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"{function.__name__} is not written as a function")
    definition.decorator_list = []
    _Rewriter().visit(tree)
    ast.fix_missing_locations(tree)
    names = _BUILTINS | function.__globals__ | inspect.getclosurevars(function).nonlocals
    names = {name: stand_in(value) for name, value in names.items()} | _HELPERS
    exec(compile(tree, function.__code__.co_filename, "exec"), names)  # noqa: S102 (the kernel itself)
    return names[function.__name__]


class _Rewriter(ast.NodeTransformer):
    def visit_Assign(self, node: ast.Assign | ast.AnnAssign | ast.Return) -> ast.AST:
        self.generic_visit(node)
        constant = isinstance(node, ast.AnnAssign) and "constexpr" in ast.unparse(node.annotation)
        if node.value is not None and not constant:
            node.value = _call("assigned", node.value)
        return node

    visit_AnnAssign = visit_Return = visit_Assign

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        # The compiler makes it a device_assert.
        told = node.msg or ast.Constant(ast.unparse(node.test))
        self.generic_visit(node)
        return ast.copy_location(ast.Expr(_call("asserted", node.test, told)), node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "conjunction" if isinstance(node.op, ast.And) else "disjunction"
        return _call(name, *(_later(value) for value in node.values))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call("negation", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        # A constant parameter is a plain value here, so BLOCK.value is BLOCK.
        self.generic_visit(node)
        return _call("constant_value", node.value) if node.attr == "value" and isinstance(node.ctx, ast.Load) else node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(_PREFIX + name, ast.Load()), list(arguments), [])


def _later(value: ast.expr) -> ast.Lambda:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


def assigned(value: Any) -> Any:
    """The value of ``name = value`` or ``return value``: a number becomes a scalar block, also in a tuple."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(assigned(item) for item in value)
    return interpreter_semantic.to_tensor(plain(value), False)


def joined(*parts: Callable[[], Any], method: str, ends: bool) -> Any:
    """``a and b`` or ``a or b``: elementwise on blocks, all of which are computed. Only a constant that is ``ends`` ends the evaluation."""
    result: Any = None
    for part in parts:
        value = part()
        if isinstance(value, tl.tensor):
            result = getattr(result, method)(value) if isinstance(result, tl.tensor) else value
        elif bool(value) is ends:
            return value
        elif not isinstance(result, tl.tensor):
            result = value
    return result


def negation(value: Any) -> Any:
    """``not a``: elementwise on a block."""
    return value.__not__() if isinstance(value, tl.tensor) else not value


def constant_value(thing: Any) -> Any:
    """``thing.value``: of a plain constant, the thing itself."""
    return thing if thing is None or isinstance(thing, (int, float, str, tl.dtype)) else thing.value


def extreme(constants: Callable[..., Any], name: str, *values: Any) -> Any:
    """``min`` or ``max`` in a kernel: Python's for constants, the language's function of that ``name`` for blocks."""
    if not any(isinstance(value, tl.tensor) for value in values):
        return constants(plain(value) for value in values)
    result = values[0]
    for value in values[1:]:
        result = getattr(tl, name)(result, value)
    return result


def loop(start: Any, stop: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """``tl.range``, and ``range`` in a kernel: the loop variable is a scalar block, as for the compiler."""
    bounds = [interpreter_semantic.to_tensor(plain(bound)) for bound in (start, stop, step) if bound is not None]
    wide = any(bound.dtype.primitive_bitwidth == 64 for bound in bounds)
    dtype, kind = (np.int64, tl.int64) if wide else (np.int32, tl.int32)
    first, last = (0, bounds[0]) if stop is None else (bounds[0], bounds[1])
    for value in range(int(first), int(last), int(bounds[-1])):
        yield tl.core.tensor(TensorHandle(np.array([value], dtype=dtype), kind), kind)


def printed(*values: Any, **_: Any) -> None:
    """``print`` in a kernel, which the compiler makes a ``device_print``."""
    if values and isinstance(values[0], str):
        tl.device_print(*values)


def asserted(condition: Any, text: Any) -> None:
    """``assert`` in a kernel."""
    tl.device_assert(condition, text)


_BUILTINS: dict[str, Any] = {
    "min": functools.partial(extreme, min, "minimum"), "max": functools.partial(extreme, max, "maximum"),
    "range": loop, "print": printed,
}  # fmt: skip
_HELPERS: dict[str, Any] = {
    f"{_PREFIX}conjunction": functools.partial(joined, method="logical_and", ends=False),
    f"{_PREFIX}disjunction": functools.partial(joined, method="logical_or", ends=True),
    **{_PREFIX + function.__name__: function for function in (assigned, asserted, negation, constant_value)},
}
