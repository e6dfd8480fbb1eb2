"""Assigns the lines of a kernel's TTGIR, PTX and SASS to source lines, and counts what runs while products are in flight. Pure text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tilescope.collectors import assembly

#: Labels of the stages, in the order in which Triton makes them.
STAGES = {"ttgir": "TTGIR", "ptx": "PTX", "sass": "SASS"}

_LOC = re.compile(r"^\s*\.loc\s.*?//\s*(.*)$")
_PLACE = re.compile(r"\s*// (\S+):(\d+)$")
_ADDRESS = re.compile(r"^/\*([0-9a-f]+)\*/\s*")
_ALIAS = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_WITHIN = re.compile(r"\s*\bloc\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)")
_TOKEN = re.compile(r'"([^"]*)":(\d+):\d+|(#loc\d*)\b')
_PRODUCT = re.compile(r"\b[A-Z]GMMA\.")
#: The mark of a product that ends a group, and the wait until at most so many groups are in flight.
_GROUP, _WAIT = re.compile(r"\bgsb0\b"), re.compile(r"\bWARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+|\d+)")
_LABEL, _BRANCH = re.compile(r"^(\.L\w+):"), re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
#: Instructions after which the next one is reached only by its label.
_END = re.compile(r"^(?:BRA|BRX|EXIT|RET)\b")

#: Most groups that are counted: a loop without a wait would add one in each pass.
_MOST = 8


@dataclass(frozen=True)
class Text:
    """One line of a stage. ``line`` is its line of ``file``, None where the compiler names none.

    ``address`` is that of a SASS instruction, in bytes from the start of the function; None for all other text.
    """

    text: str
    file: str = ""
    line: int | None = None
    address: int | None = None


def read(stage: str, text: str, file: str) -> list[Text]:
    """The lines of a stage (``ttgir``, ``ptx`` or ``sass``) without directives, each with its line of ``file``.

    Inlined code has the line of the call. Raises KeyError for another stage.
    """
    return list({"ttgir": _ttgir, "ptx": _ptx, "sass": _sass}[stage](text, file))


def mnemonic(instruction: str) -> str:
    """The operation of a SASS instruction, without its guard and operands: ``LDG.E.128``."""
    words = instruction.replace(";", " ").split()
    return next((word for word in words if not word.startswith("@")), "")


def _ttgir(text: str, file: str) -> Iterator[Text]:
    lines = text.splitlines()
    aliases = {found[1]: found[2] for found in map(_ALIAS.match, lines) if found}

    def places(expression: str, depth: int = 0) -> Iterator[tuple[str, int]]:
        # Innermost first, as in MLIR: callsite(callee at caller).
        for name, line, alias in _TOKEN.findall(expression):
            if name:
                yield name, int(line)
            elif alias in aliases and depth < len(aliases):
                yield from places(aliases[alias], depth + 1)

    for line in lines:
        if _ALIAS.match(line):
            continue
        # The location at the end is the operation's; others in the line are those of arguments.
        own = [found[1] for found in _WITHIN.finditer(line) if found.end() == len(line)]
        yield Text(_WITHIN.sub("", line), file, assembly.own_line(places(own[0]), file) if own else None)


def _ptx(text: str, file: str) -> Iterator[Text]:
    current: int | None = None
    for line in text.splitlines():
        if directive := _LOC.match(line):
            current = assembly.own_line(assembly.frames(directive[1]), file)
            continue
        if line.strip() == "}":
            current = None
        code = line.strip() and not line.lstrip().startswith(("//", ".", "$"))
        yield Text(line, file, current if code else None)


def _sass(text: str, file: str) -> Iterator[Text]:
    for line in text.splitlines():
        place = _PLACE.search(line)
        address = _ADDRESS.match(line)
        own = int(place[2]) if place and place[1] == file and int(place[2]) else None
        code = line[: place.start()] if place else line
        yield Text(code[address.end() :] if address else code, file, own, int(address[1], 16) if address else None)


def products_in_flight(code: Iterable[Text]) -> Counter[int] | None:
    """The instructions of each source line at which a product is in flight; None for code without products.

    A product (wgmma) runs until the program waits for its group. ptxas places that wait freely, even ahead of arithmetic that precedes it
    in the source, which then does not overlap. Products themselves are not counted. At a label a product is in flight if it is on any path there.
    """
    lines = list(code)
    if not any(_PRODUCT.search(text.text) for text in lines):
        return None
    entered: dict[str, int] = {}
    while True:
        before = dict(entered)
        counted = _walk(lines, entered)
        if entered == before:
            return counted


def _walk(lines: list[Text], entered: dict[str, int]) -> Counter[int]:
    """Counts once from top to bottom. ``entered`` maps labels to groups in flight, and is updated by branches."""
    counted: Counter[int] = Counter()
    groups, open_group = 0, False
    for text in lines:
        if label := _LABEL.match(text.text):
            groups = entered[label[1]] = max(groups, entered.get(label[1], 0))
        elif _PRODUCT.search(text.text):
            open_group = not _GROUP.search(text.text)
            groups = min(groups + (not open_group), _MOST)
        elif wait := _WAIT.search(text.text):
            groups = min(groups, int(wait[1], 0))
        elif text.line and text.address is not None and (groups or open_group):
            counted[text.line] += 1
        if branch := _BRANCH.search(text.text):
            entered[branch[1]] = max(groups, entered.get(branch[1], 0))
        if _END.search(text.text):
            groups = 0
    return counted
