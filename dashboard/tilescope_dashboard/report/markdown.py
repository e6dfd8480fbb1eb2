"""A report as Markdown for a pull request, in GitHub's dialect and within its limit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pandas as pd
from tilescope.files.bounded_reading import printable
from tilescope.models.advice import NVIDIA, Finding
from tilescope.table.case import readable

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.units import ABSENT, short
from tilescope_dashboard.report.content import Comparison, Listing, Report, RunPart, Table
from tilescope_dashboard.report.kernels import top
from tilescope_dashboard.report.runs import ROOFS
from tilescope_dashboard.report.source_lines import hottest_lines
from tilescope_dashboard.topics import overview
from tilescope_dashboard.topics.compare import CHANGES

#: GitHub refuses a comment of more characters; bytes are the stricter count.
LIMIT = 65_536
_FINDINGS = 5
#: Lines of source a launch: the HTML report has them all.
_HOT = 8
#: Characters of a line and of a cell. They bound the text where every list is down to its first item.
_LINE, _CELL = 600, 100

Item = TypeVar("Item")


def markdown(report: Report) -> str:
    """The report with as many items in each list as fit. A line names the number of items left out."""
    most = 256
    while True:
        text = "\n\n".join(_Writer(most).report(report)) + "\n"
        if most == 1 or len(text.encode()) <= LIMIT:
            return text
        most //= 2


def escape(text: str, longest: int = _LINE) -> str:
    """The text in a line of Markdown or a cell, without markup, formulas, or mentions of users and issues.

    It is cut in the middle to ``longest`` characters.
    """
    line = short(printable(" ".join(str(text).split())), longest)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"([\\`*\[\]{}|~$])|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])", r"\\\g<0>", line)
    # A joiner of no width: GitHub looks for mentions after it has read escapes.
    return re.sub(r"([@#])(?=\w)", "\\1\u200d", line)


class _Writer:
    """Writes a report with at most ``most`` items in each list."""

    def __init__(self, most: int) -> None:
        self.most = most

    def report(self, report: Report) -> Iterator[str]:
        yield f"## Tilescope: {escape(report.title)}"
        for comparison in self._some(report.comparisons):
            yield from self._comparison(comparison)
        yield from self._rest(report.comparisons, "comparisons")
        for part in self._some(report.runs):
            yield from self._run(part)
        yield from self._rest(report.runs, "runs")

    def _comparison(self, comparison: Comparison) -> Iterator[str]:
        yield f"### {escape(comparison.candidate)} against {escape(comparison.baseline)}"
        yield escape(comparison.verdict)
        for line in self._some(comparison.obstacles):
            yield f"> **Warning:** {escape(line)}"
        if comparison.changes:
            yield self._listed([f"changed: {line}" for line in comparison.changes])
        if comparison.part and comparison.part.table:
            rows = comparison.part.table.rows
            told = rows["verdict"].isin(["wrong", "slower", "faster"])
            if told.any():
                yield "Wrong and slowest candidates first, with the 95 % interval of the speedup."
                yield self._table(rows[told], CHANGES)
            if not told.all():
                others = f"Neither slower nor faster within the noise: {(~told).sum()}"
                yield _folded(others, self._table(rows[~told], CHANGES))

    def _run(self, part: RunPart) -> Iterator[str]:
        run = part.run
        kind = "measured on" if run.device.measured else "predicted for"
        yield f"### {escape(run.title or run.id)}: {kind} {escape(run.device.name)}"
        yield f"{escape(run.started[:16].replace('T', ' '))} UTC, run {escape(run.id)}"
        for line in part.warnings:
            yield f"> **Warning:** {escape(line)}"
        for piece in (part.overview, *part.model) if part.model else ():
            yield f"#### {escape(piece.title)}"
            yield from filter(None, [escape(piece.text)])
            if piece.points:
                yield "\n".join(f"{rank}. {escape(line)}" for rank, line in enumerate(piece.points, 1))
            if piece.table:
                yield self._table(piece.table.rows, piece.table.columns)
        for kernel in self._some(part.kernels):
            yield f"#### {escape(kernel.name)}: {escape(kernel.reached.title)}"
            yield from filter(None, [escape(kernel.reached.text)])
            yield self._table(kernel.largest.rows, (*overview.TIMES, *overview.TRAFFIC))
            found = top(kernel.advice, min(self.most, _FINDINGS))
            if found:
                yield "\n".join(f"{rank}. {_finding(finding)}" for rank, finding in enumerate(found, 1))
            for piece in kernel.parts:
                if piece.listing:
                    yield _folded(piece.title, "\n\n".join([escape(piece.text), self._lines(piece.listing)]))
        yield from self._rest(part.kernels, "kernels")
        cases = part.overview.table
        if cases and len(cases.rows) > sum(len(kernel.largest.rows) for kernel in part.kernels):
            yield _folded(f"All {len(cases.rows)} cases", self._table(cases.rows, (*overview.TIMES, *overview.TRAFFIC)))
        yield _folded("Environment", self._environment(part))

    def _lines(self, shown: Listing) -> str:
        """The lines with most of the first column, most first."""
        rows, columns = hottest_lines(shown, min(self.most, _HOT))
        return self._table(rows, columns)

    def _environment(self, part: RunPart) -> str:
        lines = [f"{name}: {value}" for name, value in part.environment]
        lines += [f"{f.collector} {readable(f.case)} failed: {f.message}" for f in part.run.failures]
        return "\n\n".join([self._listed([*lines, *part.run.notes]), self._table(part.roofs.rows, ROOFS)])

    def _table(self, rows: pd.DataFrame, shown: tuple[Column, ...]) -> str:
        """The columns of ``shown`` that hold anything."""
        if rows.empty:
            return "No case."
        whole = Table(rows, shown).cells(self.most)
        kept = [place for place in range(len(shown)) if any(row[place] != ABSENT for row in whole)]
        lines = [
            [escape(shown[place].title) for place in kept],
            ["--:" if shown[place].number else "---" for place in kept],
            *([escape(row[place], _CELL) for place in kept] for row in whole),
        ]
        text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return "\n\n".join([text, *self._rest(range(len(rows)), "rows")])

    def _listed(self, lines: Sequence[str]) -> str:
        return "\n".join([*(f"- {escape(line)}" for line in self._some(lines)), *self._rest(lines, "lines")])

    def _some(self, items: Sequence[Item]) -> Sequence[Item]:
        return items[: self.most]

    def _rest(self, items: Sequence[object], what: str) -> Iterator[str]:
        if len(items) > self.most:
            yield f"_{len(items) - self.most} more {what} are in the HTML report._"


def _finding(finding: Finding) -> str:
    win = "no estimate"
    if finding.bound:
        clock = "interval" if finding.bound.clock == "interval" else "GPU time"
        win = f"{finding.bound.text} in {clock}"
    kind = "NVIDIA's rule" if finding.origin == NVIDIA else "measured" if finding.measured else "predicted"
    where = f"{finding.direction}, {finding.workload}" + (
        "" if finding.of_results or finding.warning else f"; {win}, {kind}"
    )
    values = "; ".join(f"{value.label} {value.text} ({value.source})" for value in finding.evidence)
    lines = [
        f"**{escape(finding.title)}** ({escape(where)})",
        escape(values or finding.explanation),
        escape(finding.remedy),
    ]
    return "<br>".join(filter(None, lines))


def _folded(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n\n{text}\n\n</details>"
