"""Which of the definitions in a few Python files one of them comes to, and what those are without comments."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

#: The name of what has none, or the same as others: a file's statements that define nothing, functions named ``_``.
NAMELESS = ""


@dataclass(frozen=True)
class File:
    """What a file defines at its top level, by name, without docstrings, and where each imported name comes from."""

    code: Mapping[str, tuple[str, ...]]
    uses: Mapping[str, frozenset[str]]
    #: (the module's file, the name there, or none for the module itself)
    imports: Mapping[str, tuple[str, str]]


@lru_cache(maxsize=256)
def read(text: str) -> File:
    """The definitions of a Python file, without the tolerances of its specs. One that is none has a single nameless one, its text."""
    code: dict[str, tuple[str, ...]] = {}
    uses: dict[str, frozenset[str]] = {}
    imports: dict[str, tuple[str, str]] = {}
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return File({NAMELESS: (text,)}, {}, {})
    _strip_docstrings(tree)
    _strip_tolerances(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.update(_imported(node))
    for node in tree.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        names = _defined(node)
        entries = {f"{names[0]} {key}": entry for key, entry in _take_implementations(node)}
        for defined, part in [(names, node), *(((name,), entry) for name, entry in entries.items())]:
            found, dumped = (
                frozenset(inner.id for inner in ast.walk(part) if isinstance(inner, ast.Name)),
                ast.dump(part),
            )
            for name in defined:
                code[name] = (*code.get(name, ()), dumped)
                uses[name] = uses.get(name, frozenset()) | found
        uses[names[0]] |= entries.keys()
    return File(code, uses, imports)


def reached(texts: Mapping[str, str], root: str) -> dict[str, frozenset[str]]:
    """The names that ``root``, of which everything counts, comes to in each of ``texts``, by file name.

    A file that it is not seen to import, such as one behind a package's ``__init__``, counts whole.
    """
    found: dict[str, set[str]] = {}
    _follow(texts, [(root, name) for name in _all(read(texts[root]))], found)
    for file in texts.keys() - found.keys():
        _follow(texts, [(file, name) for name in _all(read(texts[file]))], found)
    return {file: frozenset(names) for file, names in found.items()}


def same_code(one: str, other: str) -> bool:
    """Whether ``other`` has all that ``one`` defines, as it is there but for comments, docstrings and line breaks. What it
    defines beside that is nothing that ``one`` could have come to."""
    return one == other or same(frozenset(_all(read(one))), one, other)


def same(names: frozenset[str], one: str, other: str) -> bool:
    """Whether these definitions of two versions of a file, and what they import, are the same; and what else they use is not
    defined anew."""
    before, after = read(one), read(other)
    used = frozenset[str]().union(*(before.uses.get(name, ()) for name in names))
    return (
        all(before.code.get(name) == after.code.get(name) for name in names)
        and all(before.imports.get(name) == after.imports.get(name) for name in used)
        and after.code.keys().isdisjoint(used - before.code.keys())
    )


def _follow(texts: Mapping[str, str], waiting: list[tuple[str, str]], found: dict[str, set[str]]) -> None:
    while waiting:
        file, name = waiting.pop()
        if name in found.setdefault(file, set()):
            continue
        found[file].add(name)
        known = read(texts[file])
        # Whoever imports a file runs its statements.
        waiting += [(file, NAMELESS), *((file, used) for used in known.uses.get(name, ()) if used in known.code)]
        for used in known.uses.get(name, ()):
            module, original = known.imports.get(used, ("", ""))
            if module in texts and original:
                waiting.append((module, original))
            elif (whole := f"{original}.py" if original else module) in texts:
                waiting += [(whole, each) for each in _all(read(texts[whole]))]


def _all(file: File) -> Iterator[str]:
    yield NAMELESS
    yield from file.code


def _defined(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return (NAMELESS if node.name == "_" else node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    names = tuple(part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name))
    return names or (NAMELESS,)


def _take_implementations(node: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Take the entries out of a spec's ``implementations={...}``: each is a definition of its own, for one that is added
    changes none of the others."""
    call = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    taken: list[tuple[str, ast.expr]] = []
    for keyword in call.keywords if isinstance(call, ast.Call) else ():
        told = keyword.value
        if keyword.arg == "implementations" and isinstance(told, ast.Dict):
            entries = list(zip(told.keys, told.values, strict=True))
            taken += [(str(key.value), value) for key, value in entries if isinstance(key, ast.Constant)]
            told.keys = [key for key, _ in entries if not isinstance(key, ast.Constant)]
            told.values = [value for key, value in entries if not isinstance(key, ast.Constant)]
    return taken


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
    """Each name that an import makes, with the module's file and the name there, which is empty for the module itself."""
    for alias in node.names:
        if isinstance(node, ast.Import):
            yield alias.asname or alias.name.split(".")[0], (f"{alias.name.rpartition('.')[2]}.py", "")
        else:
            module = (node.module or "").rpartition(".")[2]
            yield alias.asname or alias.name, (f"{module}.py", alias.name)


def _strip_tolerances(tree: ast.Module) -> None:
    """Take out of specs what error is accepted, and constants that serve for that alone: nothing launches by it."""
    taken: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "KernelSpec":
            said = [keyword for keyword in node.keywords if keyword.arg == "tolerance"]
            taken |= {name.id for keyword in said for name in ast.walk(keyword) if isinstance(name, ast.Name)}
            node.keywords = [keyword for keyword in node.keywords if keyword not in said]
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    alone = taken - read
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, (ast.Assign, ast.AnnAssign)) and alone and alone.issuperset(_defined(node)))
    ]


def _strip_docstrings(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
