"""Digests of the GPU functions that a kernel's file declares, or finds in the files that it imports.

A digest covers a function's syntax tree and those of the functions, classes and constants that it uses, in any file of its
package. Line numbers, comments and docstrings have no part in it, and neither do names of files. Imports neither torch nor triton.
"""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilescope.files import bounded_reading
from tilescope.runs import reader

#: A file that is written from a notebook's or script's code names the folder of its modules in such a line.
_FOLDER = re.compile(r"""^sys\.path\.append\(('[^'\n]*'|"[^"\n]*")\)$""", re.MULTILINE)
#: Names of folders of installed libraries.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Errors of reading code.
UNREADABLE = (OSError, ValueError, SyntaxError, RecursionError, MemoryError)


def of(path: Path) -> dict[str, str]:
    """The digest of each GPU function by name. Functions that share a name share a digest. Raises the errors of ``UNREADABLE``."""
    files = _Files(path.absolute())
    found: dict[str, list[str]] = {}
    for file in files.reached():
        for name, statements in files.module(file).code.items():
            for function in sorted({one for statement in statements for one in statement.gpu_functions}):
                found.setdefault(function, []).append(files.digest(file, name))
    return {name: every[0] if len(every) == 1 else _short(sorted(every)) for name, every in sorted(found.items())}


class _Statement:
    def __init__(self, node: ast.stmt) -> None:
        self.node = node

    @functools.cached_property
    def text(self) -> str:
        return _text(self.node)

    @functools.cached_property
    def names(self) -> list[tuple[str, str]]:
        """The global names that the statement uses, in order, each with the attribute that it takes of it (may be empty)."""
        inside = list(ast.walk(self.node))
        local = {node.arg for node in inside if isinstance(node, ast.arg)}
        if isinstance(self.node, ast.FunctionDef):
            local |= {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        used = [(node.id, "") for node in inside if isinstance(node, ast.Name)]
        used += [
            (node.value.id, node.attr)
            for node in inside
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        ]
        return [name for name in dict.fromkeys(used) if name[0] not in local]

    @functools.cached_property
    def gpu_functions(self) -> set[str]:
        return {
            node.name
            for node in _statements([self.node])
            if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))
        }


class _Module:
    """A file's top-level statements by the names that they bind, and its imports: name to module and the name there."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self.code: dict[str, list[_Statement]] = {}
        for node in tree.body:
            statement = _Statement(node)
            for name in _bound(node):
                self.code.setdefault(name, []).append(statement)
        self.imports = dict(_imports(tree.body))


_parsed = functools.lru_cache(maxsize=1024)(_Module)


class _Files:
    """A kernel's file and the files that it may import: those of its package, or of its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        packages = list(itertools.takewhile(lambda folder: (folder / "__init__.py").is_file(), path.parents))
        self._inside = packages[-1:] or [path.parent]
        self._roots = [packages[-1].parent] if packages else self._inside
        self.module = functools.cache(lambda file: _parsed(_read(file)))
        self.target = functools.cache(self._target)
        if not packages:
            added = [Path(ast.literal_eval(folder)) for folder in _FOLDER.findall(_read(path))]
            # Installed libraries are no part of the kernel, and may be as large as torch.
            added = [folder for folder in added if _INSTALLED.isdisjoint(folder.parts)]
            self._roots = self._inside = [*self._inside, *added]

    def reached(self) -> list[Path]:
        """The kernel's file, and those that it takes names from, directly or through others."""
        seen: dict[Path, None] = {}
        waiting = [self.path]
        while waiting:
            file = waiting.pop()
            if file not in seen:
                seen[file] = None
                targets = (self.target(file, name) for name in self.module(file).imports)
                waiting += [target[0] for target in targets if target]
        return list(seen)

    def digest(self, file: Path, name: str) -> str:
        """The digest of a definition and of all that it uses."""
        parts: list[str] = []
        seen: set[tuple[Path, str]] = set()
        waiting = [(file, name)]
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            for statement in self.module(here[0]).code.get(here[1], ()):
                parts.append(statement.text)
                for used, attribute in statement.names:
                    target = self.target(here[0], used)
                    if target and not target[1] and attribute:
                        target = self.target(target[0], attribute)
                    if target and target[1]:
                        waiting.append(target)
                    elif not target and used in self.module(here[0]).imports:
                        parts.append(f"{used} is {self.module(here[0]).imports[used]}")
        return _short(parts)

    def _target(self, file: Path, name: str) -> tuple[Path, str] | None:
        """The file and the name of a definition that a name refers to; the empty name for a whole file; None for others."""
        module = self.module(file)
        if name in module.code:
            return file, name
        if name not in module.imports:
            return None
        imported, there = module.imports[name]
        whole = self._locate(file, imported)
        if whole and there and whole != file and (found := self.target(whole, there)):
            return found
        if there:
            whole = self._locate(file, f"{imported}.{there}" if imported.strip(".") else imported + there)
        return (whole, "") if whole else None

    def _locate(self, importer: Path, module: str) -> Path | None:
        name = module.lstrip(".")
        level = len(module) - len(name)
        roots = [importer.parents[level - 1]] if level else self._roots
        for root in roots:
            for place in (
                Path(f"{root.joinpath(*name.split('.'))}.py"),
                root.joinpath(*name.split("."), "__init__.py"),
            ):
                if any(bounded_reading.is_inside(place, folder) for folder in self._inside):
                    return place
        return None


def _read(file: Path) -> str:
    return reader.source_bytes(file).decode()


def _statements(nodes: Iterable[Any]) -> Iterator[Any]:
    """Yields statements, and those inside them."""
    for node in nodes:
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(node, block, ()))


def _bound(node: ast.stmt) -> set[str]:
    """The names that a top-level statement binds, other than by an import."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        found = (part for one in _statements([node]) for target in _targets(one) for part in ast.walk(target))
        return {part.id for part in found if isinstance(part, ast.Name)}
    return set()


def _targets(node: Any) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target] if hasattr(node, "target") else []


def _imports(nodes: Iterable[Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in _statements(nodes):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, (alias.name if alias.asname else first, "")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, ("." * node.level + (node.module or ""), alias.name)


def _is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")).endswith("jit")


def _text(value: Any) -> str:
    """A node as text that is the same in every version of Python: ``ast.dump`` is not."""
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = [(name, field) for name, field in ast.iter_fields(value) if name not in ("ctx", "kind", "type_comment")]
    if isinstance(value, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(value, clean=False) is not None:
        fields = [(name, field[1:] if name == "body" else field) for name, field in fields]
    said = ",".join(f"{name}={_text(field)}" for name, field in fields if field is not None and field != [])
    return f"{type(value).__name__}({said})"


def _short(parts: list[str]) -> str:
    return sha256("\n".join(parts).encode()).hexdigest()[:16]
