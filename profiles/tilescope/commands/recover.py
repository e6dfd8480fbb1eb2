"""``tilescope recover``: finishes a half-written run with the cases it has."""

from __future__ import annotations

import argparse

from tilescope.commands import running
from tilescope.runs import store


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="its id or folder, as 'tilescope show' lists it, or latest")


def run(arguments: argparse.Namespace) -> int:
    """Renames the run to its final name, and prints its folder and new notes."""
    folder = running.found(arguments.name, store.find_half_written)
    if not folder.name.startswith(store.PARTIAL):
        raise store.StoreError(f"{folder.name} is not half-written: 'tilescope show {folder.name}' opens it")
    before = store.read_run(folder).notes
    final = store.recover(folder)
    for note in store.read_run(final).notes[len(before) :]:
        print(f"note: {note}")
    print(f"run: {final}")
    return 0
