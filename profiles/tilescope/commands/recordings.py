"""``tilescope recordings``: the maintainer's commands on runs that are kept beside the code."""

from __future__ import annotations

import importlib

from tilescope.commands import RECORDINGS, choices


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("recordings", help="record, publish, claims, recover: keep runs beside the code")
    below = parser.add_subparsers(required=True, metavar="COMMAND", dest="recordings_command")
    for name in RECORDINGS:
        importlib.import_module(f"tilescope.commands.{name}").command(below)
