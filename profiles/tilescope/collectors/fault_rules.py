"""The rules on faults of a kernel's code. Imports triton: worker-side only.

A rule is a function in RULES that takes a ``Subject`` and yields ``Fault``s. It yields none where its evidence is absent: what
programs showed while they were interpreted, or what the compiled code computes. Faults that several launches make together are
found in ``captures``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilescope.collectors.code_values import Code
from tilescope.execution import kernel_syntax
from tilescope.interpreter import accesses, arguments
from tilescope.interpreter.evidence import Evidence, Touched
from tilescope.interpreter.races import ADDED, AFTER_STORE, EQUAL, EQUAL_LANES, LANES, READS, SEVERAL, STORES, Races
from tilescope.table import units
from tilescope.table.kernel_faults import Fault

if TYPE_CHECKING:
    from tilescope.execution.launches import Launch
    from tilescope.interpreter.meter import Meter

#: Bytes on which atomics contend, the number of programs and of atomics on each element from which they do, and atomics of a
#: program from which those on integers are no counter of programs.
_FEW_BYTES, _MANY_PROGRAMS, _MANY_ATOMICS, _COUNTING = 128, 256, 1024, 32
#: What is wrong in a race, with its programs, its bytes and the tensor, and the remedy.
_RACES = {
    STORES: (
        "{0} store to the same {1} of {2}, and chance decides whose value stays",
        "add with tl.atomic_add, or let one program store each byte",
    ),
    READS: (
        "{0} access the same {1} of {2}, which some of them load and others store, in any order",
        "use an atomic, or load from a copy that the launch does not store to",
    ),
    ADDED: (
        "atomics change {1} of {2} that other programs store without one, in any order",
        "set the memory before the launch, for instance by torch.zeros",
    ),
    LANES: (
        "lanes of one store, in {0}, store different values to the same {1} of {2}, and chance decides which value stays",
        "give each lane an address of its own, or combine the lanes first",
    ),
    EQUAL_LANES: (
        "lanes of one store, in {0}, update the same {1} of {2}, which keeps the update of one lane",
        "add with tl.atomic_add, or count with tl.histogram",
    ),
    AFTER_STORE: (
        "threads of {0} access {1} of {2} that another thread of the program stores, in any order",
        "call tl.debug_barrier() in between",
    ),
}
_RACES[EQUAL] = _RACES[STORES]
#: Races of equal values, and whether these may be others with other inputs.
_BY_VALUE = {EQUAL: kernel_syntax.computed_from_memory, EQUAL_LANES: kernel_syntax.updates_by_memory}


@dataclass(frozen=True)
class Subject:
    """A launch. ``seen`` and ``races`` are what its programs showed, ``code`` is what its compiled code computes."""

    launch: Launch
    seen: Evidence = field(default_factory=Evidence)
    races: Races | None = None
    code: Code | None = None

    @property
    def line(self) -> int:
        """The first line of the kernel."""
        return int(getattr(self.launch.function, "starting_line_number", 0))


def assertions(subject: Subject) -> Iterator[Fault]:
    """Assertions that do not hold."""
    for (line, text), programs in subject.seen.violated.items():
        what = (
            f"{f'the assertion {text}' if text else 'an assertion'} does not hold in {len(programs):,} of the programs"
        )
        remedy = "correct the inputs or the condition, TRITON_DEBUG=1 lets a GPU stop there"
        yield Fault(line, what, remedy, wrong=True)


def races(subject: Subject) -> Iterator[Fault]:
    """Accesses of several programs to the same bytes in any order. A load and a store of the same bytes are one race.

    Cure: an atomic, one program for each byte, a copy to load from, or tl.debug_barrier() between the threads of a program
    """
    told = set()
    ordered = sorted(subject.seen.races.items(), key=lambda item: (item[0][0] != STORES, item[0][1]))
    for (kind, line, place), found in ordered:
        if kind in _BY_VALUE and not _BY_VALUE[kind](subject.launch.function.fn, line):
            continue
        if (
            kind == AFTER_STORE
            and subject.launch.constants.get("num_warps", subject.launch.config.get("num_warps")) == 1
        ):
            continue
        tensor = arguments.named(subject.launch.arguments, int(accesses.merged(found.ranges).starts[0]))
        if kind in _RACES and tensor not in told:
            what, remedy = _RACES[kind]
            for (also, _, where), more in ordered if kind == READS else ():
                if (also, where) == (kind, place) and more is not found:
                    found.merge(more)
            touched = accesses.merged(found.ranges)
            what = what.format(_programs(subject, found), units.several(touched.bytes, "byte"), tensor)
            told.add(tensor)
            yield Fault(line, what, remedy, wrong=kind != AFTER_STORE)


def _programs(subject: Subject, found: Touched) -> str:
    """The number of programs of a race. Earlier ones are known by their marks, and most are among the later ones."""
    count = len(found.programs) + len(found.others - found.marks - {SEVERAL})
    least = SEVERAL in found.others and count < math.prod(subject.launch.grid)
    return f"at least {max(count, 2):,} programs" if least else units.several(count, "program")


def contended_atomics(subject: Subject) -> Iterator[Fault]:
    """Atomics of many programs on few bytes. Those on integers may count programs."""
    for line, atomics in subject.seen.atomics.items():
        touched, programs = accesses.merged(atomics.ranges), len(atomics.programs)
        counts = not atomics.floating and atomics.lanes < _COUNTING * programs
        few = touched.bytes <= _FEW_BYTES and atomics.lanes >= _MANY_ATOMICS * max(1, touched.bytes // 4)
        if few and programs >= _MANY_PROGRAMS and not counts:
            tensor = arguments.named(subject.launch.arguments, int(touched.starts[0]))
            where = f"on the same {units.several(touched.bytes, 'byte')} of {tensor}"
            what = f"{programs:,} programs make {atomics.lanes:,} atomics {where}, one after another"
            yield Fault(
                line, what, "add up in each program first, or store partial results and reduce them in a second launch"
            )


def stuck_sums(subject: Subject) -> Iterator[Fault]:
    """Sums in half precision that no longer grow."""
    for line, (kind, count) in subject.seen.stuck.items():
        what = f"a sum in {kind} no longer grows after {count:,} additions, because each term is below its last digit"
        yield Fault(line, what, "add up in float32 and convert the result")


def not_finite(subject: Subject) -> Iterator[Fault]:
    """The first NaN or infinity that is stored."""
    if origin := subject.seen.origin:
        what = f"program {origin.program} makes the first {origin.value} that it stores, {origin.expression}"
        yield Fault(origin.line, what, "guard the operand, or mask those lanes")


def divisions(subject: Subject) -> Iterator[Fault]:
    """Quotients of integers by zero that a program uses."""
    for (line, address), programs in subject.seen.divided.items():
        used = f"{'is part of an address' if address else 'is stored'} in {units.several(len(programs), 'program')}"
        what = f"an integer divided by zero, which has no defined value on a GPU, {used}"
        yield Fault(line, what, "guard the divisor, or mask those lanes", wrong=address)


def tuned_in_place(subject: Subject) -> Iterator[Fault]:
    """An autotuner whose trials change their inputs. A hook, or a library's own class, may restore them in its own way."""
    tuner, races = _tuner(subject), subject.races
    if tuner is None or races is None or getattr(tuner, "user_defined_pre_hook", False):
        return
    addresses = [races.written.starts[index] for index in sorted(races.overwritten)]
    for line, atomics in subject.seen.atomics.items():
        if kernel_syntax.counts(subject.launch.function.fn, line):
            addresses.append(int(atomics.ranges[0].starts[0]))
    restored = {*tuner.restore_value, *getattr(tuner, "reset_to_zero", ())}
    tensors = {tuple(arguments.names_at(subject.launch.arguments, address)) for address in addresses}
    for names in () if any(config.pre_hook for config in tuner.configs) else sorted(tensors):
        if names and not restored & set(names):
            tried = f"the autotuner tries {len(tuner.configs)} configs on {' and '.join(names)}"
            what = f"{tried}, which the kernel overwrites after reading it"
            yield Fault(subject.line, what, "name it in restore_value=, or a sum in reset_to_zero=")


def unknown_key(subject: Subject) -> Iterator[Fault]:
    """An autotuner's key that is no argument."""
    if (tuner := _tuner(subject)) is None or subject.races is None:
        return
    if unknown := [name for name in getattr(tuner, "keys", ()) if name not in tuner.arg_names]:
        what = f"the autotuner's key= names {', '.join(unknown)}, which is no argument of the kernel and is ignored"
        yield Fault(subject.line, what, "name arguments of the kernel")


def _tuner(subject: Subject) -> Any:
    """The launch's autotuner, of Triton's own kind and with several configs; None without one."""
    tuner = subject.launch.tuner
    return tuner if len(getattr(tuner, "configs", ())) > 1 and hasattr(tuner, "restore_value") else None


def wrapping_offsets(subject: Subject) -> Iterator[Fault]:
    """Offsets that do not fit the 32 bits in which they are computed."""
    if (code := subject.code) is None:
        return
    for line in dict.fromkeys(line for line, _ in code.wrapping):
        into = {parameter: reach for (at, parameter), reach in code.wrapping.items() if at == line}
        reach = f"are computed in 32 bits and reach {max(into.values()):,}, more than 2,147,483,647"
        what = f"offsets into {' and '.join(into)} {reach}, from {code.first(line)} on"
        yield Fault(line, what, "cast a factor before the product, as in row.to(tl.int64) * stride", wrong=True)


def undefined_lanes(subject: Subject) -> Iterator[Fault]:
    """Masked loads without ``other`` that flow into a reduction."""
    for line, into in subject.code.undefined.items() if subject.code else ():
        lanes = "lanes that the load's mask leaves out have no value without other="
        what = f"{lanes}, and line {into} combines them with the others"
        yield Fault(line, what, "give other= a value that does not change the result")


def fp32_as_tf32(subject: Subject) -> Iterator[Fault]:
    """Products of fp32 operands as TF32, for which nobody asked: neither the code nor TRITON_F32_DEFAULT."""
    unasked = subject.code.tf32 if subject.code and not os.environ.get("TRITON_F32_DEFAULT") else ()
    for line in sorted(unasked):
        if kernel_syntax.default_precision(subject.launch.function.fn, line):
            what = "a GPU multiplies these fp32 operands of tl.dot as TF32, which keeps 10 bits of the mantissa"
            remedy = "say input_precision='ieee', or 'tf32' if its error is acceptable"
            yield Fault(line, f"{what}, and the interpreter as fp32", remedy)


#: Every rule: on programs as they were interpreted, and on compiled code.
RULES: tuple[Callable[[Subject], Iterator[Fault]], ...] = (
    assertions, races, contended_atomics, stuck_sums, not_finite, divisions, tuned_in_place, unknown_key,
    wrapping_offsets, undefined_lanes, fp32_as_tf32,
)  # fmt: skip


def of_subject(subject: Subject) -> dict[str, Any]:
    """``faults`` of a launch's record, in order of lines; nothing where there are none."""
    found = sorted((fault for rule in RULES for fault in rule(subject)), key=lambda fault: fault.line)
    return {"faults": [fault._asdict() for fault in found]} if found else {}


def record(launch: Launch, meter: Meter, *, doubtful: bool = False) -> dict[str, Any]:
    """The record of an interpreted launch, with its faults, except those that ``doubtful`` values may have made.

    It is ``undecided`` where values would show if programs race.
    """
    undecided = {"undecided": True} if meter.seen.undecided and meter.sampled is meter.by_rule is None else {}
    seen = Evidence() if doubtful else meter.seen
    return {**meter.record(launch), **undecided, **of_subject(Subject(launch, seen, meter.races))}
