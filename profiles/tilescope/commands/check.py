"""``tilescope check``: compares implementations with the reference, on the GPU or, without one, in the interpreter."""

from __future__ import annotations

import argparse
import sys

import numpy as np

from tilescope.commands import choices, running
from tilescope.jobs.plan import Request, plan
from tilescope.models import summary, terminal, text_table


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="catalog name or path/to/file.py:SPEC (all)")
    choices.add_choices(parser, collect=False)


def run(arguments: argparse.Namespace) -> int:
    """Checks the cases, prints their errors with the tolerances, and skipped checks; returns 1 when an error is too large."""
    given = choices.settings(arguments)
    if "interpreter_limit" in given:
        given["check_limit"] = given["interpreter_limit"]
    request = Request(
        kernels=tuple(dict.fromkeys(arguments.kernels)),
        implementations=arguments.impl or (["triton"] if not arguments.kernels else []),
        workloads=arguments.workload,
        directions=arguments.directions,
        collectors=("check",),
        target=arguments.target,
        settings={**given, "measure_ceilings": False},
        title="check",
    )
    loaded, interrupted = running.run(lambda: plan(request, arguments.runs))
    found = summary.of_run(loaded, loaded.table)
    skipped = text_table.unchecked(found, loaded.run)
    listed = skipped | found["relative_error"].notna()
    found, skipped = found[listed], skipped[listed]
    # Without a tolerance nothing shows that a result is right.
    wrong = ((found["fault"] != "") | found["tolerance"].isna()) & ~skipped
    verdicts = np.select([skipped, wrong], [text_table.UNCHECKED, "wrong"], "ok")
    headings, rows, keys = text_table.cells(text_table.marked(found, loaded.run))
    # The verdict follows the columns that name the case, which are always shown.
    headings.insert(keys, "verdict")
    for row, verdict in zip(rows, verdicts, strict=True):
        row.insert(keys, str(verdict))
    print(terminal.render(headings, rows, keys + 1))
    terminal.say(*running.warnings(loaded))
    status = running.report(loaded, interrupted, loaded.run.failures)
    if wrong.any():
        print(f"tilescope: {wrong.sum()} of {(~skipped).sum()} cases are wrong", file=sys.stderr)
        return status or 1
    return status
