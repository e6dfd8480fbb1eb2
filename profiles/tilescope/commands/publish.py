"""``tilescope publish``: copies a run's table and description into a folder under version control."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from tilescope.commands import choices, running
from tilescope.runs import publish, store


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="RUN", help="the run's id, the start of one, its folder, or latest")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="only these kernels (all)")
    parser.add_argument("--workload", type=choices.names, default=(), metavar="ID,…", help="only these workloads (all)")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="the folder (the recordings of this checkout)")
    parser.add_argument("--title", default="", help="its title (the run's)")
    parser.add_argument("--replace", action="store_true", help="remove the runs of the same title in that folder")


def run(arguments: argparse.Namespace) -> int:
    """Publishes the run and prints its folder."""
    folder = arguments.into or store.recorded_dir()
    loaded = store.open_run(running.found(arguments.name))
    published = publish.publish(loaded, folder, arguments.kernels, arguments.title, arguments.workload)
    print(f"run: {published}")
    for older in publish.replaced_by(published) if arguments.replace else []:
        shutil.rmtree(older)
        print(f"replaced: {older}")
    return 0
