"""``tilescope model``: where a step of a model spends its time, how far each kernel is from its roof, and what to do next."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tilescope.commands import choices

#: Seconds that the threads and children of a script have to end after the command.
_LEFT_BEHIND = 30.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "script", metavar="SCRIPT", help="a script that trains or calls a model, or a run of one (latest)"
    )
    parser.add_argument(
        "--problems",
        type=Path,
        metavar="FILE",
        help="write the step's distinct problems, as 'tilescope tune --problems' takes them",
    )
    parser.add_argument(
        "--try",
        dest="tries",
        type=int,
        action="append",
        default=[],
        metavar="N",
        help="apply suggestion N without an edit, check its results, and say what it won; may be repeated",
    )
    parser.add_argument("--title", default="", help="the run's title")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="where runs go ($TILESCOPE_RUNS)")


def run(arguments: argparse.Namespace) -> int:
    """Measures the script's step, or opens a run, and prints it."""
    from tilescope.captures import processes  # noqa: PLC0415
    from tilescope.notebook import modelling  # noqa: PLC0415

    if choices.is_script(arguments.script):
        of_script = choices.own_arguments(arguments.script, arguments.of_script)
        found = modelling.profile_script(
            arguments.script, of_script, title=arguments.title, runs_dir=arguments.runs, tries=arguments.tries
        )
    elif arguments.tries:
        raise ValueError("--try measures steps: name the script")
    else:
        found = modelling.open_model(arguments.script)
    print(found)
    if arguments.problems:
        found.write_problems(arguments.problems)
    if choices.is_script(arguments.script):
        # The script was ended in the middle of a step: nothing tells its threads and children to end.
        sys.stdout.flush()
        processes.end_within(_LEFT_BEHIND)
    return 0
