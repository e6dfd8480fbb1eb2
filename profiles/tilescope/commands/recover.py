"""``tilescope recover``: finishes a half-written run with the cases it has."""

from __future__ import annotations

import argparse

from tilescope.commands import choices, running


def command(subparsers: choices.Subparsers) -> None:
    parser = subparsers.add_parser("recover", help="keep the finished cases of a run whose process died")
    parser.add_argument("name", metavar="RUN", help="its id or folder, as 'tilescope show' lists it, or latest")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Renames the run to its final name, and prints its folder and new notes."""
    from tilescope.runs import store  # noqa: PLC0415

    folder = running.found(arguments.name, store.find_half_written)
    if not folder.name.startswith(store.PARTIAL):
        raise store.StoreError(f"{folder.name} is not half-written: 'tilescope show {folder.name}' opens it")
    before = store.read_run(folder).notes
    final = store.recover(folder)
    for note in store.read_run(final).notes[len(before) :]:
        print(f"note: {note}")
    print(f"run: {final}")
    return 0
