"""``tilescope recover``: finish a half-written run with the cases it has."""

from __future__ import annotations

import argparse

from tilescope.commands.common import Subparsers


def command(subparsers: Subparsers) -> None:
    """Adds the parser."""
    parser = subparsers.add_parser("recover", help="keep the finished cases of a run whose process died")
    parser.add_argument("name", metavar="RUN", help="the run's id or folder, as 'tilescope show' lists it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Renames the run to its final name and says where it is."""
    from tilescope import store  # noqa: PLC0415

    folder = store.find(arguments.name)
    if not folder.name.startswith(store.PARTIAL):
        raise store.StoreError(f"{folder.name} is not half-written: 'tilescope show {folder.name}' opens it")
    print(f"run: {store.recover(folder)}")
    return 0
