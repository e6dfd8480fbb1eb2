"""Failures of a kernel as text: the headline of a kernel that could not run, and accesses outside of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tilescope.files import names
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table.case import readable
from tilescope.table.run import Failure

from tilescope_dashboard.topics.sentence import Sentence

#: The interpreter's message for an access outside of the kernel's tensors (``interpreter.interpret``).
_OUTSIDE = re.compile(
    r"(?P<function>\S+), program (?P<program>\(.*?\)), line (?P<line>\d+): (?P<verb>touches|reads|writes) "
    r"(?P<where>[\d,]+ bytes? (?:past|after) the end of|[\d,]+ bytes? before the start of|what follows the end of|memory of) "
    r"(?P<what>.+?)(?:: element (?P<index>-?[\d,]+) of (?P<count>[\d,]+))?(?P<more> \(.*\))?"
)
#: Names of exception classes before a message, which say nothing to a user.
_CLASS = re.compile(r"^(?:InterpretationFailed|CompilationFailed|CheckFailed): ")


def plain(message: str) -> str:
    """A failure's message without its exception class."""
    return _CLASS.sub("", message)


def of_kernel(loaded: LoadedRun, kernel: str) -> tuple[list[Failure], Mapping[str, str]]:
    """The kernel's failures in the run, and its source files by name, read only if there are failures."""
    failed = [one for one in loaded.run.failures if one.concerns(kernel)]
    try:
        return failed, loaded.sources.get(kernel, {}) if failed else {}
    except store.StoreError:  # the run did not keep all files
        return failed, {}


def first(kernel: str, failed: Sequence[Failure], sources: Mapping[str, str], known: bool) -> Sentence | None:
    """The sentence that replaces all others about a kernel: an access outside of its tensors, or the reason why nothing is
    ``known``; None where there is neither.
    """
    # Code that does not compile must be fixed first.
    if known or all(one.collector != "compiler" for one in failed):
        wrong = outside(failed, sources)
        if wrong:
            return wrong
    return of_nothing(kernel, [one.message for one in failed]) if failed and not known else None


def outside(failures: Iterable[Failure], sources: Mapping[str, str]) -> Sentence | None:
    """The first access outside of its tensors: what it does, where, and how far outside. None without one.

    ``sources`` are the texts of the kernel's files by name.
    """
    for failure in failures:
        found = _OUTSIDE.fullmatch(plain(failure.message))
        if found:
            case = readable(failure.case).split("/")
            text = [
                f"{_index(found)} program {found['program']} of {found['function']}, {' '.join(case[1:])}.",
                _line(failure, found["line"], sources),
                "Mask those lanes, or check the offsets. Ignore the other numbers of this size until this is fixed.",
            ]
            return Sentence(f"{case[0]} {_title(found)} in line {found['line']}", " ".join(filter(None, text)))
    return None


def of_nothing(kernel: str, messages: Iterable[str]) -> Sentence:
    """Title and text for a kernel that has these failures and no values."""
    said = list(dict.fromkeys(re.sub(r"^[A-Z]\w+: ", "", message).rstrip(".") for message in messages))
    what, _, why = said[0].partition(": ")
    if what.startswith(f"{kernel} ") and why:
        return Sentence(what, " ".join(f"{one}." for one in [why[:1].upper() + why[1:], *said[1:]]))
    return Sentence(f"{kernel} failed", " ".join(f"{one}." for one in said))


def _title(found: re.Match[str]) -> str:
    """``reads past the end of x``."""
    where = re.sub(r"^[\d,]+ bytes? (?:past |after )?|^what follows ", "", found["where"])
    return f"{found['verb']} {'past ' if where.startswith('the end') else ''}{where} {found['what']}"


def _index(found: re.Match[str]) -> str:
    what, index, count = found["what"], found["index"], found["count"]
    if index is None:
        return f"{found['where'].capitalize()} {what}{found['more'] or ''}, in"
    last = int(count.replace(",", "")) - 1
    return f"It {found['verb']} {what}[{index}]; the last element is {last:,}{found['more'] or ''}. It happens in"


def _line(failure: Failure, line: str, sources: Mapping[str, str]) -> str:
    """The line of code that the traceback names, if its file is known."""
    for name, text in sources.items():
        lines = text.splitlines()
        if f'{name}", line {line},' in failure.detail and int(line) <= len(lines):
            return f"Line {line} of {names.readable(name)}: {lines[int(line) - 1].strip()}."
    return ""
