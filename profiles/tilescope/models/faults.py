"""Faults: what is wrong with a case, before anything is said of its speed. Pure.

A fault is a wrong result, an access outside of the kernel's tensors, other wrong code, code that does not compile, or a call that
ended. It is the first finding about its case, and nothing else is concluded about that case.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tilescope.table import kernel_faults
from tilescope.table.case import Case, readable
from tilescope.table.case_table import GPU_TIME_SOURCES, CaseValues, Known
from tilescope.table.run import Failure, Run
from tilescope.table.schema import NAMED

#: The rules' names, in the order in which faults are to be fixed, and what a table calls them.
COMPILE, LAUNCH, CODE, OUTSIDE = "does-not-compile", "cannot-launch", "wrong-code", "out-of-bounds"
WRONG, CRASH, FAILED = "wrong-result", "crash", "failed"
LABELS = {name: name.replace("-", " ") for name in (COMPILE, LAUNCH, CODE, OUTSIDE, WRONG, CRASH, FAILED)}

#: Collectors that call the kernel on a GPU, and those that do without.
_CALLING = frozenset({"events", "torch_profiler", "race"})
_PREDICTING = frozenset({"check", "compiler", "interpreter"})
#: Names of exception classes before a message, which say nothing to a user.
_CLASS = re.compile(r"^(?:InterpretationFailed|CompilationFailed|CheckFailed): ")
#: The interpreter's message for an access outside of the kernel's tensors (``interpreter.interpret``).
_OUTSIDE = re.compile(
    r"(?P<function>\S+), program (?P<program>\(.*?\)), line (?P<line>\d+): (?P<verb>touches|reads|writes) "
    r"(?P<where>[\d,]+ bytes? (?:past|after) the end of|[\d,]+ bytes? before the start of|what follows the end of|memory of) "
    r"(?P<what>.+?)(?:: element (?P<index>-?[\d,]+) of (?P<count>[\d,]+))?(?P<more> \(.*\))?"
)
#: Its message for a statement that fails whatever interprets it: an assertion, a division of integers by zero.
_STATEMENT = re.compile(
    r"(?P<function>\S+), program (?P<program>\(.*?\)), line (?P<line>\d+): (?P<why>(?:Assertion|ZeroDivision)Error.*)"
)
#: The function and the line that a message is about.
_PLACE = re.compile(r"(\w+)(?:,| cannot| does not)(?:.*?\bline (\d+))?", re.DOTALL)
#: The interpreter's message for an exception of Python.
_STOPPED = re.compile(r"InterpretationFailed: \S+, program \(.*?\), line \d+: \w+: ")
#: CUDA's errors about addresses.
_CUDA = re.compile(r"illegal memory access|misaligned address")
_DIED = re.compile(r"worker (?P<ending>.+?) while (?P<doing>[\w ]+?) \S+/.*; finished cases are kept", re.DOTALL)
_UNCOMPILED = re.compile(r"^(?:CompilationFailed|OutOfResources): ")
#: What compiles, and a GPU refuses.
_REFUSED = re.compile(r"cannot be launched|shared memory|out of resource")
#: Remedies by what the compiler's message says.
_CURES = (
    (r"Cannot access global variable (\w+)", "Declare it as {0} = tl.constexpr(…) in its module, or pass it as an argument."),
    (r"supported fp8 dtypes", "Use one of the supported dtypes, or name an architecture that has this one (--target sm_89)."),
    (r"out of resource", "Use smaller blocks or fewer stages."),
    (r"\bline \d+", "Correct that line, then profile it again."),
)  # fmt: skip

_CORRECT = "Correct the result first: the time of wrong code says little."


class Fault(NamedTuple):
    """A fault: its rule, a title, an explanation, the line of code, a remedy, and the values that prove it. Texts may be empty."""

    rule: str
    title: str
    explanation: str
    code: str
    remedy: str
    proof: tuple[tuple[str, Known], ...] = ()

    @property
    def why(self) -> str:
        return " ".join(filter(None, (self.explanation, self.code)))

    @property
    def text(self) -> str:
        return " ".join(filter(None, (self.why, self.remedy)))


class Faults:
    """The failures of a run, by case."""

    def __init__(self, failures: Iterable[Failure]) -> None:
        self._by_case: dict[str, list[Failure]] = defaultdict(list)
        for failure in failures:
            # Older runs name a user's own kernel by its variable.
            for name in {readable(failure.case), failure.case.rpartition(".py:")[2]}:
                self._by_case[name].append(failure)

    def of(self, case: CaseValues) -> Fault | None:
        """The case's first fault; None without one.

        Code that was timed does compile. An exception is a fault where nothing else shows that the code runs.
        """
        timed = any(clock in {*GPU_TIME_SOURCES, "events"} for _, clock in case.totals)
        unknown = {source for _, source in case.values} <= {"model"} and not timed
        found = [of_failure(one) for one in self.told(case) if unknown or _is_certain(one, timed=timed)]
        return first([*found, *_wrong(case)])

    def told(self, case: CaseValues) -> list[Failure]:
        return self._by_case.get(Case(*(case.key[name] for name in NAMED)).id, [])


def first(found: Sequence[Fault]) -> Fault | None:
    order = list(LABELS)
    return min(found, key=lambda fault: order.index(fault.rule), default=None)


def of_kernel(run: Run, kernel: str, cases: Iterable[CaseValues] = ()) -> Fault | None:
    """The first fault of the kernel's cases in the run; of its failures where it has no case. None without one."""
    known, given = Faults(run.failures), list(cases)
    found = map(known.of, given) if given else map(of_failure, run.failures_of(kernel))
    return first([fault for fault in found if fault])


def of_failure(failure: Failure) -> Fault:
    """What a failed case's message says, in the words of a finding."""
    return next(_told(readable(failure.case).partition("/")[0], failure))


def plain(message: str) -> str:
    return _CLASS.sub("", message)


def distinct(failures: Iterable[Failure]) -> list[Failure]:
    """The failures in the order in which they are to be fixed, without what another collector says of the same case in other words.

    Other words end alike, or are the interpreter's about a line that does not compile. They are about another fault where both name
    a function or a line, and not the same.
    """
    order, found, said = list(LABELS), list[Failure](), defaultdict[str, list[Failure]](list)
    for failure in sorted(failures, key=lambda failure: order.index(of_failure(failure).rule)):
        if not (failure.case and any(_again(failure, earlier) for earlier in said[failure.case])):
            found.append(failure)
            said[failure.case].append(failure)
    return found


def _again(later: Failure, earlier: Failure) -> bool:
    """Whether two failures of a case are one fault, in different words."""
    one, other = later.message, earlier.message
    after, before = of_failure(later), of_failure(earlier)
    if (before.rule, after.rule) == (CODE, OUTSIDE) and before.remedy == after.remedy:
        # The offset and the access that it leads to, unless another kernel of the case makes that.
        return plain(one).partition(", ")[0] in {part.partition(", ")[0] for part in other.split("; ")}
    if one == other:
        return False
    places = [found.groups() for said in (one, other) if (found := _PLACE.match(plain(said)))]
    if any(all(known) and len({*known}) > 1 for known in zip(*places, strict=True)):
        return False
    if len(places) == 2 and all(map(all, places)) and _UNCOMPILED.match(other) and _STOPPED.match(one):
        return True
    # The end of a fault of code is its remedy, which several have.
    alike = one.rpartition(": ")[2] == other.rpartition(": ")[2]
    return alike and not (kernel_faults.read(one) or kernel_faults.read(other))


def message(failure: Failure) -> str:
    """The failure's message, in words for a user; an access outside of the kernel's tensors with the index of the last element."""
    fault = of_failure(failure)
    return f"{fault.title}. {fault.explanation}" if fault.rule == OUTSIDE else plain(failure.message)


def notes(run: Run) -> list[str]:
    """The run's notes, without what its failures say."""
    found = []
    for note in run.notes:
        for failure in run.failures:
            note = note.removesuffix(f": {plain(failure.message)}")  # noqa: PLW2901
        found.append(note)
    return found


def of_failures(failures: Iterable[Failure]) -> Iterator[tuple[Mapping[str, str], Fault]]:
    """The first fault of each failed case, with the columns that name the case. Failures of a whole collector have no case."""
    by_case: dict[tuple[str, ...], list[Fault]] = defaultdict(list)
    for failure in failures:
        parts = readable(failure.case).split("/", 4)
        if len(parts) >= 4:  # a config is a fifth
            by_case[(*parts, "")[:5]].append(of_failure(failure))
    for case, found in by_case.items():
        if fault := first(found):
            yield dict(zip(NAMED, case, strict=True)), fault


def _is_certain(failure: Failure, *, timed: bool) -> bool:
    """Whether the kernel is at fault although other collectors have values of the case: collectors have limits of their own."""
    said = plain(failure.message)
    if of_failure(failure).rule in (OUTSIDE, CODE, WRONG) or _STATEMENT.fullmatch(said):
        return True
    crashed = failure.collector in _PREDICTING and "worker crashed (" in said
    return not timed and bool(crashed or failure.collector in _CALLING or _UNCOMPILED.match(failure.message))


def _told(name: str, failure: Failure) -> Iterator[Fault]:
    """What the failure's message may be about, the most certain first."""
    message, said = failure.message, plain(failure.message)
    if found := _OUTSIDE.fullmatch(said):
        title, remedy = f"{name} {_title(found)} in line {found['line']}", "Mask those lanes, or check the offsets."
        if _wrapped(found):
            title = f"{title}: the offset does not fit in 32 bits"
            remedy = "Cast a factor before the product, as in row.to(tl.int64) * stride."
        index = f"{_index(found)} program {found['program']} of {found['function']}."
        yield Fault(OUTSIDE, title, index, _line(failure, found["line"]), remedy)
    if code := kernel_faults.read(message):
        remedy = f"{code.remedy[:1].upper()}{code.remedy[1:]}."
        yield Fault(CODE, f"{code.function}, line {code.line}: {code.what}", "", "", remedy)
    if found := _STATEMENT.fullmatch(said):
        where = f"It happens in program {found['program']} of {found['function']}."
        title = f"{name} fails in line {found['line']}: {found['why'].rstrip('.: ')}"
        yield Fault(FAILED, title, where, _line(failure, found["line"]), "Correct that line, or its inputs.")
    if _CUDA.search(message):
        remedy = "'tilescope profile --collect interpreter' names the line; compute-sanitizer does on a GPU."
        yield Fault(OUTSIDE, f"{name}: {message.rstrip('.')}", "", "", remedy)
    if _UNCOMPILED.match(message):
        told, _, cure = said.partition(": use ")
        title, _, more = told.partition(". ")
        rule, remedy = LAUNCH if _REFUSED.search(told) else COMPILE, f"Use {cure}." if cure else _cure(said)
        yield Fault(rule, title.rstrip("."), more.partition(". ")[0], _caret(failure), remedy)
    if message.startswith("CheckFailed: "):
        wrong = said.removeprefix(failure.case).lstrip(", ").removeprefix("wrong, so not timed: ")
        yield Fault(WRONG, f"Wrong: {wrong}", "", "", _CORRECT)
    if found := _DIED.fullmatch(message):
        last = next((text.strip() for text in reversed(failure.detail.splitlines()) if text.strip()), "")
        title = f"{name}: its process {found['ending']} while {found['doing']}"
        end = f"The end of its output: {last}" if last else ""
        yield Fault(CRASH, title, end, "", "Call it alone: python -X faulthandler shows the line.")
    yield Fault(FAILED, f"{name} failed: {said.rstrip('.')}", "", "", "Correct this, then profile it again.")


def _wrong(case: CaseValues) -> Iterator[Fault]:
    """The fault of results that are farther from the reference's than they may be."""
    for error, allowed, whose in (("relative_error", "tolerance", "the"), ("row_error", "row_tolerance", "a row's")):
        found, most = case.total(error), case.total(allowed)
        if found and most and found.value > most.value:
            title = f"Wrong: {whose} error against the reference, {found.value:.2g}, is above {most.value:.2g}"
            yield Fault(WRONG, title, "", "", _CORRECT, ((error, found), (allowed, most)))
            return


def _cure(said: str) -> str:
    for pattern, cure in _CURES:
        if found := re.search(pattern, said):
            return cure.format(*found.groups())
    return "Correct this, then profile it again."


def _title(found: re.Match[str]) -> str:
    where = re.sub(r"^[\d,]+ bytes? (?:past |after )?|^what follows ", "", found["where"])
    return f"{found['verb']} {'past ' if where.startswith('the end') else ''}{where} {found['what']}"


def _wrapped(found: re.Match[str]) -> bool:
    """Whether the element lies in the tensor once the 32 bits of its offset are read without a sign."""
    index, count = (int((found[name] or "0").replace(",", "")) for name in ("index", "count"))
    return index < 0 <= index + 2**32 < count


def _index(found: re.Match[str]) -> str:
    what, index, count = found["what"], found["index"], found["count"]
    if index is None:
        return f"{found['where'].capitalize()} {what}{found['more'] or ''}, in"
    last = int(count.replace(",", "")) - 1
    return f"It {found['verb']} {what}[{index}]; the last element is {last:,}{found['more'] or ''}. It happens in"


def _line(failure: Failure, line: str) -> str:
    """The line of code that the traceback has with this number."""
    found = re.search(rf'File "[^"]*?([^"/\\]+)", line {line}, in \w+\n +(\S.*)', failure.detail)
    return f"Line {line} of {found[1]}: {found[2]}." if found else ""


def _caret(failure: Failure) -> str:
    """The line of code to which Triton's compiler points; empty where it points to the whole function."""
    found = re.search(r"\n *(\S[^\n]*)\n *\^\n", failure.detail)
    return f"The line: {found[1]}." if found and not found[1].startswith(("def ", "File ", "@")) else ""
