"""``tilescope profile``: run cases through collectors, print what they found, name the run's folder."""

from __future__ import annotations

import argparse

from tilescope.commands import choices, running


def command(subparsers: choices.Subparsers) -> None:
    """Adds the parser."""
    parser = subparsers.add_parser("profile", help="run kernels through the collectors and record a run")
    parser.add_argument("kernels", nargs="+", metavar="KERNEL", help="catalog name or path/to/file.py:SPEC")
    choices.add_choices(parser)
    parser.add_argument("--title", default="", help="what to call the run")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Profiles and prints one line a case."""
    from tilescope.jobs.plan import Request, plan  # noqa: PLC0415

    request = Request(
        kernels=tuple(dict.fromkeys(arguments.kernels)),
        collectors=arguments.collect or ("auto",),
        title=arguments.title,
        **choices.chosen(arguments),
    )
    return running.show(*running.run(lambda: plan(request, arguments.runs)))
