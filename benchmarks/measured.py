"""Writes the tables of docs/measured.md from the CSV files in benchmarks/results: ``python -m benchmarks.measured``.

A file's first lines say what it holds: ``# title``, ``# text``, ``# where``, ``# when`` and ``# versions``.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "measured.md", ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"<!-- results: (\w+) -->\n.*?<!-- end of results -->", re.DOTALL)


def table(name: str) -> str:
    """A file of results as a heading, a line of provenance and a Markdown table. Raises KeyError where the provenance is incomplete."""
    lines = (RESULTS / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    about = dict(line[2:].split(": ", 1) for line in lines if line.startswith("# "))
    head, *rows = csv.reader(line for line in lines if not line.startswith("# "))
    numeric = [all(re.fullmatch(r"[\d.,]*", row[place]) for row in rows) for place in range(len(head))]
    body = [head, ["---:" if right else "---" for right in numeric], *rows]
    return "\n".join(
        [
            f"## {about['title']}",
            "",
            about["text"],
            "",
            f"Measured on {about['where']}, {about['when']}, {about['versions']}.",
            "",
            *(f"| {' | '.join(row)} |" for row in body),
        ]
    )


def page(text: str) -> str:
    """The page with each block of results written anew."""
    return BLOCK.sub(lambda block: f"<!-- results: {block[1]} -->\n{table(block[1])}\n<!-- end of results -->", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
