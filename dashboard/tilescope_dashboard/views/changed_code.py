"""Findings and source of the state's case beside those of another run, kernel or implementation."""

from __future__ import annotations

from collections.abc import Sequence

from tilescope_dashboard.components import cards, html_text, layout, version_panels
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import baselines, changed_findings, compared_case, versions
from tilescope_dashboard.topics.changed_findings import Side


class ChangedCode(layout.Part):
    """The findings that came or went, and the source's difference where both runs kept it."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.findings, self.source = state, cards.pane(), version_panels.pane()
        self.layout = layout.column(self.findings, self.source)

    def show(self, tokens: Sequence[str]) -> str:
        """Show the findings against the first of ``tokens`` that has the case. Returns a summary of the changes.

        An implementation without code of its own, such as PyTorch's, has none to compare.
        """
        loaded, case = self.state.loaded, self.state.standing
        self.source.visible = self.findings.visible = False
        if loaded is None or case is None:
            return ""
        own = Side(loaded, self.state.kernel, case)
        for side, token in changed_findings.sides(own, tokens, run_cache.open_cached):
            if side.case in run_cache.cases_of(side.loaded, side.kernel):
                return self._compare(side, own, token)
        return ""

    @property
    def shown(self) -> bool:
        """Whether there is anything to see."""
        return bool(self.source.visible or self.findings.visible)

    def _compare(self, side: Side, own: Side, token: str) -> str:
        (before, after), case = changed_findings.code(side, own), own.case
        if side.case.impl != case.impl and not (before and after):
            return ""
        rows = changed_findings.changed(
            *(run_cache.findings(one.loaded, (one.kernel, *one.case)) for one in (side, own))
        )
        name = baselines.name_of(token, self.state.runs, compared_case.declared(own.loaded, own.kernel))
        same = baselines.name_of(own.loaded.run.id, self.state.runs, {})
        now = case.impl if side.case.impl != case.impl else own.kernel if side.kernel != own.kernel else same
        head, dark = (f"{name} → {now}", "source"), self.state.theme == "dark"
        if before and before == after:
            self.source.object = html_text.paragraph("The source of both is the same.")
        else:
            files = versions.source(before, after, {}) if before and after else {}
            self.source.object = version_panels.source(files, head, dark) if files else ""
        where = f"{case.impl} on {case.workload}, {case.direction}"
        self.findings.object = html_text.subheading(*changed_findings.sentence(rows, where, name)) + cards.changed(
            rows.itertuples(index=False, name=None)
        )
        self.source.visible, self.findings.visible = bool(self.source.object), len(rows) > 0
        return changed_findings.count(rows)
