"""The operations of a compiled kernel, a line of the compiler's own intermediate text each. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: A value; one of several that an operation gives by its number.
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_RESULT = re.compile(r"(%[\w$.-]+)(?::(\d+))?")
_ASSIGNED = re.compile(r"^((?:%[\w$.-]+(?::\d+)?(?:, )?)+) = (.*)$")
_GIVEN = re.compile(r"%[\w$.-]+(?= = )")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?)")


@dataclass(frozen=True)
class Operation:
    """One line: its text without what it assigns and where in the source it is from, and the values in it by name.

    ``values`` are used, in order. ``results`` are what it gives; ``given`` what a block that it opens is given: a loop's index and
    what it carries. ``carried`` are pairs of the value within a loop and the one that it begins with.
    """

    text: str
    results: tuple[str, ...]
    values: tuple[str, ...]
    given: tuple[str, ...]
    carried: tuple[tuple[str, str], ...]

    @property
    def opens(self) -> bool:
        """Whether a block begins after it."""
        return self.text.endswith("{")

    @property
    def closes(self) -> bool:
        """Whether it ends a block."""
        return self.text.startswith("}")


def read(text: str) -> tuple[str, list[Operation]]:
    """The line that declares the kernel, and what follows it; an empty one and nothing where there is none."""
    lines = text.splitlines()
    at = next((number for number, line in enumerate(lines) if "tt.func public" in line), None)
    return ("", []) if at is None else (lines[at], [_operation(line) for line in lines[at + 1 :]])


def base(value: str) -> str:
    """The name of all that an operation gives, of one of them."""
    return value.partition("#")[0]


def _operation(line: str) -> Operation:
    code = line.partition(" loc(")[0].strip()
    assigned = _ASSIGNED.match(code)
    body = assigned[2] if assigned else code
    header = body.startswith("^")  # a block's, with what it is given
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
