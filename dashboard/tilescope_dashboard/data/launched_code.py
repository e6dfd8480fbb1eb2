"""The GPU functions of a case, in the text that its run kept."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

from tilescope.models.function_names import plain_name
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase

#: Lines of a file with their numbers.
Lines = Sequence[tuple[int, str]]


def numbered(text: str) -> Lines:
    """All lines of a text."""
    return list(enumerate(text.splitlines(), 1))


def launched(loaded: LoadedRun, kernel: str, case: KernelCase) -> dict[str, Lines]:
    """By file, the functions that the case launches and those that they call; empty where the run kept none."""
    rows = loaded.table[loaded.table["kernel"] == kernel]
    own = rows.loc[(rows[OF_KERNEL] == list(case)).all(axis="columns"), "function"].dropna().unique()
    texts = loaded.sources.get(kernel, {})
    if not any(plain_name(name) in text for name in own for text in texts.values()):
        return {}
    defined = {name: definitions(text) for name, text in texts.items()}
    known = {node.name: node for nodes in defined.values() for node in nodes if node.decorator_list}
    reached = _reached(map(plain_name, own), known)
    found = {
        name: [
            line
            for node in nodes
            if node.name in reached
            for line in numbered(texts[name])[span(node)[0] - 1 : span(node)[1]]
        ]
        for name, nodes in defined.items()
    }
    return {name: lines for name, lines in found.items() if lines}


def _reached(first: Iterable[str], known: Mapping[str, ast.AST]) -> set[str]:
    """The names among ``known`` that are ``first``, or used by one that is reached."""
    reached, left = set[str](), [name for name in first if name in known]
    while left:
        name = left.pop()
        reached.add(name)
        used = {node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)}
        left += [other for other in used if other in known and other not in reached]
    return reached


def definitions(text: str) -> list[ast.FunctionDef | ast.ClassDef]:
    """The top-level functions and classes of a file; none where it cannot be parsed."""
    try:
        return [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    except (SyntaxError, ValueError):
        return []


def span(node: ast.FunctionDef | ast.ClassDef) -> tuple[int, int]:
    """Its first and last line, with decorators."""
    return min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.end_lineno or node.lineno
