"""Findings and source of the state's case beside those of another run or kernel."""

from __future__ import annotations

from collections.abc import Sequence

from tilescope_dashboard.components import cards, html_text, layout, version_panels
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import changed_findings, versions
from tilescope_dashboard.topics import compare as topic


class ChangedCode(layout.Part):
    """The findings that came or went, and the source's difference where both runs kept it."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.findings, self.source = state, cards.pane(), version_panels.pane()
        self.layout = layout.column(self.findings, self.source)

    def show(self, tokens: Sequence[str]) -> str:
        """Show the findings against the first of ``tokens`` that is a run with the case. Returns a summary of the changes."""
        loaded, case, kernel = self.state.loaded, self.state.standing, self.state.kernel
        sides = changed_findings.sides(loaded, kernel, tokens, run_cache.open_cached) if loaded and case else ()
        found = next(((run, of) for run, of in sides if case in run_cache.cases_of(run, of)), None)
        self.source.visible = self.findings.visible = found is not None
        if loaded is None or case is None or found is None:
            return ""
        other, of = found
        token = f"{other.run.id}::{of}" if of != kernel else other.run.id
        rows = changed_findings.changed(
            *(run_cache.findings(run, (name, *case)) for run, name in (found, (loaded, kernel)))
        )
        where, name = f"{case.impl} on {case.workload}, {case.direction}", topic.name_of(token, self.state.runs, {})
        said = changed_findings.sentence(rows, where, name)
        before, after = other.sources.get(of, {}), loaded.sources.get(kernel, {})
        files = versions.source(before, after, {}) if before and after and before != after else {}
        head = f"{name} → {topic.name_of(loaded.run.id, self.state.runs, {})}" if of == kernel else f"{name} → {kernel}"
        self.source.object = version_panels.source(files, (head, "source"), self.state.theme == "dark") if files else ""
        self.findings.object = html_text.subheading(*said) + cards.changed(rows.itertuples(index=False, name=None))
        self.findings.visible = len(rows) > 0
        return changed_findings.count(rows)
