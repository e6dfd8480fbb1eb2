"""Parses a compiled kernel's MLIR (TTIR or TTGIR) into operations, one for each line. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A value; ``#`` and a number follow where an operation has several results.
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))?")
_ASSIGNED = re.compile(r"^((?:%[\w$.-]+(?::\d+)?(?:, )?)+) = (.*)$")
_GIVEN = re.compile(r"%[\w$.-]+(?= = )")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")


@dataclass(frozen=True)
class Operation:
    """One operation, with values by name.

    ``text`` lacks the assignment and the source location. ``values`` are the operands, in order, and ``results`` the results.
    ``given`` are the arguments of a block that it opens: a loop's index and carried values. ``carried`` pairs each carried value
    within the loop with its initial value.
    """

    text: str
    results: tuple[str, ...]
    values: tuple[str, ...]
    given: tuple[str, ...]
    carried: tuple[tuple[str, str], ...]

    @property
    def opens(self) -> bool:
        """Whether the operation opens a block."""
        return self.text.endswith("{")

    @property
    def closes(self) -> bool:
        """Whether the line ends a block."""
        return self.text.startswith("}")


def read(text: str) -> tuple[str, list[Operation]]:
    """The line that declares the kernel, and the operations after it; empty where there is no kernel."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if "tt.func public" in line), None)
    return ("", []) if at is None else (lines[at], [_operation(line) for line in lines[at + 1 :]])


def base(value: str) -> str:
    """The name of an operation's results together, from that of one result."""
    return value.partition("#")[0]


def _operation(line: str) -> Operation:
    code = line.partition(" loc(")[0].strip()
    assigned = _ASSIGNED.match(code)
    body = assigned[2] if assigned else code
    header = body.startswith("^")  # of a block, with its arguments
    given = _VALUE.findall(body) if header else _GIVEN.findall(body)
    return Operation(
        body,
        tuple(name for found in _RESULT.findall(assigned[1] if assigned else "") for name in _numbered(*found)),
        () if header else tuple(_VALUE.findall(_GIVEN.sub("", body))),
        tuple(given),
        # A loop's index is not carried.
        tuple(_CARRIED.findall(body.partition(" iter_args(")[2] if body.startswith("scf.for ") else body)),
    )


def _numbered(name: str, count: str) -> list[str]:
    return [f"{name}#{place}" for place in range(int(count))] if count else [name]
