"""Whether a store's value is computed from memory, by the syntax of the kernel that stores it."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

#: Parts of the names of functions that read memory, and the position of the value in calls of ``store`` and in its methods.
_READING, _STORE, _VALUE = ("load", "atomic", "gather"), "store", 1


def computed(python: Any, line: int) -> bool:
    """Whether the value of a ``store`` at the line of the kernel ``python`` is computed from loaded values.

    A call of another function counts as computed from its arguments. False where the line has no store, or no source is found.
    """
    tree = _tree(python)
    if tree is None:
        return False
    stores = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node) == _STORE and node.lineno <= line <= (node.end_lineno or 0)
    ]
    loaded = _loaded(tree)
    values = [keyword.value for node in stores for keyword in node.keywords if keyword.arg == "value"]
    values += [node.args[_VALUE] for node in stores if len(node.args) > _VALUE]
    return any(_depends(value, loaded) for value in values)


@functools.lru_cache(maxsize=64)
def _tree(python: Any) -> ast.AST | None:
    try:
        lines, number = inspect.getsourcelines(python)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return None
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
