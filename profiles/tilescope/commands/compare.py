"""``tilescope compare``: changes between a baseline and other runs or implementations."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pandas as pd

from tilescope.commands import running
from tilescope.models import (
    code_change,
    compare,
    function_names,
    json_documents,
    renaming,
    step_changes,
    terminal,
    verdicts,
    versions,
)
from tilescope.models.code_change import Launch
from tilescope.models.compare import Side
from tilescope.models.step_changes import StepPair
from tilescope.runs import store
from tilescope.table.units import text

#: Most values, and most lines of a diff.
_LINES = 120
#: Most kernels of two steps.
_KERNELS = 20
#: Headings of ``_case``.
_CASE = ["kernel", "pass", "workload", "implementation"]
#: Most launches, lines of a launch, and operations of a line.
_LAUNCHES, _CODE_LINES, _OPERATIONS = 20, 12, 6


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("baseline", metavar="BASELINE", help="a run, RUN:IMPL (latest:triton) or RUN:KERNEL")
    parser.add_argument(
        "candidates", nargs="+", metavar="CANDIDATE", help="runs to compare with it, RUN:IMPL or RUN:KERNEL"
    )
    parser.add_argument("--kernel", default="", metavar="KERNEL", help="only this kernel (all)")
    parser.add_argument(
        "--fail-below",
        type=_slowdown,
        default=0.0,
        metavar="SPEEDUP",
        help="status 1 when the speedup of a case, or of a model's step, is certainly below this, at most 1",
    )
    parser.add_argument(
        "--code", action="store_true", help="only the compiled code: the counts that moved, by launch and source line"
    )
    parser.add_argument(
        "--stage",
        choices=["ttgir", "ptx", "sass"],
        default="",
        help="both sides' code of this stage, too (with --code)",
    )
    parser.add_argument("--json", action="store_true", help="every case as JSON (schema: comparison)")


def _slowdown(text: str) -> float:
    """A speedup of at most 1. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no speedup from 0 to 1, such as 0.95")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Prints a table for each candidate, the slowest cases first."""
    baseline, *candidates = (
        compare.side(text, running.found, store.open_run) for text in (arguments.baseline, *arguments.candidates)
    )
    of_code = arguments.code or bool(arguments.stage)
    found = [compared(baseline, candidate, arguments.kernel, code=of_code) for candidate in candidates]
    if arguments.json:
        print(json_documents.text(json_documents.comparison(baseline, candidates, found, code=of_code)))
    else:
        for candidate, (rows, pair) in zip(candidates, found, strict=True):
            if pair:
                _print_step(baseline, candidate, pair)
            elif of_code:
                _print_code(baseline, candidate, rows, arguments.stage)
            else:
                _print(baseline, candidate, rows)
    slow = any(pair.speedup * (1 + compare.DRIFT) < arguments.fail_below for _, pair in found if pair)
    return int(slow or verdicts.worst([rows for rows, _ in found]) < arguments.fail_below)


def compared(
    baseline: Side, candidate: Side, kernel: str = "", *, code: bool = False
) -> tuple[pd.DataFrame, StepPair | None]:
    """The rows of ``compare.compare``, or two models' steps, which have none. Raises CompareError without a case in common."""
    if not (kernel or code) and (pair := step_changes.of(baseline, candidate)):
        return pd.DataFrame(columns=list(compare.COLUMNS)), pair
    return compare.compare(baseline, candidate, kernel), None


def _print_step(baseline: Side, candidate: Side, pair: StepPair) -> None:
    terminal.say(f"{baseline.name} → {candidate.name}", pair.sentence)
    terminal.say(*(f"note: {line}" for line in pair.obstacles[1:]))  # the sentence has the first
    terminal.say(*(f"changed: {line}" for line in compare.changes(baseline, candidate)))
    headings = ["kernel", "change", "baseline", "candidate", "module", "launches", "pass", "operator"]
    cells = [
        [
            one.name, one.change, *(text(seconds, "second") for seconds in one.seconds), one.module,
            " → ".join(map(str, dict.fromkeys(one.launches))), one.direction, one.operator,
        ]
        for one in pair.moved[:_KERNELS]
    ]  # fmt: skip
    if cells:
        print(terminal.render(headings, cells, keys=4))
    if rest := pair.moved[_KERNELS:]:
        terminal.say(f"… and {len(rest)} more (--json has all)")


def _print(baseline: Side, candidate: Side, rows: pd.DataFrame) -> None:
    terminal.say(f"{baseline.name} → {candidate.name}", verdicts.sentence(rows, candidate.name, baseline.name))
    for line in compare.obstacles(baseline, candidate):
        terminal.say(f"no times are compared: {line}")
    for line in compare.doubts(baseline.loaded, candidate.loaded, rows):
        terminal.say(f"note: {line}")
    for line in compare.changes(baseline, candidate):
        terminal.say(f"changed: {line}")
    if not (baseline.kernel or candidate.kernel):
        called = zip(rows["kernel"], rows["baseline_kernel"], strict=True)
        terminal.say(*renaming.told({name: old for name, old in called if name != old}))
    timed = rows[rows["time"].notna()]
    if len(timed):
        headings = [*_CASE, "candidate is", "speedup", "95 %", "baseline", "candidate"]
        cells = [
            [
                *_case(row), row["verdict"],
                "–" if row["speedup"] != row["speedup"] else f"{row['speedup']:.3f}",
                "–" if row["speedup"] != row["speedup"] else f"{row['speedup_low']:.3f} to {row['speedup_high']:.3f}",
                text(row["baseline_time"], "second"), text(row["time"], "second"),
            ]
            for row in timed.to_dict("records")
        ]  # fmt: skip
        print(terminal.render(headings, cells, keys=6))
    _print_changes(baseline, candidate, rows)
    lines = list(versions.of_kernels(baseline.loaded, candidate.loaded, rows))
    terminal.say(
        *lines[:_LINES], *([f"… and {len(lines) - _LINES} more lines (--json has all)"] if lines[_LINES:] else [])
    )


def _print_code(baseline: Side, candidate: Side, rows: pd.DataFrame, stage: str) -> None:
    found = code_change.launches(baseline, candidate, rows)
    terminal.say(f"{baseline.name} → {candidate.name}", code_change.sentence(found))
    tell_code(found)
    tell_lines(found, stage)


def _print_changes(baseline: Side, candidate: Side, rows: pd.DataFrame) -> None:
    """Prints the values that differ, and the findings that came and went, of each pair of cases."""
    before, after = (
        {tuple(case.names.values()): case for case in versions.cases(side.loaded)} for side in (baseline, candidate)
    )
    changed, findings = list[list[str]](), list[str]()
    for row in rows[(rows["config"] == "") & (rows["baseline_config"] == "")].to_dict("records"):
        keys = [tuple(row[of + name] for name in ("kernel", "impl")) for of in ("baseline_", "")]
        old, new = (
            side.get((*key, row["pass"], row["workload"])) for side, key in zip((before, after), keys, strict=True)
        )
        pair = versions.Pair(old, new)
        values = [one for one in pair.changes if one.baseline != one.candidate]
        changed += [[*_case(row), one.label, *one.texts()] for one in values]
        for word, told in zip(("new", "gone"), (pair.came, pair.went), strict=True):
            findings += [f"{word}: {' '.join(_case(row))}: {finding.title}" for finding in told]
    terminal.say(*findings[:_LINES])
    if changed:
        headings = [*_CASE, "value", "baseline", "candidate", "change"]
        print(terminal.render(headings, changed[:_LINES], keys=len(headings)))
    elif not findings:
        terminal.say("no other value differs" if rows["time"].notna().any() else "no value differs")
    if changed[_LINES:]:
        terminal.say(f"… and {len(changed) - _LINES} more values (--json has all)")


def _case(row: dict[Any, Any]) -> list[str]:
    called = {name: function_names.said(row[name]) for name in ("kernel", "baseline_kernel")}
    return [_both(row | called, ["kernel"]), row["pass"], row["workload"], _both(row, ["impl", "config"])]


def _both(row: dict[Any, Any], names: list[str]) -> str:
    before, after = (" ".join(filter(None, (row[of + name] for name in names))) for of in ("baseline_", ""))
    return after if before == after else f"{before} → {after}"


def tell_code(launches: Sequence[Launch]) -> None:
    """Prints the counts of each launch that moved, the launches that got worse first."""
    changed = [one for one in launches if one.moved]
    for one in changed[:_LAUNCHES]:
        terminal.say("", f"{one.candidate.function} ({one.case}) of {one.candidate.file}")
        rows = [
            [change.label, *change.texts(), "worse" if change.worse else "", str(change.line or "–")]
            for change in one.moved
        ]
        print(terminal.render(["count", "baseline", "candidate", "change", "", "line"], rows))
    if changed[_LAUNCHES:]:
        terminal.say(f"… and {len(changed) - _LAUNCHES} more launches (--json has all)")


def tell_lines(launches: Sequence[Launch], stage: str) -> None:
    """Prints, for each launch, the source lines whose operations differ; both codes of a line beside each other where ``stage`` is one.

    Without a stage it is SASS, or PTX where there is none.
    """
    for one in launches:
        shown = stage or ("sass" if one.candidate.stages.get("sass") else "ptx")
        lines = list(code_change.side_by_side(one.baseline, one.candidate, shown))
        if not lines:
            continue
        terminal.say(f"{one.candidate.function} ({one.case}), {shown} of {one.candidate.file}:")
        for line in lines if stage else sorted(lines, key=lambda line: -line.size)[:_CODE_LINES]:
            more = len(line.operations) - _OPERATIONS
            said = ", ".join(f"{name} {old} → {new}" for name, old, new in line.operations[:_OPERATIONS])
            terminal.say(f"  line {line.line}: {said}{f' and {more} more' if more > 0 else ''}")
            if stage:
                texts = zip_longest(line.baseline, line.candidate, fillvalue="")
                print(terminal.render(["baseline", "candidate"], [list(pair) for pair in texts]))
        if not stage and lines[_CODE_LINES:]:
            terminal.say(f"  … and {len(lines) - _LINES} more lines (--stage {shown} has all)")
