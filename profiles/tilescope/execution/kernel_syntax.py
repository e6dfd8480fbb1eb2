"""A kernel's Python as a syntax tree: its calls at a line, and whether a store's value is computed from memory."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

#: Parts of the names of functions that read memory, and the position of the value in calls of ``store``.
_READING, _VALUE = ("load", "atomic", "gather"), 1
_PRECISIONS = {"input_precision", "allow_tf32"}


def default_precision(python: Any, line: int) -> bool:
    """Whether a ``dot`` at the line of the function's file names no precision. False where there is none, or no source is found."""
    found = calls(python, "dot", line, tree=_tree(python, whole=True))
    return bool(found) and not any(keyword.arg in {None, *_PRECISIONS} for node in found for keyword in node.keywords)


def lines_with(python: Any, name: str, keyword: str) -> set[int]:
    """The lines of the function's file that call a function of that name with the keyword."""
    found = calls(python, name, tree=_tree(python, whole=True))
    named = [node for node in found if any(one.arg == keyword for one in node.keywords)]
    return {line for node in named for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def computed_from_memory(python: Any, line: int) -> bool:
    """Whether the value of a ``store`` at the line of the function is computed from loaded values.

    A call of another function counts as computed from its arguments. False where the line has no store, or no source is found.
    """
    stores = calls(python, "store", line)
    values = [keyword.value for node in stores for keyword in node.keywords if keyword.arg == "value"]
    values += [node.args[_VALUE] for node in stores if len(node.args) > _VALUE]
    loaded = _loaded(_tree(python)) if values else set[str]()
    return any(_depends(value, loaded) for value in values)


def updates_by_memory(python: Any, line: int) -> bool:
    """Whether a ``store`` at the line adds to what is loaded from its own place, which loaded values decide: a histogram."""
    tree = _tree(python)
    loaded, places = _loaded(tree), {ast.dump(node.args[0]) for node in calls(python, "load") if node.args}
    stores = [node for node in calls(python, "store", line) if node.args]
    again = any(_depends(node.args[0], loaded) and ast.dump(node.args[0]) in places for node in stores)
    return again and computed_from_memory(python, line)


def counts(python: Any, line: int) -> bool:
    """Whether an ``atomic_add`` at the line of the function has a result that nobody uses, as a histogram's, unlike a ticket's."""
    found = calls(python, "atomic_add", line)
    return any(isinstance(node, ast.Expr) and node.value in found for node in ast.walk(_tree(python)))


def stores_by_memory(python: Any) -> bool:
    """Whether loaded values decide where or whether the function stores. True where it has no store, as others may be called for it."""
    tree = _tree(python)
    loaded = _loaded(tree)
    stores = calls(python, "store")
    method = [not isinstance(node.func, ast.Attribute) or getattr(node.func.value, "id", "") != "tl" for node in stores]
    places = [
        argument
        for node, own in zip(stores, method, strict=True)
        for argument in (
            *node.args[:1],
            *node.args[_VALUE + 1 :],
            *(one.value for one in node.keywords if one.arg != "value"),
        )
    ]
    deciding = [getattr(node, part, None) for node in ast.walk(tree) for part in ("test", "iter")]
    return not stores or any(_depends(part, loaded) for part in (*places, *deciding) if part is not None)


def calls(python: Any, name: str, line: int | None = None, tree: ast.AST | None = None) -> list[ast.Call]:
    """The calls of a function or method of that name in the function or another ``tree``, or at a line of it."""
    return [
        node
        for node in ast.walk(tree or _tree(python))
        if isinstance(node, ast.Call)
        and _name(node) == name
        and (line is None or node.lineno <= line <= (node.end_lineno or 0))
    ]


@functools.lru_cache(maxsize=64)
def _tree(python: Any, *, whole: bool = False) -> ast.AST:
    """The tree of the function or its ``whole`` file, with the lines of that; an empty one where no source is found."""
    try:
        lines, number = (inspect.findsource(python)[0], 1) if whole else inspect.getsourcelines(python)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return ast.Module([], [])
    return ast.increment_lineno(tree, number - 1)


def _loaded(tree: ast.AST) -> set[str]:
    """The names that are assigned a value computed from memory, anywhere in the function."""
    loaded, count = set[str](), -1
    while count < (count := len(loaded)):
        for node in ast.walk(tree):
            value = getattr(node, "value", None)
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and value and _depends(value, loaded):
                loaded |= set(_targets(node))
    return loaded


def _targets(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> Iterator[str]:
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def _depends(value: ast.expr, loaded: set[str]) -> bool:
    return any(
        (isinstance(node, ast.Name) and node.id in loaded)
        or (isinstance(node, ast.Call) and any(part in _name(node) for part in _READING))
        for node in ast.walk(value)
    )


def _name(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
