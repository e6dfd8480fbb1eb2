"""Tests by data flow in the TTIR whether a loaded float may reach an address, a mask or a branch. Pure.

The flow is followed line by line from every load of floats until nothing more is reached. Where it cannot be followed, the
answer is yes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tilescope.execution import compiled_lines
from tilescope.execution.compiled_lines import Operation

#: A float type, among the types at the end of a line.
_FLOAT = re.compile(r"[x<\s](?:bf16|f\d+\w*)\b")
#: Operations whose data flow is not followed: branches between blocks, and calls.
_UNKNOWN = re.compile(r"(?<!\w)(?:cf|scf\.(?:while|execute_region|index_switch)|tt\.call)\b")
_LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")
#: Stores whose written value is the last operand, and those where it follows the address.
_WRITE_LAST = ("tt.descriptor_store", "tt.descriptor_scatter", "tt.descriptor_reduce")
_WRITE_SECOND = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")


@dataclass
class _Region:
    """The results of the operation that a block belongs to, and the values that it carries to its next iteration."""

    results: tuple[str, ...]
    carried: list[str] = field(default_factory=list)

    def pass_on(self, values: Iterable[str], reached: set[str]) -> None:
        """Adds to ``reached`` the result and the carried value at each position where the value is reached."""
        for place, value in enumerate(values):
            if value in reached:
                reached |= {*self.results[place : place + 1], *self.carried[place : place + 1]}


def may_reach(ttir: str) -> bool:
    """Whether a loaded float may decide which memory a kernel with this text accesses."""
    head, operations = compiled_lines.read(ttir)
    if not head or any(_UNKNOWN.search(one.text) for one in operations):
        return True
    operations = _with_unique_names(operations)
    reached: set[str] = set()
    while True:
        before = len(reached)
        if _follow(operations, reached):
            return True
        if len(reached) == before:
            return False


def _with_unique_names(operations: Iterable[Operation]) -> list[Operation]:
    """The operations with unique names for values: sibling blocks use the same ones."""
    scopes: list[dict[str, str]] = [{}]
    renamed = []
    for number, one in enumerate(operations):
        if one.closes:
            if len(scopes) > 1:
                scopes.pop()
            if one.opens:
                scopes.append({})
            renamed.append(one)
            continue
        # Carried values and block arguments are local to the block.
        inner = {name: f"{name}.at{number}" for name in one.given}
        values = tuple(_resolved(name, scopes) for name in one.values)
        carried = tuple((inner[name], _resolved(outer, scopes)) for name, outer in one.carried)
        results = {compiled_lines.base(name): f"{compiled_lines.base(name)}.at{number}" for name in one.results}
        own = tuple(_resolved(name, [results]) for name in one.results)
        scopes[-1] |= results | (inner if one.text.startswith("^") else {})
        if one.opens:
            scopes.append(inner)
        renamed.append(replace(one, results=own, values=values, given=tuple(inner.values()), carried=carried))
    return renamed


def _resolved(name: str, scopes: list[dict[str, str]]) -> str:
    """The unique name of a value, from the innermost block that defines the name."""
    base, mark, place = name.partition("#")
    return next((scope[base] for scope in reversed(scopes) if base in scope), base) + mark + place


def _follow(operations: Iterable[Operation], reached: set[str]) -> bool:
    """Adds the values that floats reach to ``reached``, in one pass. True where they reach an address, a mask or a branch."""
    regions: list[_Region] = []
    for one in operations:
        if one.closes:
            region = regions.pop() if regions else _Region(())
            if one.opens:  # the other branch
                regions.append(region)
            continue
        own = _Region(one.results, [inner for inner, _ in one.carried])
        if one.text.startswith("scf."):
            if _controls(one, reached):
                return True
            own.pass_on((outer for _, outer in one.carried), reached)
            if one.text.startswith("scf.yield") and regions:
                regions[-1].pass_on(one.values, reached)
        elif _touches(one.text, one.values, reached):
            return True
        elif reached & set(one.values) or (one.text.startswith((*_LOADS, *_WRITE_SECOND)) and _floats(one.text)):
            # The default of a masked load may be a reached value.
            reached |= set(one.results)
        if one.opens:
            regions.append(own)
    return False


def _controls(one: Operation, reached: set[str]) -> bool:
    """Whether a branch or a loop's bounds depend on a reached value."""
    deciding = {"scf.for": 3, "scf.if": 1}.get(one.text.partition(" ")[0], 0)
    return bool(reached & set(one.values[:deciding]))


def _touches(body: str, values: Sequence[str], reached: set[str]) -> bool:
    """Whether a reached value is an address or a mask, or is stored as an integer, which may be loaded as one later."""
    if body.startswith("tt.load"):
        return bool(reached & set(values[:2]))
    if body.startswith(_LOADS):
        return bool(reached & set(values))
    if body.startswith(_WRITE_LAST):
        return bool(reached & set(values[:-1])) or (values[-1] in reached and not _floats(body))
    if body.startswith(_WRITE_SECOND):
        written = {*values[1:3]} if body.startswith("tt.atomic_cas") else {*values[1:2]}
        where = {*values[:1]} if body.startswith("tt.atomic_cas") else {*values[:1], *values[2:]}
        return bool(reached & where) or (bool(reached & written) and not _floats(body))
    return False


def _floats(body: str) -> bool:
    """Whether a float is among the types at the end of the line."""
    return bool(_FLOAT.search(" " + body.rpartition(" : ")[2]))
