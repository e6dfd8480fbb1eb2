"""Compare the Python code behind a recorded kernel with today's, definition by definition.

A definition is what a file binds at its top level: a function, a class, a constant. Recorded code and today's are walked side
by side, from the file that declares the kernel along the names that each definition uses. So it does not matter which file
of a package a definition is in, nor what that file is called. Comments, docstrings, tolerances and imports are no code.
"""

from __future__ import annotations

import ast
import functools
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

#: The name of top-level statements that bind none, and of functions named ``_``.
NAMELESS = ""
#: The kinds of target: a definition that can be read, a whole module that can, code of the package that was not kept, and
#: what is in another library.
DEFINITION, MODULE, NOT_KEPT, LIBRARY = "definition", "module", "not kept", "library"


class Target(NamedTuple):
    """What a name in a file stands for: its kind, the file or the library's module that it is in, and its name there."""

    kind: str
    file: str
    name: str


@dataclass(frozen=True)
class File:
    """A file's top-level statements, as text, by the name they bind, and each imported name's module and name there.

    The name there is empty for the module itself. A relative import's module keeps its dots.
    """

    code: Mapping[str, list[str]]
    imports: Mapping[str, tuple[str, str]]


@functools.lru_cache(maxsize=256)
def read(text: str) -> File:
    """Split a file into its statements. Raises SyntaxError for what is no Python."""
    tree = ast.parse(text)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    code: dict[str, list[str]] = {}
    for node in _without_docstring(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
            for name in _bound(node):
                code.setdefault(name, []).append("\n".join(lines[first - 1 : node.end_lineno]))
    return File(code, dict(_imports(tree.body)))


@functools.lru_cache(maxsize=4096)
def _names(statement: str) -> frozenset[tuple[str, str]]:
    """The names in a statement, each with an attribute that is taken of it, or with none."""
    members, names = set(), set()
    inside: set[ast.AST] = set()
    for node in ast.walk(ast.parse(statement)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            members.add((node.value.id, node.attr))
            inside.add(node.value)
        elif isinstance(node, ast.Name) and node not in inside:
            names.add((node.id, ""))
    return frozenset(members | names)


class Code:
    """Files of one package, or beside each other in a folder, that import one another. Files are named by strings."""

    def __init__(self, package: str) -> None:
        self.package = package
        self._targets: dict[tuple[str, str], Target | None] = {}

    def text(self, file: str) -> str:
        """The file's text."""
        raise NotImplementedError

    def locate(self, module: str, importer: str) -> str | None:
        """The file of a module as ``importer`` names it, None where it is not among these."""
        raise NotImplementedError

    def named(self, base: str) -> str | None:
        """The file of that base name."""
        raise NotImplementedError

    def file(self, name: str) -> File:
        """The parsed file."""
        return read(self.text(name))

    def target(self, file: str, name: str) -> Target | None:
        """What a name at the top level of a file stands for; None where the file neither defines nor imports it."""
        if (file, name) not in self._targets:
            known = self.file(file)
            self._targets[file, name] = (
                Target(DEFINITION, file, name)
                if name in known.code
                else self._imported(file, *known.imports[name])
                if name in known.imports
                else None
            )
        return self._targets[file, name]

    def member(self, module: Target, name: str) -> Target | None:
        """What an attribute of a module of these files stands for."""
        return self.target(module.file, name) if module.kind == MODULE else Target(NOT_KEPT, "", name)

    def owns(self, module: str, importer: str) -> bool:
        """Whether a module is one of these files or of their package, and not another library's."""
        return module.split(".")[0] in ("", self.package) or not self.package and bool(self.locate(module, importer))

    def _imported(self, importer: str, module: str, name: str) -> Target | None:
        if not self.owns(module, importer):
            return Target(LIBRARY, module, name)
        there = self.locate(module, importer)
        if there is not None and name and (found := self.target(there, name)):
            return found
        whole = self.locate(f"{module}.{name}" if module.strip(".") else module + name, importer) if name else there
        return Target(MODULE, whole, "") if whole is not None else Target(NOT_KEPT, "", name or module.rpartition(".")[2])


class Recorded(Code):
    """Texts that a run kept, by the file's base name."""

    def __init__(self, texts: Mapping[str, str], today: Code) -> None:
        super().__init__(today.package)
        self.texts, self._today = texts, today

    def owns(self, module: str, importer: str) -> bool:
        return super().owns(module, importer) or self._today.owns(module, importer)

    def text(self, file: str) -> str:
        return self.texts[file]

    def locate(self, module: str, importer: str) -> str | None:  # noqa: ARG002 (base names are alone in one folder)
        return self.named(f"{module.rpartition('.')[2]}.py")

    def named(self, base: str) -> str | None:
        return base if base in self.texts else None


def same(recorded: Recorded, root: str, today: Code, path: str) -> bool:
    """Whether all that the recorded file ``root`` defines and reaches is the same code in ``path`` of today.

    Files kept beside it that it is not seen to import, such as those behind a package's ``__init__``, count whole where
    there is one of the same name today. Code that today has beside that is nothing that the recorded code could reach.
    Raises SyntaxError where a file is no Python.
    """
    pair = _Comparison(recorded, today)
    pair.add(Target(MODULE, root, ""), Target(MODULE, path, ""))
    if not pair.follow():
        return False
    for file in recorded.texts.keys() - pair.reached(0):
        if there := today.named(file):
            pair.add(Target(MODULE, file, ""), Target(MODULE, there, ""))
    return pair.follow() and pair.follow_carried() and pair.follow_nameless()


class _Comparison:
    """Recorded definitions side by side with today's."""

    def __init__(self, recorded: Recorded, today: Code) -> None:
        self.codes = (recorded, today)
        self.seen: set[tuple[Target, Target]] = set()
        self.waiting: list[tuple[Target, Target]] = []
        #: Recorded definitions that no definition is seen to use and that today's file of the name lacks.
        self.carried: list[Target] = []

    def reached(self, side: int) -> set[str]:
        """The files that hold a definition reached so far: recorded ones (0) or today's (1)."""
        return {pair[side].file for pair in self.seen}

    def add(self, was: Target, now: Target) -> None:
        """Have two definitions compared, or all that a recorded module defines with what its names stand for in today's."""
        if (was, now) not in self.seen:
            self.seen.add((was, now))
            self.waiting.append((was, now))

    def follow(self) -> bool:
        """Compare what waits, and all that it uses."""
        recorded, today = self.codes
        while self.waiting:
            was, now = self.waiting.pop()
            if was.kind == MODULE:
                for name in recorded.file(was.file).code.keys() - {NAMELESS}:
                    definition, there = Target(DEFINITION, was.file, name), today.target(now.file, name)
                    if there and there.kind == DEFINITION:
                        self.add(definition, there)
                    else:
                        self.carried.append(definition)
                continue
            old, new = recorded.file(was.file).code[was.name], today.file(now.file).code[now.name]
            alike = len(old) == len(new) and all(
                self.same_statement(*texts, was.file, now.file) for texts in zip(old, new, strict=True)
            )
            if not alike and not self.is_tolerance(was):
                return False
        return True

    def is_tolerance(self, recorded: Target) -> bool:
        return recorded.name in _tolerances(self.codes[0].text(recorded.file))

    def follow_carried(self) -> bool:
        """Look for unused definitions that have left their file in the files that today's other definitions are in."""
        while self.carried:
            was = self.carried.pop()
            if any(was == known for known, _ in self.seen) or self.is_tolerance(was):
                continue
            there = next((file for file in sorted(self.reached(1)) if was.name in self.codes[1].file(file).code), None)
            if there is None:
                return False
            self.add(was, Target(DEFINITION, there, was.name))
            if not self.follow():
                return False
        return True

    def follow_nameless(self) -> bool:
        """Match the nameless statements of all files that are reached, which run when a file is imported, in any order.

        Today's file of a recorded one's name counts as well: what was used of it may have moved, and they stayed.
        """
        recorded, today = self.codes
        matched: tuple[set[tuple[str, int]], set[tuple[str, int]]] = (set(), set())
        while True:
            files = self.reached(0)
            paths = self.reached(1) | {path for file in files if (path := today.named(file))}
            old, new = (
                [
                    (file, at, statement)
                    for file in sorted(names)
                    for at, statement in enumerate(code.file(file).code.get(NAMELESS, ()))
                    if (file, at) not in known
                ]
                for code, names, known in zip(self.codes, (files, paths), matched, strict=True)
            )
            if not old and not new:
                return True
            pairs = (
                ((file, at), (path, there))
                for file, at, statement in old
                for path, there, other in new
                if self.same_statement(statement, other, file, path)
            )
            if not (pair := next(pairs, None)) or not self.follow():
                return False
            for known, place in zip(matched, pair, strict=True):
                known.add(place)

    def same_statement(self, old: str, new: str, file: str, path: str) -> bool:
        """Whether two statements are the same code and use the same names; then what these stand for waits to be compared."""
        recorded, today = self.codes
        names = {(name, name, member) for name, member in _names(old)} if old == new else set()
        if old != new and not self._same(ast.parse(old).body, ast.parse(new).body, file, path, names):
            return False
        pairs = []
        for name, other, member in names:
            was, now = recorded.target(file, name), today.target(path, other)
            if member and was and now and _are_modules(was, now):
                was, now = recorded.member(was, member), today.member(now, member)
            if _alike(was, now):
                pairs.append((was, now))
            elif name not in _locals(old):
                return False
        for was, now in pairs:
            if was and now and was.kind in (DEFINITION, MODULE):
                self.add(was, now)
        return True

    def _same(self, old: Any, new: Any, file: str, path: str, names: set[tuple[str, str, str]]) -> bool:
        """Compare two nodes, lists of nodes or values, and collect the names they use: here, there and the member of a module."""
        if type(old) is not type(new):
            return False
        if isinstance(old, list):
            return len(old) == len(new) and all(self._same(*pair, file, path, names) for pair in zip(old, new, strict=True))
        if not isinstance(old, ast.AST):
            return bool(old == new)
        member = old.attr if isinstance(old, ast.Attribute) and old.attr == new.attr else ""
        one, other = (old.value, new.value) if member else (old, new)
        if isinstance(one, ast.Name) and isinstance(other, ast.Name):
            was, now = self.codes[0].target(file, one.id), self.codes[1].target(path, other.id)
            names.add((one.id, other.id, member))
            return one.id == other.id or bool(was and now) and _are_modules(was, now)
        if isinstance(old, ast.ImportFrom) and self._owned(old, new):
            return True  # What it binds is compared where it is used.
        return all(self._same(*parts, file, path, names) for parts in _parts(old, new))

    def _owned(self, old: ast.ImportFrom, new: ast.ImportFrom) -> bool:
        return all(
            node.level or (node.module or "").split(".")[0] == code.package
            for node, code in zip((old, new), self.codes, strict=True)
        )


def _are_modules(was: Target, now: Target) -> bool:
    """Whether both are modules of the package, as far as is known."""
    return was.kind in (MODULE, NOT_KEPT) and now.kind == MODULE


def _alike(was: Target | None, now: Target | None) -> bool:
    """Whether two targets may be the same: of what was not kept its name alone is known, and a module may be renamed."""
    if was is None or now is None or LIBRARY in (was.kind, now.kind):
        return was == now
    if was.kind == NOT_KEPT:
        return now.kind == MODULE or now.name == was.name
    return was.kind == now.kind


def _parts(old: ast.AST, new: ast.AST) -> Iterator[tuple[Any, Any]]:
    """The parts of two nodes of one type that are to be compared, side by side."""
    for field in old._fields:
        one, other = getattr(old, field, None), getattr(new, field, None)
        if field == "body" and isinstance(one, list):
            one, other = _without_docstring(old), _without_docstring(new)
        elif field == "keywords" and isinstance(old, ast.Call) and isinstance(new, ast.Call):
            one, other = _without_tolerance(old), _without_tolerance(new)
        elif field == "value" and isinstance(old, ast.keyword) and old.arg == "implementations":
            one, other = _entries(one, other)
        yield one, other


def _entries(old: ast.expr, new: ast.expr) -> tuple[Any, Any]:
    """What to compare of ``implementations={...}``: an entry that today has beside the recorded ones changes none of them."""
    if not (isinstance(old, ast.Dict) and isinstance(new, ast.Dict)):
        return old, new
    (was, others), (now, more) = (_by_key(old), _by_key(new))
    return [*was.values(), others], [*(now[key] for key in was if key in now), more]


def _by_key(node: ast.Dict) -> tuple[dict[Any, ast.expr], list[ast.expr | None]]:
    """A dict's values by constant key, and its other keys and values one after another."""
    pairs = list(zip(node.keys, node.values, strict=True))
    named = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    return named, [part for key, value in pairs if not isinstance(key, ast.Constant) for part in (key, value)]


def _without_tolerance(call: ast.Call) -> list[ast.keyword]:
    """A call's keywords, of a ``KernelSpec`` without the error that is accepted: nothing launches by it."""
    spec = isinstance(call.func, ast.Name) and call.func.id == "KernelSpec"
    return [keyword for keyword in call.keywords if not (spec and keyword.arg == "tolerance")]


@functools.lru_cache(maxsize=256)
def _tolerances(text: str) -> set[str]:
    """A file's names that serve as a ``KernelSpec``'s tolerance and for nothing else."""
    tolerances: Counter[str] = Counter()
    reads: Counter[str] = Counter()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            reads[node.id] += 1
        elif isinstance(node, ast.Call) and len(kept := _without_tolerance(node)) < len(node.keywords):
            said = [keyword for keyword in node.keywords if keyword not in kept]
            names = [inner.id for keyword in said for inner in ast.walk(keyword) if isinstance(inner, ast.Name)]
            tolerances.update(names)
    return {name for name, times in tolerances.items() if reads[name] == times}


def _locals(statement: str) -> set[str]:
    """Names of a function's own variables and parameters, which stand for nothing at the top level."""
    node = ast.parse(statement).body[0]
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    outside = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    code = compile(ast.Module([node], []), "", "exec").co_consts
    (own,) = (part for part in code if isinstance(part, types.CodeType) and part.co_name == node.name)
    used = {part.id for default in outside for part in ast.walk(default) if isinstance(part, ast.Name)}
    return {*own.co_varnames, *own.co_cellvars} - used


def _without_docstring(node: Any) -> list[ast.stmt]:
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
    """Each name that an import makes, in functions too, with the module and the name there, empty for the module itself."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0], (alias.name if alias.asname else alias.name.split(".")[0], "")
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, ("." * node.level + (node.module or ""), alias.name)
        else:
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _imports(getattr(node, block, ()))
