"""Reads Triton's first IR, TTIR, as a tree of operations. Pure text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tilescope.collectors import compiled_text

_OPERATION = re.compile(r'^\s*(?:(%[^=()]*?)\s*=\s*)?"?([a-z][\w]*(?:\.[\w]+)+)"?(.*)$')
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_ARGUMENT = re.compile(r"(%[\w$.-]+): ([^,)]+?)(?: \{[^}]*\})?(?=,|\))")
_CARRIED = re.compile(r"(%[\w$.-]+) = (%[\w$.-]+(?:#\d+)?|[^,()]+)")
_INTEGER = re.compile(r"(?:\b|x)i(\d+)\b")


@dataclass
class Operation:
    """An operation. ``line`` is its line of the kernel's file, ``text`` what follows its name, without its location.

    ``regions`` are its blocks of operations, and ``arguments`` the values that these begin with. ``operands`` has the values in
    ``text``; those of a loop are its bounds, and ``carried`` are pairs of a value of its block and the first one of that.
    """

    name: str
    results: list[str]
    text: str
    line: int | None
    operands: list[str] = field(default_factory=list)
    carried: list[tuple[str, str]] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    regions: list[list[Operation]] = field(default_factory=list)

    @property
    def types(self) -> str:
        """The types of its operands or results."""
        return self.text.rpartition(" : ")[2]

    @property
    def width(self) -> int:
        """The bits of its integer result; 0 for another type."""
        found = _INTEGER.findall(self.types)
        return int(found[-1]) if found else 0

    def number(self, attribute: str) -> int:
        """An integer attribute. Raises ValueError without it."""
        found = re.search(rf"\b{attribute} = (-?\d+)", self.text)
        if not found:
            raise ValueError(f"{self.name} without {attribute}")
        return int(found[1])


@dataclass
class Function:
    """A kernel: its parameters' types by name, and its operations."""

    parameters: dict[str, str]
    body: list[Operation]


def read(text: str, file: str) -> Function | None:
    """The first function of a TTIR text. ``file`` is the name of the kernel's file, whose lines operations have."""
    lines = iter(compiled_text.read("ttgir", text, file))
    for one in lines:
        if one.text.lstrip().startswith("tt.func"):
            parameters = dict(_ARGUMENT.findall(one.text))
            return Function(parameters, _block(lines)[0])
    return None


def _block(lines: Iterator[compiled_text.Text]) -> tuple[list[Operation], list[str], compiled_text.Text]:
    """The operations up to the closing brace, the block's arguments, and the line with the brace."""
    one = compiled_text.Text("")
    found: list[Operation] = []
    arguments: list[str] = []
    for one in lines:
        text = one.text.strip()
        if text.startswith("}"):
            return found, arguments, one
        if text.startswith("^"):
            arguments = _VALUE.findall(text)
            continue
        matched = _OPERATION.match(text)
        if not matched:
            continue
        results, name, rest = matched[1] or "", matched[2], matched[3]
        operation = Operation(name, list(_results(results)), rest, one.line)
        head, _, carried = rest.partition("iter_args(")
        carried = rest.partition(") :")[0] if name == "scf.while" else carried.partition(") ->")[0]
        operation.carried = _CARRIED.findall(carried)
        operation.operands = _VALUE.findall(head)
        if text.endswith("{"):
            _regions(operation, lines)
        found.append(operation)
    return found, arguments, one


def _regions(operation: Operation, lines: Iterator[compiled_text.Text]) -> None:
    end = compiled_text.Text("{")
    while end.text.strip().endswith("{"):
        body, arguments, end = _block(lines)
        operation.regions.append(body)
        operation.arguments += arguments
    # The types and the line of an operation with a region follow the region.
    operation.text += end.text.strip().lstrip("})")
    operation.line = operation.line or end.line


def _results(text: str) -> Iterator[str]:
    for name in filter(None, re.split(r",\s*", text)):
        base, _, count = name.partition(":")
        if count:
            yield from (f"{base}#{number}" for number in range(int(count)))
        else:
            yield base
