"""``tilescope open``: makes runs of other tools' files."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilescope.commands import choices, running


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser(
        "open", help="make runs of other tools' files: ncu, torch.profiler, Proton, tritonparse, Inductor, Helion"
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="its format is found by its content")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="where runs go ($TILESCOPE_RUNS)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Makes a run of each file and prints it."""
    from tilescope.notebook.opened_run import open_file  # noqa: PLC0415

    for file in arguments.files:
        running.show(open_file(file, arguments.runs), False)
    return 0
