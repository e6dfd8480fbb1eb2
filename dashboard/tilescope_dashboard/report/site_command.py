"""``tilescope site``: runs as static pages, which need no server."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def command(subparsers: Any) -> None:
    parser = subparsers.add_parser("site", help="write runs as static pages: a table, and a page a kernel")
    parser.add_argument("output", type=Path, metavar="OUT", help="the folder of the pages; open its index.html")
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="FOLDER", help="folders of runs, such as nightly ones (the recordings)"
    )
    parser.add_argument("--kernel", action="append", default=[], metavar="KERNEL", help="only this kernel (all)")
    parser.add_argument("--title", default="Tilescope", help="the title of the table's page (Tilescope)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the pages. Raises ValueError where there is nothing to show, OSError for a folder that cannot be written."""
    from tilescope.runs import store  # noqa: PLC0415
    from tilescope.table.suggest import unknown  # noqa: PLC0415

    from tilescope_dashboard.report import site  # noqa: PLC0415

    for folder in arguments.runs:
        if not folder.is_dir():
            raise ValueError(f"no folder {folder}: name a folder that holds runs")
        if (folder / "run.json").is_file():
            raise ValueError(f"{folder} is one run: name the folder it is in, or write it with 'tilescope report'")
    listed = store.list_runs(arguments.runs or [store.recorded_dir()])
    for summary in listed:
        if summary.error:
            print(f"tilescope: left out: {summary.error}", file=sys.stderr)
    runs = [summary for summary in listed if not summary.error]
    if not runs:
        raise ValueError(
            f"no run in {', '.join(map(str, arguments.runs))}: 'tilescope profile --runs FOLDER' makes one"
        )
    known = dict.fromkeys(name for summary in runs for name in summary.kernels)
    for name in arguments.kernel:
        if name not in known:
            raise ValueError(unknown("kernel", name, known))
    chosen = list(dict.fromkeys(arguments.kernel)) or list(known)
    size = site.write(arguments.output, runs, chosen, arguments.title, lambda said: print(said, file=sys.stderr))
    print(f"{arguments.output / 'index.html'}: {size / 1e6:.2g} MB, opens offline")
    return 0
