"""``tilescope resume``: resumes an interrupted run."""

from __future__ import annotations

import argparse

from tilescope.commands import choices, running
from tilescope.jobs import supervisor
from tilescope.runs import store


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="its id or folder, as 'tilescope show' lists it, or latest")
    parser.add_argument(
        "--interpreter-limit",
        type=choices.seconds,
        default=0.0,
        metavar="SECONDS",
        help="most work to interpret a case that a limit left out (ten times as much as that limit)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the outstanding cases and prints as ``profile`` does."""
    folder = running.found(arguments.name, store.find_interrupted)
    limit = arguments.interpreter_limit
    return running.show(*running.follow(lambda progress: supervisor.resume(folder, progress, limit)))
