"""``tilescope claims``: published claims, traffic ratios, and what the recordings measured."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilescope.models import claims_text, json_documents, recorded_claims

#: The lines of a file between which ``--into`` writes.
BEGIN, END = "<!-- claims: written by 'tilescope claims --into docs/measured.md' -->", "<!-- end of claims -->"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    parser.add_argument("--into", type=Path, metavar="FILE.md", help="write it between the marks in this file")
    parser.add_argument("--keep", action="store_true", help="store the claims of the recordings beside the code")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table, or writes it into a file. Raises ValueError when the file has no marks."""
    if arguments.keep:
        print(f"computed again: {', '.join(recorded_claims.keep()) or 'none, all are up to date'}")
        return 0
    if arguments.json:
        print(json_documents.records(recorded_claims.every()[0]))
        return 0
    text = block()
    if arguments.into is None:
        print(text)
        return 0
    page = arguments.into.read_text(encoding="utf-8")
    if BEGIN not in page or END not in page:
        raise ValueError(f"{arguments.into} has no place for the claims: add the lines {BEGIN} and {END}")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    arguments.into.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


def block() -> str:
    """The table as Markdown, after a line on device, date and versions."""
    table, measured = recorded_claims.every()
    return f"Measured on {measured}.\n\n{claims_text.markdown(table)}"
