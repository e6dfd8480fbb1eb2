"""``tilescope recordings``: the maintainer's commands on runs that are kept beside the code."""

from __future__ import annotations

import argparse

from tilescope import commands


def add(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(required=True, metavar="COMMAND", dest="recordings_command")
    for name, (module, said) in commands.RECORDINGS.items():
        commands.fill(below.add_parser(name, help=said, description=said), module)
