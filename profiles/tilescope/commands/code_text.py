"""Launches whose compiled code differs, as text: the counts that moved first, then the operations of each source line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from tilescope.models import code_change, terminal
from tilescope.models.code_change import Launch

#: Most launches, lines of a launch, and operations of a line.
_LAUNCHES, _LINES, _OPERATIONS = 20, 12, 6


def tell(launches: Sequence[Launch]) -> None:
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
        for line in lines if stage else sorted(lines, key=lambda line: -line.size)[:_LINES]:
            more = len(line.operations) - _OPERATIONS
            said = ", ".join(f"{name} {old} → {new}" for name, old, new in line.operations[:_OPERATIONS])
            terminal.say(f"  line {line.line}: {said}{f' and {more} more' if more > 0 else ''}")
            if stage:
                texts = zip_longest(line.baseline, line.candidate, fillvalue="")
                print(terminal.render(["baseline", "candidate"], [list(pair) for pair in texts]))
        if not stage and lines[_LINES:]:
            terminal.say(f"  … and {len(lines) - _LINES} more lines (--stage {shown} has all)")
