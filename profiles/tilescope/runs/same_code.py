"""Compares the code behind a recorded kernel with today's, definition by definition.

Both are walked side by side, from the file that declares the kernel along the names that each definition uses. A definition
may therefore move to another file of its package, and a file may be renamed. Comments, docstrings, tolerances and the
package's own imports are ignored.
"""

from __future__ import annotations

import ast
import functools
import types
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tilescope.runs.definitions import (
    DEFINITION,
    LIBRARY,
    MODULE,
    NAMELESS,
    NOT_KEPT,
    Code,
    Recorded,
    Statement,
    Target,
    without_docstring,
)


def same(recorded: Recorded, root: str, today: Code, path: str) -> bool:
    """Whether everything that the recorded file ``root`` defines and uses is the same code in today's file ``path``.

    A recorded file that ``root`` does not visibly import, such as one behind a package's ``__init__``, is compared as a whole
    with today's file of that name, if there is one. Additional code of today does not matter, since the recorded code could
    not use it. Raises SyntaxError for an invalid file.
    """
    pair = Comparison(recorded, today)
    pair.add(Target(MODULE, root, ""), Target(MODULE, path, ""))
    if not pair.follow():
        return False
    for file in recorded.texts.keys() - pair.reached(0):
        if there := today.named(file):
            pair.add(Target(MODULE, file, ""), Target(MODULE, there, ""))
    return pair.follow() and pair.follow_carried() and pair.follow_nameless()


class Comparison:
    """Compares recorded definitions with today's, and those that they use.

    Recorded definitions for which ``without`` is true count as unchanged. Definitions that the run did not keep count as
    unchanged too, but not if ``whole`` is set.
    """

    def __init__(
        self,
        recorded: Recorded,
        today: Code,
        without: Callable[[Target], bool] = lambda was: False,
        *,
        whole: bool = False,
    ) -> None:
        self.codes = (recorded, today)
        self.without, self.whole = without, whole
        self.seen: set[tuple[Target, Target]] = set()
        self.waiting: list[tuple[Target, Target]] = []
        #: Recorded definitions that today's file lacks and that no compared definition uses so far.
        self.carried: list[Target] = []

    def reached(self, side: int) -> set[str]:
        """Files of the definitions compared so far, the recorded ones (side 0) or today's (side 1)."""
        return {pair[side].file for pair in self.seen}

    def add(self, was: Target, now: Target) -> None:
        """Queues two definitions for comparison, or two modules whose definitions are to be compared by name."""
        if (was, now) not in self.seen:
            self.seen.add((was, now))
            self.waiting.append((was, now))

    def follow(self) -> bool:
        """Compares the queue and everything that it uses. Returns whether all is the same."""
        recorded, today = self.codes
        while self.waiting:
            was, now = self.waiting.pop()
            if self.without(was):
                continue
            if was.kind == MODULE:
                for name in recorded.names(was.file):
                    definition, there = Target(DEFINITION, was.file, name), today.target(now.file, name)
                    if there and there.kind == DEFINITION:
                        self.add(definition, there)
                    else:
                        self.carried.append(definition)
                continue
            old, new = recorded.statements(was.file, was.name), today.statements(now.file, now.name)
            alike = len(old) == len(new) and all(map(self.same_statement, old, new))
            if not alike and was.name not in _tolerances(recorded.text(was.file)):
                return False
        return True

    def follow_carried(self) -> bool:
        """Looks for ``carried`` definitions in the other files of today, and compares them. Returns whether all is the same."""
        recorded, today = self.codes
        done = {was for was, _ in self.seen}
        for was in self.carried:
            if was in done or was.name in _tolerances(recorded.text(was.file)):
                continue
            there = next((file for file in sorted(self.reached(1)) if was.name in today.names(file)), None)
            if there is None:
                return False
            self.add(was, Target(DEFINITION, there, was.name))
        return self.follow()

    def follow_nameless(self) -> bool:
        """Matches the nameless statements of all compared files, in any order: they run when a file is imported.

        Today's files with the names of recorded ones are searched as well, because the definitions may have moved and left the
        nameless statements behind. Returns whether every statement has a match.
        """
        named = functools.cache(self.codes[1].named)
        matched: set[Statement] = set()
        while True:
            files = self.reached(0)
            paths = self.reached(1) | {path for file in files if (path := named(file))}
            old, new = (
                [found for name in sorted(names) for found in code.statements(name, NAMELESS) if found not in matched]
                for code, names in zip(self.codes, (files, paths), strict=True)
            )
            if not old and not new:
                return True
            pair = next(((one, other) for one in old for other in new if self.same_statement(one, other)), ())
            if not pair or not self.follow():
                return False
            matched.update(pair)

    def same_statement(self, old: Statement, new: Statement) -> bool:
        """Whether two statements are the same code and use the same names. Queues the definitions of those names."""
        recorded, today = self.codes
        names = {(name, name, member) for name, member in names_of(old.text)} if old.text == new.text else set()
        if old.text != new.text and not self.same_nodes(
            ast.parse(old.text).body, ast.parse(new.text).body, old.file, new.file, names
        ):
            return False
        pairs = []
        for name, other, member in names:
            was, now = recorded.target(old.file, name), today.target(new.file, other)
            if was and now and member and _are_modules(was, now):
                was, now = recorded.member(was, member), today.member(now, member)
            if _alike(was, now) and not (self.whole and was and was.kind == NOT_KEPT):
                pairs.append((was, now))
            elif name not in _locals(old.text):
                return False
        for was, now in pairs:
            if was and now and was.kind in (DEFINITION, MODULE):
                self.add(was, now)
        return True

    def same_nodes(self, old: Any, new: Any, file: str, path: str, names: set[tuple[str, str, str]]) -> bool:
        """Whether two nodes, lists of nodes or values are the same.

        Adds each name that they use to ``names``: the recorded name, today's name, and the attribute taken of it (may be empty).
        """
        if type(old) is not type(new):
            return False
        if isinstance(old, list):
            pairs = zip(old, new, strict=False)
            return len(old) == len(new) and all(self.same_nodes(*pair, file, path, names) for pair in pairs)
        if not isinstance(old, ast.AST):
            return bool(old == new)
        (one, member), (other, same_member) = _name_of(old), _name_of(new)
        if one and other and member == same_member:
            names.add((one, other, member))
            was, now = self.codes[0].target(file, one), self.codes[1].target(path, other)
            return one == other or (was is not None and now is not None and _are_modules(was, now))
        return all(self.same_nodes(*pair, file, path, names) for pair in _parts(old, new))


def _name_of(node: ast.AST) -> tuple[str, str]:
    """The name and the attribute of a node such as ``name.attribute`` or ``name``; empty texts for another node."""
    value = node.value if isinstance(node, ast.Attribute) else node
    return (value.id, node.attr if isinstance(node, ast.Attribute) else "") if isinstance(value, ast.Name) else ("", "")


@functools.lru_cache(maxsize=4096)
def names_of(statement: str) -> frozenset[tuple[str, str]]:
    """The names in a statement, each with the attribute taken of it (may be empty)."""
    nodes = list(ast.walk(ast.parse(statement)))
    taken = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    return frozenset(found for node in nodes if node not in taken and (found := _name_of(node))[0])


def _are_modules(was: Target, now: Target) -> bool:
    """Whether both are modules of the package, as far as is known."""
    return was.kind in (MODULE, NOT_KEPT) and now.kind == MODULE


def _alike(was: Target | None, now: Target | None) -> bool:
    """Whether two targets may be the same. Of one that was not kept only the name is known, and a module may be renamed."""
    if was is None or now is None or LIBRARY in (was.kind, now.kind):
        return was == now
    if was.kind == NOT_KEPT:
        return now.kind == MODULE or now.name == was.name
    return was.kind == now.kind


def _parts(old: ast.AST, new: ast.AST) -> Iterator[tuple[Any, Any]]:
    """Pairs of the parts of two nodes of one type that have to be the same."""
    for field in old._fields:
        one: Any = getattr(old, field, None)
        other: Any = getattr(new, field, None)
        if field == "body" and isinstance(one, list):
            one, other = without_docstring(old), without_docstring(new)
        elif field == "keywords" and isinstance(old, ast.Call) and isinstance(new, ast.Call):
            one, other = _without_tolerance(old), _without_tolerance(new)
        elif field == "value" and isinstance(old, ast.keyword) and old.arg == "implementations":
            one, other = _entries(one, other)
        elif field == "value" and isinstance(old, ast.keyword) and old.arg == "workloads":
            one, other = _workloads(one, other)
        yield one, other


def _entries(old: ast.expr, new: ast.expr) -> tuple[Any, Any]:
    """The parts of ``implementations={...}`` to compare: additional entries of today are left out."""
    if not (isinstance(old, ast.Dict) and isinstance(new, ast.Dict)):
        return old, new
    (was, others), (now, more) = (_by_key(old), _by_key(new))
    return [*was.values(), others], [*(now[key] for key in was if key in now), more]


def _workloads(old: ast.expr, new: ast.expr) -> tuple[Any, Any]:
    """The parts of ``workloads=(...)`` to compare: additional workloads of today are left out."""
    if not (isinstance(old, ast.Tuple) and isinstance(new, ast.Tuple)):
        return old, new
    recorded = {ast.dump(one) for one in old.elts}
    return old.elts, [one for one in new.elts if ast.dump(one) in recorded]


def _by_key(node: ast.Dict) -> tuple[dict[Any, ast.expr], list[ast.expr | None]]:
    """A dict's values by constant key, and its other keys and values in a list."""
    pairs = list(zip(node.keys, node.values, strict=True))
    named = {key.value: value for key, value in pairs if isinstance(key, ast.Constant)}
    return named, [part for key, value in pairs if not isinstance(key, ast.Constant) for part in (key, value)]


def _without_tolerance(call: ast.Call) -> list[ast.keyword]:
    """A call's keywords without the tolerance of a ``KernelSpec``, which no launch depends on."""
    spec = isinstance(call.func, ast.Name) and call.func.id == "KernelSpec"
    return [keyword for keyword in call.keywords if not (spec and keyword.arg == "tolerance")]


@functools.lru_cache(maxsize=256)
def _tolerances(text: str) -> set[str]:
    """Names in a file that are used only in a ``KernelSpec``'s tolerance."""
    tolerances: Counter[str] = Counter()
    reads: Counter[str] = Counter()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            reads[node.id] += 1
        elif isinstance(node, ast.Call) and len(kept := _without_tolerance(node)) < len(node.keywords):
            said = [keyword for keyword in node.keywords if keyword not in kept]
            tolerances.update(part.id for keyword in said for part in ast.walk(keyword) if isinstance(part, ast.Name))
    return {name for name, times in tolerances.items() if reads[name] == times}


def _locals(statement: str) -> set[str]:
    """Names of a function's own variables and parameters."""
    node = ast.parse(statement).body[0]
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return set()
    outside = [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)]
    code = compile(ast.Module([node], []), "", "exec").co_consts
    (own,) = (part for part in code if isinstance(part, types.CodeType) and part.co_name == node.name)
    used = {part.id for default in outside for part in ast.walk(default) if isinstance(part, ast.Name)}
    return {*own.co_varnames, *own.co_cellvars} - used
