"""``tilescope list``: the kernels of the catalog."""

from __future__ import annotations

import argparse
import asyncio
import json

from tilescope.commands.choices import Subparsers


def command(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("list", help="list the kernels, their implementations and workloads")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="catalog name or path/to/file.py:SPEC (all)")
    parser.add_argument("--json", action="store_true", help="all declarations of the kernels as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Prints the catalog."""
    from tilescope.jobs import questions  # noqa: PLC0415
    from tilescope.models import terminal  # noqa: PLC0415

    entries = asyncio.run(questions.describe(arguments.kernels))
    if arguments.json:
        print(json.dumps(entries, indent=1))
        return 0
    headings = ["family", "kernel", "pass", "implementations", "workloads", "summary"]
    rows = [
        [
            entry["family"],
            entry["kernel"],
            ", ".join(entry["passes"]),
            ", ".join(name if of["available"] else f"({name})" for name, of in entry["implementations"].items()),
            ", ".join(w["label"] or w["id"] for w in entry["workloads"]),
            entry["summary"],
        ]
        for entry in entries
    ]
    print(terminal.render(headings, rows))
    return 0
