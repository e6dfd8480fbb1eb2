"""Faults of a kernel's code: their kinds, and how one is told in a line. Pure.

A collector that finds a fault adds it to the launch's record in its artefact, under ``faults``: ``kind``, ``line`` (of the launched
function's file) and the values that the kind's text names. A kind that is ``wrong`` fails the case, because its results are wrong
or chance. Others are warnings about what is probably not meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_TOLD = re.compile(r"(?P<function>\w+), line (?P<line>\d+): (?P<what>.+?): (?P<remedy>[^:;]+)(?:; .*)?")


@dataclass(frozen=True)
class Kind:
    """A kind of fault. ``text`` is a format of the fault's values, ``remedy`` says what to do."""

    text: str
    remedy: str
    wrong: bool = False


KINDS: dict[str, Kind] = {
    "assertion": Kind(
        "the assertion {text} does not hold in {programs} of the programs",
        "correct the inputs or the condition, TRITON_DEBUG=1 lets a GPU stop there",
        wrong=True,
    ),
    "race-of-stores": Kind(
        "{programs} programs store to the same {bytes} of {tensor}, and chance decides whose value stays",
        "add with tl.atomic_add, or let one program store each byte",
        wrong=True,
    ),
    "race-of-reads": Kind(
        "{programs} programs access the same {bytes} of {tensor}, which some of them load and others store, in any order",
        "use an atomic, or load from a copy that the launch does not store to",
        wrong=True,
    ),
    "race-with-atomics": Kind(
        "atomics change {bytes} of {tensor} that other programs store without one, in any order",
        "set the memory before the launch, for instance by torch.zeros",
        wrong=True,
    ),
    "offset-wraps": Kind(
        "offsets into {tensor} are computed in 32 bits and reach {reach}, more than 2,147,483,647, from {first} on",
        "cast a factor before the product, as in row.to(tl.int64) * stride",
        wrong=True,
    ),
    "undefined-lanes": Kind(
        "lanes that the load's mask leaves out have no value without other=, and line {into} combines them with the others",
        "give other= a value that does not change the result",
    ),
    "fp32-as-tf32": Kind(
        "a GPU multiplies these fp32 operands of tl.dot as TF32, which keeps 10 bits of the mantissa, and the interpreter as fp32",
        "say input_precision='ieee', or 'tf32' if its error is acceptable",
    ),
    "tuned-in-place": Kind(
        "the autotuner tries {configs} configs on {tensor}, which the kernel overwrites after reading it",
        "name it in restore_value=, or a sum in reset_to_zero=",
    ),
    "unknown-key": Kind(
        "the autotuner's key= names {names}, which is no argument of the kernel and is ignored",
        "name arguments of the kernel",
    ),
    "contended-atomics": Kind(
        "{programs} programs make {atomics} atomics on the same {bytes} of {tensor}, one after another",
        "add up in each program first, or store partial results and reduce them in a second launch",
    ),
    "stuck-sum": Kind(
        "a sum in {type} no longer grows after {additions} additions, because each term is below its last digit",
        "add up in float32 and convert the result",
    ),
    "never-written": Kind(
        "no program stores {bytes} of {tensor}, which torch.empty leaves to chance{reader}",
        "let the grid and the masks cover it, or allocate it by torch.zeros",
    ),
    "many-variants": Kind(
        "{count} variants are compiled for calls at {site}, one for each value of {name}",
        "pass it as an ordinary argument, without tl.constexpr",
    ),
    "not-finite": Kind(
        "program {program} makes the first {value} that it stores, {expression}",
        "guard the operand, or mask those lanes",
    ),
}


def told(launch: Mapping[str, Any], fault: Mapping[str, Any]) -> str:
    """The fault in one line: the function, the line of code, what is wrong and what to do."""
    kind = KINDS[fault["kind"]]
    values = {name: f"{value:,}" if isinstance(value, int) else value for name, value in fault.items()}
    values["bytes"] = "byte" if fault.get("bytes") == 1 else f"{values.get('bytes')} bytes"
    return f"{launch['function']}, line {fault['line']}: {kind.text.format(**values)}: {kind.remedy}"


class Told(NamedTuple):
    """The parts of a fault's line."""

    function: str
    line: str
    what: str
    remedy: str


def read(text: str) -> Told | None:
    """The parts of the first fault in a text that ``told`` wrote; None for another text."""
    found = _TOLD.fullmatch(text)
    return Told(**found.groupdict()) if found else None


def of_launches(launches: Iterable[Mapping[str, Any]], *, wrong: bool) -> Iterator[str]:
    """Yields each distinct fault of an artefact's launches that is ``wrong``, or a warning, in a line."""
    lines = (
        told(launch, fault)
        for launch in launches
        for fault in launch.get("faults", ())
        if fault["kind"] in KINDS and KINDS[fault["kind"]].wrong == wrong
    )
    yield from dict.fromkeys(lines)
