"""``tilescope report``: a run, or several compared with each other, as one file; and ``tilescope site``: runs as static pages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescope.models.compare import Side

#: What a file can be, by its ending.
FORMATS = {".html": "html", ".md": "md", ".csv": "csv", ".parquet": "parquet"}
#: Formats that go to standard output where no file is named.
_TEXT = ("md", "csv")


def command(subparsers: Any) -> None:
    """Adds ``tilescope report`` and ``tilescope site`` (an entry point of the group ``tilescope.commands``)."""
    parser = subparsers.add_parser("report", help="write runs as one file: HTML, Markdown, CSV or Parquet")
    parser.add_argument(
        "names",
        nargs="+",
        metavar="RUN[:IMPL]",
        help="an id, its start, a folder, or latest; the first is the baseline",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where to (md and csv: standard output; else tilescope-RUN)"
    )
    parser.add_argument("--kernel", default="", metavar="KERNEL", help="only this kernel (all)")
    parser.add_argument("--format", choices=sorted(FORMATS.values()), help="what to write (as the file's ending says)")
    parser.set_defaults(run=write_report)
    parser = subparsers.add_parser("site", help="write runs as static pages: a table, and a page a kernel")
    parser.add_argument("output", type=Path, metavar="OUT", help="the folder of the pages; open its index.html")
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="FOLDER", help="folders of runs, such as nightly ones (the recordings)"
    )
    parser.add_argument("--kernel", action="append", default=[], metavar="KERNEL", help="only this kernel (all)")
    parser.add_argument("--title", default="Tilescope", help="the title of the table's page (Tilescope)")
    parser.set_defaults(run=write_site)


def write_report(arguments: argparse.Namespace) -> int:
    """Writes the file. Raises StoreError for a run that cannot be read, ValueError for what does not fit together,
    OSError for a file that cannot be written."""
    from tilescope.commands import running  # noqa: PLC0415
    from tilescope.models import compare  # noqa: PLC0415
    from tilescope.runs import store  # noqa: PLC0415

    kind = _format(arguments.format, arguments.output)
    if arguments.output:
        _check(arguments.output)
    sides = [compare.side(name, running.found, store.open_run) for name in arguments.names]
    _distinct(sides)
    file = arguments.output or (None if kind in _TEXT else Path(f"tilescope-{sides[0].loaded.run.id}.{kind}"))
    written = render(sides, kind, arguments.kernel)
    if file is None:
        sys.stdout.write(written.decode())
        return 0
    file.write_bytes(written)
    print(f"{file}: {len(written) / 1e6:.2g} MB" + (", opens offline" if kind == "html" else ""))
    return 0


def render(sides: Sequence[Side], kind: str, kernel: str = "") -> bytes:
    """The report of the sides in one of FORMATS. Raises ValueError for a kernel that none of them has."""
    from tilescope_dashboard.data import exports  # noqa: PLC0415
    from tilescope_dashboard.report import build, html, markdown  # noqa: PLC0415

    if kind == "csv":
        return exports.as_csv(build.table(sides, kernel)).getvalue()
    if kind == "parquet":
        return exports.as_parquet(build.table(sides, kernel)).getvalue()
    report = build.build(sides, kernel)
    return (html.html(report) if kind == "html" else markdown.markdown(report)).encode()


def _format(chosen: str | None, file: Path | None) -> str:
    """The format that is asked for, by name or by the file's ending; HTML where neither says."""
    said = FORMATS.get(file.suffix.lower()) if file else None
    if file and chosen is None and said is None:
        raise ValueError(f"{file}: its ending names no format; give --format {', '.join(FORMATS.values())}")
    if chosen and said and chosen != said:
        raise ValueError(f"--format {chosen} does not fit {file}, which would be {said}: leave one of them out")
    return chosen or said or "html"


def _check(file: Path) -> None:
    """Before the work is done: whether the file could be written."""
    if file.is_dir():
        raise ValueError(f"{file} is a folder: name a file in it")
    if not file.parent.is_dir():
        raise ValueError(f"cannot write {file}: there is no folder {file.parent}")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f"cannot write {file}: permission denied")


def _distinct(sides: Sequence[Side]) -> None:
    names = [side.name for side in sides]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"{twice} is named twice: a report holds each run once")


def write_site(arguments: argparse.Namespace) -> int:
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
