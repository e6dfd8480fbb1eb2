"""Whether what a kernel loads as floats may reach an address, a mask or a branch, by the compiler's own text. Pure.

What flows where is followed line by line, from every load of floats, until nothing more is reached. Where that cannot be told it may.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_ASSIGNED = re.compile(r"^(%[\w$.-]+)(?::(\d+))? = (.*)$")
_FOR = re.compile(r"scf\.for %[\w$.-]+ = (\S+) to (\S+) step (\S+)(?: iter_args\((.*?)\))?")
_DEFINED = re.compile(r"%[\w$.-]+(?= = )")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.#-]+)")
#: A float among the types that a line ends with.
_FLOAT = re.compile(r"[x<\s](?:bf16|f\d+\w*)\b")
#: Flow between blocks, or into another function, is not followed.
_UNKNOWN = re.compile(r"(?<!\w)(?:cf|scf\.(?:while|execute_region|index_switch)|tt\.call)\b")
_LOADS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather")
#: Those whose last operand is what is written, and those where it is the one after the address.
_WRITE_LAST = ("tt.descriptor_store", "tt.descriptor_scatter", "tt.descriptor_reduce")
_WRITE_SECOND = ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")


@dataclass
class _Region:
    """What the operation that a block belongs to gives, and what it hands its next turn."""

    results: list[str]
    carried: list[str] = field(default_factory=list)

    def pass_on(self, place: int, value: str, reached: set[str]) -> None:
        """Reaches the result of that place, and what is carried there, if the value is reached."""
        if value in reached:
            reached |= {*self.results[place : place + 1], *self.carried[place : place + 1]}


def may_reach(ttir: str) -> bool:
    """Whether a loaded float may decide where memory is touched, in a kernel with this text."""
    _, found, body = ttir.partition("tt.func public")
    lines = [line.partition(" loc(")[0].strip() for line in body.splitlines()[1:]]
    if not found or any(_UNKNOWN.search(line) for line in lines):
        return True
    lines = _with_unique_names(lines)
    reached: set[str] = set()
    while True:
        before = len(reached)
        if _follow(lines, reached):
            return True
        if len(reached) == before:
            return False


def _with_unique_names(lines: list[str]) -> list[str]:
    """The lines with a name of its own for each value: blocks beside each other use the same ones."""
    scopes: list[dict[str, str]] = [{}]
    renamed = []
    for number, line in enumerate(lines):
        if line.startswith("}"):
            if len(scopes) > 1:
                scopes.pop()
            if line.endswith("{"):
                scopes.append({})
            renamed.append(line)
            continue
        assigned = _ASSIGNED.match(line)
        body = assigned[3] if assigned else line
        inner: dict[str, str] = {}
        # What a loop carries, and what a block is given, are its own.
        given = {*_DEFINED.findall(body), *(_VALUE.findall(body) if body.startswith("^") else ())}
        for name in given:
            inner[name] = f"{name}.at{number}"
        body = _DEFINED.sub(lambda found, own=inner: own[found[0]], body)
        if body.startswith("^"):
            scopes[-1] |= inner
        body = _VALUE.sub(lambda found: _resolved(found[0], scopes), body)
        if assigned:
            own = f"{assigned[1]}.at{number}"
            scopes[-1][assigned[1]] = own
            body = f"{own}{':' + assigned[2] if assigned[2] else ''} = {body}"
        if line.endswith("{"):
            scopes.append(inner)
        renamed.append(body)
    return renamed


def _resolved(name: str, scopes: list[dict[str, str]]) -> str:
    """The value's own name, of the innermost block that has one of that name."""
    base, mark, place = name.partition("#")
    return next((scope[base] for scope in reversed(scopes) if base in scope), base) + mark + place


def _follow(lines: list[str], reached: set[str]) -> bool:
    """Adds what floats reach in one reading of the lines. True where they reach what must not depend on them."""
    regions: list[_Region] = []
    for line in lines:
        if line.startswith("}"):
            region = regions.pop() if regions else _Region([])
            if line.endswith("{"):  # the other branch
                regions.append(region)
            continue
        assigned = _ASSIGNED.match(line)
        body = assigned[3] if assigned else line
        values, own = _VALUE.findall(body), _Region(_results(assigned))
        if body.startswith("scf."):
            if _controls(body, values, own, reached):
                return True
            if body.startswith("scf.yield") and regions:
                for place, value in enumerate(values):
                    regions[-1].pass_on(place, value, reached)
        elif _touches(body, values, reached):
            return True
        elif reached & set(values) or (body.startswith((*_LOADS, *_WRITE_SECOND)) and _floats(body)):
            # What a load gives where nothing is loaded may be a float's.
            reached |= set(own.results)
        if line.endswith("{"):
            regions.append(own)
    return False


def _controls(body: str, values: list[str], own: _Region, reached: set[str]) -> bool:
    """Whether a branch or the turns of a loop depend on a reached value. Notes what a loop carries in ``own``."""
    loop = _FOR.match(body)
    if loop is None:
        return body.startswith("scf.if") and bool(reached & set(values[:1]))
    pairs = _CARRIED.findall(loop[4] or "")
    own.carried = [inner for inner, _ in pairs]
    for place, (_, outer) in enumerate(pairs):
        own.pass_on(place, outer, reached)
    return bool(reached & set(loop.groups()[:3]))


def _results(assigned: re.Match[str] | None) -> list[str]:
    """The names of what a line gives, one of several by its number."""
    if assigned is None:
        return []
    return [f"{assigned[1]}#{place}" for place in range(int(assigned[2]))] if assigned[2] else [assigned[1]]


def _touches(body: str, values: list[str], reached: set[str]) -> bool:
    """Whether the operation touches memory where a reached value says, or writes one as a whole number, which may be read again."""
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
    """Whether floats are among the types at the line's end."""
    return bool(_FLOAT.search(" " + body.rpartition(" : ")[2]))
