"""Finds the GPU functions in a kernel's code and compares them with the recorded ones.

A GPU function is one that Triton or Gluon compiles. Its code includes the functions and constants that it uses.
"""

from __future__ import annotations

import ast
import functools
import io
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import sha256

from tilescope.runs.definitions import DEFINITION, MODULE, NAMELESS, NOT_KEPT, Code, Recorded, Target
from tilescope.runs.same_code import Comparison, names_of

#: Tokens whose text depends on the indentation, and the text that replaces them in a digest.
_SHAPE = {tokenize.INDENT: "{", tokenize.DEDENT: "}", tokenize.NEWLINE: "\n"}


def unchanged(recorded: Recorded, root: str, today: Code, path: str) -> frozenset[str]:
    """Names of the recorded GPU functions that are unchanged today; none where ``same_beside`` is False.

    Code that leads to a launch is not compared. A name of two functions is left out.
    """
    if not same_beside(recorded, root, today, path):
        return frozenset()
    here = _gpu_functions(today, [path])
    before = _gpu_functions(recorded, recorded.texts)
    return frozenset(
        name
        for name, targets in before.items()
        if len(targets) == len(here.get(name, ())) == 1 and _same(recorded, targets[0], today, here[name][0])
    )


def same_beside(recorded: Recorded, root: str, today: Code, path: str) -> bool:
    """Whether everything else of the ``KernelSpec`` is unchanged: other implementations, inputs, cost."""
    beside = Comparison(recorded, today, _launching(recorded))
    for name in recorded.names(root):
        was, now = Target(DEFINITION, root, name), today.target(path, name)
        if _declares(recorded, was):
            if now is None:
                return False
            beside.add(was, now)
    return bool(beside.seen) and beside.follow()


def kept_whole(recorded: Recorded) -> frozenset[str]:
    """Names of the recorded GPU functions of which the run kept everything that they use, such as constants."""
    return frozenset(
        name
        for name, targets in _gpu_functions(recorded, recorded.texts).items()
        if not any(_lacks(recorded, used) for used in reached(recorded, targets))
    )


def functions(code: Recorded) -> frozenset[str]:
    """Names of all GPU functions in the recorded files."""
    return frozenset(_gpu_functions(code, code.texts))


def digest(code: Code, path: str) -> str:
    """Digest of everything that a file defines and uses, without comments and docstrings."""
    found = sha256()
    targets = reached(code, _defined(code, path))
    for target in sorted({*targets, *(Target(DEFINITION, file, NAMELESS) for file in files(code, path))}):
        for statement in code.statements(target.file, target.name):
            found.update(f"{target.name}\n{_without_comments(statement.text)}\n".encode())
    return found.hexdigest()


def files(code: Code, path: str) -> set[str]:
    """The files whose definitions a file uses, itself included."""
    return {path, *(target.file for target in reached(code, _defined(code, path)))}


def files_of(code: Code, path: str, functions: Collection[str]) -> set[str]:
    """The files that hold a file's GPU functions of these names and what they use, such as constants."""
    targets = [target for name, every in _gpu_functions(code, [path]).items() if name in functions for target in every]
    return {target.file for target in reached(code, targets)}


def reached(code: Code, start: Iterable[Target]) -> set[Target]:
    """The definitions ``start`` and those that they use, directly or indirectly."""
    seen, waiting = set[Target](), list(start)
    while waiting:
        target = waiting.pop()
        if target not in seen:
            seen.add(target)
            waiting += _used(code, target)
    return seen


def _used(code: Code, target: Target) -> Iterator[Target]:
    """Yields the definitions that one uses directly; all definitions of a module that it uses as a whole."""
    for statement in code.statements(target.file, target.name):
        for name, member in names_of(statement.text):
            found = code.target(target.file, name)
            if found and found.kind == MODULE and member:
                found = code.member(found, member)
            if found and found.kind == MODULE:
                yield from _defined(code, found.file)
            elif found and found.kind == DEFINITION:
                yield found


def _lacks(code: Code, target: Target) -> bool:
    """Whether a definition uses one that was not kept."""
    return any(
        found is not None and found.kind == NOT_KEPT
        for statement in code.statements(target.file, target.name)
        for name, _ in names_of(statement.text)
        for found in [code.target(target.file, name)]
    )


def _defined(code: Code, file: str) -> list[Target]:
    return [Target(DEFINITION, file, name) for name in code.names(file)]


def _gpu_functions(code: Code, files: Iterable[str]) -> dict[str, list[Target]]:
    """The GPU functions that files define and use, by name."""
    found: dict[str, list[Target]] = {}
    for target in reached(code, (target for file in files for target in _defined(code, file))):
        if _runs_on_gpu(code, target):
            found.setdefault(target.name, []).append(target)
    return found


def _same(recorded: Recorded, was: Target, today: Code, now: Target) -> bool:
    comparison = Comparison(recorded, today, whole=True)
    comparison.add(was, now)
    return comparison.follow()


def _launching(code: Code) -> Callable[[Target], bool]:
    """A test whether a definition leads to a launch: it uses a GPU function and does not declare a kernel."""

    @functools.cache
    def answer(target: Target) -> bool:
        if target.kind != DEFINITION or _declares(code, target):
            return False
        return any(_runs_on_gpu(code, used) for used in reached(code, [target]))

    return answer


def _declares(code: Code, target: Target) -> bool:
    """Whether a definition calls ``KernelSpec``, or uses one that does."""
    return any(
        _calls_spec(statement.text)
        for used in reached(code, [target])
        for statement in code.statements(used.file, used.name)
    )


@functools.lru_cache(maxsize=4096)
def _calls_spec(text: str) -> bool:
    return "KernelSpec(" in text and any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "KernelSpec"
        for node in ast.walk(ast.parse(text))
    )


def _runs_on_gpu(code: Code, target: Target) -> bool:
    return any(_is_compiled(statement.text) for statement in code.statements(target.file, target.name))


@functools.lru_cache(maxsize=4096)
def _is_compiled(text: str) -> bool:
    """Whether a statement defines a function under ``@triton.jit`` or ``@gluon.jit``, called or not."""
    if "jit" not in text:
        return False
    (node,) = ast.parse(text).body
    decorators = getattr(node, "decorator_list", ())
    bare = [decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in decorators]
    return any(getattr(one, "attr", getattr(one, "id", "")) == "jit" for one in bare)


@functools.lru_cache(maxsize=4096)
def _without_comments(text: str) -> str:
    """A statement's tokens without comments, docstrings and empty lines."""
    documented = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and ast.get_docstring(node, clean=False) is not None
    }
    found, after_docstring = [], False
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.start in documented or token.type in (tokenize.COMMENT, tokenize.NL):
            after_docstring |= token.start in documented
        elif token.type == tokenize.NEWLINE and after_docstring:
            after_docstring = False
        else:
            found.append(_SHAPE.get(token.type, token.string))
    return " ".join(found)
