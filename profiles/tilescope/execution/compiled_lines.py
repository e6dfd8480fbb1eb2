"""Parses a compiled kernel's MLIR text (TTIR or TTGIR) into operations, one for each line. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A value; ``#`` and a number follow where an operation has several results.
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))?")
_ASSIGNED = re.compile(r"^((?:%[\w$.-]+(?::\d+)?(?:, )?)+) = (.*)$")
#: A loop's index or carried value, which is local to the loop.
_LOCAL = re.compile(r"%[\w$.-]+(?= = )")


@dataclass(frozen=True)
class Operation:
    """One operation. ``text`` lacks the assignment and the source location; ``results`` and the operands ``values`` are names."""

    text: str
    results: tuple[str, ...]
    values: tuple[str, ...]


def read(text: str) -> list[Operation]:
    """The operations of the kernel in a text; empty where there is no kernel."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if "tt.func public" in line), len(lines))
    return [_operation(line) for line in lines[at + 1 :]]


def _operation(line: str) -> Operation:
    code = line.partition(" loc(")[0].strip()
    assigned = _ASSIGNED.match(code)
    body = assigned[2] if assigned else code
    # A line that begins with ``^`` declares the arguments of a block.
    values = () if body.startswith("^") else tuple(_VALUE.findall(_LOCAL.sub("", body)))
    results = [name for found in _RESULT.findall(assigned[1] if assigned else "") for name in _numbered(*found)]
    return Operation(body, tuple(results), values)


def _numbered(name: str, count: str) -> list[str]:
    return [f"{name}#{place}" for place in range(int(count))] if count else [name]
