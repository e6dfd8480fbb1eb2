"""``tilescope open``: makes runs of other tools' files."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilescope.commands import running
from tilescope.models import assumed_step, ranks, terminal
from tilescope.notebook import opening
from tilescope.notebook.opened_run import open_file


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="its format is found by its content; traces of several ranks, or their folder, show who waits for whom",
    )
    parser.add_argument(
        "--device", default="", metavar="GPU", help="predict the step of a trace for another GPU: h100, b200, a100, …"
    )
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="where runs go ($TILESCOPE_RUNS)")


def run(arguments: argparse.Namespace) -> int:
    """Prints the skew between files that are traces of ranks, makes a run of each file and prints it."""
    assumed = assumed_step.product(arguments.device) if arguments.device else None
    files = [one for given in arguments.files for one in (_inside(given) if given.is_dir() else [given])]
    skew = opening.skew_of(files) if len(files) > 1 else None
    notes = [". ".join(ranks.sentences(skew))] if skew else []
    if skew:
        terminal.say(*ranks.sentences(skew), ranks.table(skew))
    for file in files:
        running.show(open_file(file, arguments.runs, notes, assumed), False)
    return 0


def _inside(folder: Path) -> list[Path]:
    """The JSON files of a folder. Raises ValueError for a folder without any."""
    found = sorted(path for path in folder.iterdir() if path.name.endswith((".json", ".json.gz")))
    if not found:
        raise ValueError(f"{folder} has no trace (.json, .json.gz)")
    return found
