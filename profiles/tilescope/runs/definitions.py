"""Splits Python files into definitions and resolves the names that they use.

A definition is what a file binds at its top level: a function, a class, a constant.
"""

from __future__ import annotations

import ast
import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: The name for top-level statements that bind no name, and for functions named ``_``.
NAMELESS = ""
#: Kinds of target: a readable definition, a readable module, code of the package that was not kept, and another library's code.
DEFINITION, MODULE, NOT_KEPT, LIBRARY = "definition", "module", "not kept", "library"


class Target(NamedTuple):
    """What a name refers to: its kind, the file or library module that holds it, and its name there."""

    kind: str
    file: str
    name: str


class Statement(NamedTuple):
    """A top-level statement: its file, its number among the statements there that bind the same name, and its text."""

    file: str
    at: int
    text: str


@dataclass(frozen=True)
class File:
    """A file's statements and imports.

    ``code`` maps a name to the texts of the top-level statements that bind it. ``imports`` maps a name to its module and its
    name there, which is empty for the module itself. The module of a relative import keeps its dots.
    """

    code: Mapping[str, list[str]]
    imports: Mapping[str, tuple[str, str]]


@functools.lru_cache(maxsize=256)
def read(text: str) -> File:
    """Splits a file into its statements. Raises SyntaxError for invalid code."""
    tree = ast.parse(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    code: dict[str, list[str]] = {}
    for node in without_docstring(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
            for name in _bound(node):
                code.setdefault(name, []).append("\n".join(lines[first - 1 : node.end_lineno]))
    return File(code, dict(_imports(tree.body)))


class Code(ABC):
    """Files of one package, or of one folder, that import one another. Files are identified by strings."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._targets: dict[tuple[str, str], Target | None] = {}

    @abstractmethod
    def text(self, file: str) -> str:
        """The file's text."""

    @abstractmethod
    def locate(self, module: str, importer: str) -> str | None:
        """The file of a module that ``importer`` names; None where these files lack it."""

    @abstractmethod
    def named(self, base: str) -> str | None:
        """The file of that base name, or None."""

    def statements(self, file: str, name: str) -> list[Statement]:
        """The statements of a file that bind a name."""
        return [Statement(file, at, text) for at, text in enumerate(read(self.text(file)).code.get(name, ()))]

    def names(self, file: str) -> set[str]:
        """The names that a file defines."""
        return read(self.text(file)).code.keys() - {NAMELESS}

    def target(self, file: str, name: str) -> Target | None:
        """What a name at the top level of a file refers to; None where the file neither defines nor imports it."""
        if (file, name) not in self._targets:
            known = read(self.text(file))
            found = Target(DEFINITION, file, name) if name in known.code else None
            if found is None and name in known.imports:
                found = self._imported(file, *known.imports[name])
            self._targets[file, name] = found
        return self._targets[file, name]

    def member(self, module: Target, name: str) -> Target | None:
        """What an attribute of a module refers to."""
        return self.target(module.file, name) if module.kind == MODULE else Target(NOT_KEPT, "", name)

    def owns(self, module: str, importer: str) -> bool:
        """Whether a module belongs to these files or their package, and not to another library."""
        if self.package or module.startswith("."):
            return module.partition(".")[0] in ("", self.package)
        return self.locate(module, importer) is not None

    def _imported(self, importer: str, module: str, name: str) -> Target | None:
        if not self.owns(module, importer):
            return Target(LIBRARY, module, name)
        whole = self.locate(module, importer)
        if name:
            if whole is not None and (found := self.target(whole, name)):
                return found
            whole = self.locate(f"{module}.{name}" if module.strip(".") else module + name, importer)
        return Target(NOT_KEPT, "", name or module.rpartition(".")[2]) if whole is None else Target(MODULE, whole, "")


class Recorded(Code):
    """The texts that a run kept, by the file's base name."""

    def __init__(self, texts: Mapping[str, str], today: Code) -> None:
        super().__init__(today.package)
        self.texts, self._today = texts, today

    def owns(self, module: str, importer: str) -> bool:
        return super().owns(module, importer) or self._today.owns(module, importer)

    def text(self, file: str) -> str:
        return self.texts[file]

    def locate(self, module: str, importer: str) -> str | None:
        return self.named(f"{module.rpartition('.')[2]}.py")

    def named(self, base: str) -> str | None:
        return base if base in self.texts else None


def without_docstring(node: Any) -> list[ast.stmt]:
    """The statements in a node's body without its docstring."""
    documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    return list(node.body[documented and ast.get_docstring(node, clean=False) is not None :])


def _bound(node: ast.stmt) -> set[str]:
    """The names that a top-level statement binds, or ``NAMELESS``."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {NAMELESS if node.name == "_" else node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    parts = (part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return {part.id for part in parts if isinstance(part.ctx, ast.Store)} or {NAMELESS}


def _imports(nodes: Iterable[Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields each name that an import binds, in functions too, with its module and its name there (empty: the module)."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, (alias.name if alias.asname else first, "")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, ("." * node.level + (node.module or ""), alias.name)
        else:
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _imports(getattr(node, block, ()))
