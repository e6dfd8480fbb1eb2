"""``tilescope gate``: passes or fails a change by its effect on times, bytes and resources of launches."""

from __future__ import annotations

import argparse
import math
import os
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tilescope.commands import choices, running
from tilescope.files.bounded_reading import one_line, shortened
from tilescope.jobs import revisions
from tilescope.models import function_names, gate, json_documents, terminal
from tilescope.models.documents import GateCheck as Check
from tilescope.models.gate import ABSENT, FAIL, PASS, UNDECIDED, Gate
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table import units
from tilescope.table.case import Case
from tilescope.table.metrics import METRICS

#: The variable with the file of a GitHub job's summary.
_SUMMARY = "GITHUB_STEP_SUMMARY"
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


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares every case of BASELINE with the same case of CANDIDATE. Status 0: passed; 1: failed; 2: nothing to "
        "compare. Checks that noise leaves undecided, or that one side lacks, are listed and fail only with --strict."
    )
    parser.add_argument(
        "baseline",
        metavar="BASELINE",
        help="a run (id, its start, or folder), a git revision, or . for the working tree",
    )
    parser.add_argument("candidate", metavar="CANDIDATE", help="the run or revision to compare with it")
    listed: dict[str, Any] = {"type": choices.names, "action": "extend", "default": []}
    parser.add_argument("--kernel", metavar="NAME,…", help="only these kernels (all); a revision needs them", **listed)
    parser.add_argument("--impl", metavar="NAME,…", help="only these implementations (all)", **listed)
    for name, default, what in (
        ("slowdown", "3%", "growth of the GPU time beyond its noise"),
        ("bytes", "2%", "growth of HBM bytes, counted or predicted"),
        ("registers", "10%", "growth of registers a thread"),
        ("shared-memory", "10%", "growth of shared memory a block"),
        ("occupancy-loss", "0%", "loss of theoretical occupancy, in points,"),
    ):
        help_ = f"{what} that passes, or off ({default})"
        parser.add_argument(
            f"--max-{name}", type=share, default=share(default), metavar="SHARE", help=help_.replace("%", "%%")
        )
    parser.add_argument(
        "--max-spills",
        type=_count,
        default=0.0,
        metavar="BYTES",
        help="growth of spills a thread that passes, or off (0)",
    )
    of_revision = "for a git revision: "
    parser.add_argument("--collect", default="compiler", metavar="NAME,…", help=of_revision + "collectors (compiler)")
    parser.add_argument("--workload", default="", metavar="ID,…", help=of_revision + "workloads (all declared)")
    parser.add_argument("--target", default="", metavar="sm_90", help=of_revision + "architecture to compile for")
    parser.add_argument("--allow-missing", action="store_true", help="pass cases that vanished or failed")
    parser.add_argument("--strict", action="store_true", help="fail on undecided checks and on those not compared")
    parser.add_argument("--json", action="store_true", help="every check as JSON (schema: gate)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help=f"write a summary there (as well as ${_SUMMARY})")


def run(arguments: argparse.Namespace) -> int:
    """Prints the checks that do not pass, writes the summaries, and returns 1 where the gate fails."""
    limits = gate.Limits(
        arguments.max_slowdown, arguments.max_bytes, arguments.max_registers, arguments.max_shared_memory,
        arguments.max_spills, arguments.max_occupancy_loss,
    )  # fmt: skip
    folders = [_found(name) for name in (arguments.baseline, arguments.candidate)]
    with tempfile.TemporaryDirectory(prefix="tilescope-gate-") as made:
        pairs = zip((arguments.baseline, arguments.candidate), folders, strict=True)
        baseline, candidate = (
            store.open_run(folder) if folder else _profiled(name, arguments, Path(made)) for name, folder in pairs
        )
        found = gate.gate(
            baseline,
            candidate,
            limits,
            kernels=[Case(kernel, "", "", "").name for kernel in arguments.kernel],
            impls=arguments.impl,
            allow_missing=arguments.allow_missing,
            names=(_name(arguments.baseline, folders[0]), _name(arguments.candidate, folders[1])),
        )
    if arguments.json:
        print(json_documents.text(json_documents.gate(found)))
    else:
        show(found)
    _summarise(markdown(found), arguments.markdown)
    return int(found.verdict != gate.PASS if arguments.strict else found.verdict == gate.FAIL)


def share(text: str) -> float | None:
    """``3%`` or ``0.03`` as 0.03, ``off`` as None. Raises ArgumentTypeError for anything else."""
    if text == "off":
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: write 3%, 0.03 or off")
    return value


def _count(text: str) -> float | None:
    if text == "off":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes: write 16, or off")
    return float(text)


def _found(name: str) -> Path | None:
    """The folder of the run of that name; None for a git revision. Raises ValueError where it is neither."""
    try:
        folder = running.found(name)
        return None if name == revisions.WORKING_TREE and not (folder / "run.json").is_file() else folder
    except store.StoreError as error:
        if not revisions.is_revision(name):
            raise ValueError(f"{error}; nor is it a git revision here") from error
        return None


def _profiled(name: str, arguments: argparse.Namespace, runs: Path) -> LoadedRun:
    options = {name: getattr(arguments, name) for name in ("collect", "workload", "target")}
    return revisions.profile(name, arguments.kernel, runs, {**options, "impl": ",".join(arguments.impl)})


def _name(said: str, folder: Path | None) -> str:
    return folder.name if folder else "the working tree" if said == "." else said


def _summarise(markdown: str, file: Path | None) -> None:
    """Writes the summary to ``file``, and appends it to the file that GitHub names."""
    if file:
        file.write_text(markdown, encoding="utf-8")
    if named := os.environ.get(_SUMMARY):
        with Path(named).open("a", encoding="utf-8") as summary:
            summary.write(markdown)


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
