"""``tilescope list``: the kernels of the catalog."""

from __future__ import annotations

import argparse
import asyncio
import json

from tilescope.jobs import questions
from tilescope.models import terminal


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="catalog name or path/to/file.py:SPEC (all)")
    parser.add_argument("--json", action="store_true", help="all declarations of the kernels as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the catalog."""
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
