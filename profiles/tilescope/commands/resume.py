"""``tilescope resume``: resumes an interrupted run."""

from __future__ import annotations

import argparse

from tilescope.commands import choices, running


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("resume", help="resume an interrupted run, or count what a limit left out")
    parser.add_argument("name", metavar="RUN", help="its id or folder, as 'tilescope show' lists it, or latest")
    parser.add_argument(
        "--interpreter-limit",
        type=choices.seconds,
        default=0.0,
        metavar="SECONDS",
        help="most work to interpret a case that a limit left out (ten times as much as that limit)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Runs the outstanding cases and prints as ``profile`` does."""
    from tilescope.jobs import supervisor  # noqa: PLC0415
    from tilescope.runs import store  # noqa: PLC0415

    folder = running.found(arguments.name, store.find_interrupted)
    limit = arguments.interpreter_limit
    return running.show(*running.follow(lambda progress: supervisor.resume(folder, progress, limit)))
