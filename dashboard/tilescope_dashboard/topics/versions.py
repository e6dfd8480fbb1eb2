"""Two versions of a script: each value with its change, the findings that came or went, the source's difference, the headline; and an
example by a recorded study. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import pandas as pd
from tilescope.models import versions as model
from tilescope.models.versions import Change, Pair
from tilescope.notebook.watching import Comparison, Version
from tilescope.runs.store import LoadedRun
from tilescope.table import units

from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.launched_code import Lines
from tilescope_dashboard.data.recordings import Question
from tilescope_dashboard.topics.sentence import Sentence

#: Kinds of change. A resource such as registers only ``MOVED``: more of it may be better or worse.
BETTER, WORSE, MOVED, NOISE, SAME, OLD, NEW = "better", "worse", "moved", "noise", "same", "old", "new"
#: Metrics that are good or bad by themselves.
_JUDGED = (
    "gpu_time",
    "interval",
    "dram",
    "requested",
    "sampled",
    "spill_bytes",
    "sector_efficiency_read",
    "sector_efficiency_written",
)
#: Changes that a headline names, most important first, and how many.
_WEIGHTY = ("gpu_time", "spill_bytes", "sector_efficiency_read", "sector_efficiency_written", "dram", "requested", "sampled",
            "registers", "theoretical_occupancy", "shared_memory")  # fmt: skip
_NAMED = 2
#: The least relative change that is named.
_LEAST = 0.01
#: Lines of the source around a change.
_AROUND = 3
#: The sentence where no script is watched.
NOTHING = Sentence(
    "Watch a script: save it, and see what changed",
    "It runs again whenever it, or a file that it imports, is saved. In a terminal: tilescope watch my.py.",
)
#: The title of the example there.
EXAMPLE = "Example: v1 copies a column at a time, v2 a row"
_LINE = re.compile(r"\bline (\d+)(?: of ([\w.]+\.py))?", re.IGNORECASE)


class Value(NamedTuple):
    """One value: its ``label``, what it is ``now`` and was ``before``, the ``change`` in words, and the change's kind."""

    label: str
    now: str
    before: str
    change: str
    kind: str


class SourceLine(NamedTuple):
    """A line of the source: ``+`` or ``-`` or empty, its number, its text, and what is wrong there."""

    sign: str
    number: int
    text: str
    wrong: str = ""


def values(pair: Pair, old: str = "") -> list[Value]:
    """The pair's values. Where ``old`` says why, a value that the candidate lacks is the baseline's, of the kind ``OLD``."""
    return [_value(change, pair.baseline is None, old) for change in pair.changes]


def _value(change: Change, alone: bool, old: str) -> Value:
    before, now, _ = change.texts()
    if change.candidate is None and old:
        return Value(change.label, before, "", old, OLD)
    kind = NEW if alone else _kind(change)
    said = {NEW: "", SAME: "same", NOISE: f"{_moved(change)}, noise"}.get(kind, _moved(change))
    return Value(change.label, now, "" if kind in (NEW, SAME) else before, said, kind)


def _kind(change: Change) -> str:
    if change.baseline is None or change.candidate is None:
        return MOVED
    if units.text(change.baseline, change.unit) == units.text(change.candidate, change.unit):
        return SAME
    if change.noise:
        return NOISE
    return MOVED if change.metric not in _JUDGED else BETTER if change.better else WORSE


def _moved(change: Change) -> str:
    """``−18 %``; for counts and shares the difference; empty where a side is absent."""
    if change.baseline is None or change.candidate is None:
        return ""
    difference = change.candidate - change.baseline
    if change.unit == "count" or (change.unit == "byte" and not change.baseline):
        return f"{'+' if difference > 0 else '−'}{units.text(abs(difference), change.unit)}"
    if change.unit == "ratio":
        return f"{'+' if difference > 0 else '−'}{abs(difference) * 100:.3g} points"
    relative = change.relative or 0
    return f"{'+' if relative > 0 else '−'}{abs(relative) * 100:.3g} %"


def of_file(saved: datetime, profiled: bool) -> str:
    """What a list of scripts says of one."""
    return f"saved {saved:%-d %b %H:%M}{', profiled before' if profiled else ''}"


def short(version: Version) -> str:
    """``v3``, with the name that a user gave it."""
    return f"v{version.number} {version.name}".rstrip()


def sentence(version: Version, baseline: Version | None, pair: Pair | None, usual: float | None = None) -> Sentence:
    """The headline of a version against its baseline: what is wrong first, then the time, then what else changed most.

    The first version takes about as long as the script's last run, ``usual``, in seconds.
    """
    name, other = short(version), short(baseline) if baseline else ""
    if version.state == "running":
        doing = f": {version.doing}" if version.doing else ""
        took = f", which took {baseline.seconds:.1f} s" if baseline and baseline.seconds else ""
        last = f"The last run of this script took {usual:.0f} s." if usual else ""
        return Sentence(f"{name} is running{doing}", f"Grey values are of {other}{took}." if other else last)
    if version.state == "failed":
        title, _, text = (version.wrong or ["no launch"])[0].partition(". ")
        stays = f"{other} stays the last good version." if other else "No version is good yet."
        return Sentence(f"{name}: {title.removesuffix('.')}", f"{text} {stays}".strip())
    took = f"{version.seconds:.1f} s after the save."
    if version.doing:
        took += f" Still {version.doing}."
    if pair is None or pair.candidate is None:
        return Sentence(f"{name} launched no kernel", took)
    if "gpu_time" not in pair.candidate.values:
        took += " Not timed: that needs a GPU."
    if pair.baseline is None:
        first = next(iter(pair.candidate.findings), None)
        bound = f": {first.bound.text}" if first and first.bound else ""
        return Sentence(f"{name}: {first.title}{bound}" if first else f"{name}: no problem found", took)
    changes = {change.metric: change for change in pair.changes}
    time = changes.get("gpu_time")
    if time and time.baseline and time.candidate:
        return Sentence(f"{name} takes {time.texts()[1]}, {_speed(time, other)}", took)
    told = [change for change in _weighty(pair) if change.candidate is not None][:_NAMED]
    said = ", ".join(f"{change.label} {change.texts()[1]} (was {change.texts()[0]})" for change in told)
    return Sentence(f"{name} against {other}: {said or 'no value changed'}", took)


def _speed(time: Change, other: str) -> str:
    ratio = (time.baseline or 0) / (time.candidate or 1)
    if time.noise:
        return f"as long as {other} within noise"
    return f"{units.times(ratio)} faster than {other}" if ratio > 1 else f"{units.times(1 / ratio)} slower than {other}"


def _weighty(pair: Pair) -> list[Change]:
    """What changed by 1 % or more, and beyond noise, most important first."""
    changes = {change.metric: change for change in pair.changes}
    found = [changes[key] for key in _WEIGHTY if key in changes and _kind(changes[key]) not in (SAME, NOISE)]
    return [change for change in found if change.relative is None or abs(change.relative) >= _LEAST]


def place(said: str, script: str) -> tuple[str, int]:
    """The file's name and the line that a message is about; 0 where it names none."""
    named = max(_LINE.finditer(said), key=lambda found: bool(found[2]), default=None)
    return (named[2] or script, int(named[1])) if named else (script, 0)


def source(
    before: Mapping[str, Lines], after: Mapping[str, Lines], wrong: Mapping[tuple[str, int], str]
) -> dict[str, list[SourceLine]]:
    """By file, the lines of ``after`` near those that differ from ``before`` or are ``wrong``, by file and line; else the first file.

    Between two lines that do not follow each other, others are left out. Where each side has one file that the other lacks, these two
    are compared.
    """
    alone = [[name for name in side if name not in other] for side, other in ((before, after), (after, before))]
    if [len(names) for names in alone] == [1, 1]:
        ((old,), (new,)) = alone
        before = {new if name == old else name: lines for name, lines in before.items()}
    names = dict.fromkeys([*after, *before])
    files = {
        name: _compared(before.get(name, ()), after.get(name, ()), name, wrong, whole=not before) for name in names
    }
    near = {name: _near(lines) for name, lines in files.items()} if before else {}
    shown = {name: lines for name, lines in near.items() if lines}
    return shown or dict(list(files.items())[:1])


def _compared(
    before: Lines, after: Lines, name: str, wrong: Mapping[tuple[str, int], str], *, whole: bool
) -> list[SourceLine]:
    old, new = ([text for _, text in side] for side in (before, after))
    matcher, lines = difflib.SequenceMatcher(None, old, new, autojunk=False), list[SourceLine]()
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag != "equal":
            lines += [SourceLine("-", *line) for line in before[i1:i2]]
        sign = "" if tag == "equal" or whole else "+"
        lines += [SourceLine(sign, at, text, wrong.get((name, at), "")) for at, text in after[j1:j2]]
    return lines


def _near(lines: Sequence[SourceLine]) -> list[SourceLine]:
    marked = [at for at, line in enumerate(lines) if line.sign or line.wrong]
    kept = {at + step for at in marked for step in range(-_AROUND, _AROUND + 1)}
    return [line for at, line in enumerate(lines) if at in kept]


def badge(comparison: Comparison) -> str:
    """What the strip says of the candidate: its time and speedup, else what changed most; where it is wrong; or that it runs."""
    version = comparison.candidate
    if version.state == "running":
        return "running …"
    if version.state == "failed":
        line = place(version.wrong[0], "")[1] if version.wrong else 0
        return f"line {line}: wrong" if line else "wrong"
    pair = next((pair for pair in comparison.pairs if pair.candidate), None)
    time = next((change for change in pair.changes if change.metric == "gpu_time"), None) if pair else None
    if pair and (time is None or not time.candidate):
        first = next(iter(_weighty(pair)), None) if pair.baseline else None
        return f"{first.label.removesuffix(' used')} {_moved(first)}" if first else "same" if pair.baseline else "first"
    if time is None or not time.baseline or not time.candidate:
        return time.texts()[1] if time else ""
    return f"{time.texts()[1]} {'noise' if time.noise else units.times(time.baseline / time.candidate)}"


#: The kernel of a study that is an example, and its cases before and after its accesses are coalesced.
STUDY = "strided_copy"
STUDIED = tuple(KernelCase(impl, "forward", "4194304x32-fp32") for impl in ("strided", "triton"))


def example(loaded: LoadedRun, kernel: str) -> Pair | None:
    """Both copies; None where the run does not have both with counted accesses."""
    rows = loaded.table[loaded.table["kernel"] == kernel]
    rows = pd.concat([rows[(rows[OF_KERNEL] == list(case)).all(axis="columns")] for case in STUDIED])
    cases = model.cases(dataclasses.replace(loaded, table=rows))
    counted = [case for case in cases if "sector_efficiency_read" in case.values]
    return Pair(counted[0], counted[1]) if len(counted) == len(STUDIED) else None


#: The best recording of the study.
QUESTION = Question(example)
