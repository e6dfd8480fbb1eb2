"""A gate's findings as text for a terminal and as Markdown for a job's summary. Pure: gate -> text."""

from __future__ import annotations

import re
from collections import Counter

from tilescope.files.bounded_reading import one_line, shortened
from tilescope.models import function_names, terminal
from tilescope.models.documents import GateCheck as Check
from tilescope.models.gate import ABSENT, FAIL, PASS, UNDECIDED, Gate
from tilescope.table import units
from tilescope.table.metrics import METRICS

#: Rows of a table in Markdown; GitHub shows no summary above a megabyte.
_MOST = 100
#: The most characters of a cell.
_LONGEST = 300
#: Names of checked quantities.
_WHAT = {
    "case": "the case", "result": "the result", "bytes": "HBM bytes", "gpu_time": "GPU time", "graph_time": "graph replay",
    "interval": "interval", "registers": "registers", "shared_memory": "shared memory", "spill_bytes": "spills",
    "theoretical_occupancy": "occupancy",
}  # fmt: skip
_HEADLINES = {FAIL: "failed", UNDECIDED: "passed as far as it could be decided", ABSENT: "passed as far as it could be compared",
              PASS: "passed"}  # fmt: skip
_HEADINGS = ["", "case", "what", "baseline", "candidate", "source", "why"]


def headline(gate: Gate) -> str:
    """``failed: 2 of 96 checks fail, 3 undecided (20261120-… → 20261121-…)``."""
    counts = Counter(check.verdict for check in gate.checks)
    parts = [f"{counts[FAIL]} of {len(gate.checks)} checks fail" if counts[FAIL] else f"{counts[PASS]} checks pass"]
    parts += [f"{counts[verdict]} {verdict}" for verdict in (UNDECIDED, ABSENT) if counts[verdict]]
    return f"{_HEADLINES[gate.verdict]}: {', '.join(parts)} ({' → '.join(gate.names)})"


def show(gate: Gate) -> None:
    """Prints the headline, the notes, checks that do not pass, and passes whose value changed."""
    terminal.say(f"gate {headline(gate)}", *gate.notes)
    if rows := [*_not_passed(gate), *_changed(gate)]:
        print(terminal.render(_HEADINGS, [[check.verdict, *_cells(check)] for check in rows]))


def markdown(gate: Gate) -> str:
    """The same for GitHub: a heading, a table of checks that do not pass, and the changed passes folded away."""
    mark = {FAIL: "❌", PASS: "✅"}.get(gate.verdict, "⚠️")
    parts = [f"## {mark} Kernels: gate {_escaped(headline(gate))}"]
    run = gate.candidate.run
    how = "measured" if run.device.measured else "no such GPU took part"
    target = f" ({_escaped(run.device.target)})" if run.device.target else ""
    parts.append(f"{_escaped(run.device.where)}{target}, {how}.")
    if gate.notes:
        parts.append("\n".join(f"- {_escaped(line)}" for line in gate.notes))
    if told := _not_passed(gate):
        parts.append(_table(told))
    if changed := _changed(gate):
        parts.append(
            f"<details><summary>{len(changed)} changes within the limits</summary>\n\n{_table(changed)}\n\n</details>"
        )
    return "\n\n".join(parts) + "\n"


def _not_passed(gate: Gate) -> list[Check]:
    return [check for verdict in (FAIL, UNDECIDED, ABSENT) for check in gate.of(verdict)]


def _changed(gate: Gate) -> list[Check]:
    found = [
        check
        for check in gate.of(PASS)
        if check.change and (check.low is None or check.high is None or not check.low <= 0 <= check.high)
    ]
    return sorted(found, key=lambda check: -(check.change or 0.0))


def _table(checks: list[Check]) -> str:
    rows = [_HEADINGS, ["---"] * len(_HEADINGS), *([check.verdict, *_cells(check)] for check in checks[:_MOST])]
    lines = [
        "| " + " | ".join(_escaped(cell) if at != 1 else cell for cell in row) + " |" for at, row in enumerate(rows)
    ]
    more = f"\n\n… and {len(checks) - _MOST} more" if len(checks) > _MOST else ""
    return "\n".join(lines) + more


def _cells(check: Check) -> list[str]:
    what = _WHAT.get(check.what, check.what) + (f" of {function_names.said(check.function)}" if check.function else "")
    case = function_names.said(check.kernel) + check.case.removeprefix(check.kernel)
    return [case, what, _value(check, check.baseline), _value(check, check.candidate), check.source, check.said]


def _value(check: Check, value: float | None) -> str:
    if value is None:
        return "–"
    unit = METRICS[check.what].unit if check.what in METRICS else "byte"
    return units.text(value, unit, 4 if unit == "second" else 3)


def _escaped(cell: str) -> str:
    """Text with Markdown escaped: names come from runs, which are not trusted."""
    return re.sub(r"[\\`*_\[\]<>|]", r"\\\g<0>", shortened(one_line(cell, 10_000), _LONGEST))
