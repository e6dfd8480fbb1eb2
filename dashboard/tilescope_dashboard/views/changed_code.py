"""Findings and source of the state's case beside those of another run, kernel or implementation."""

from __future__ import annotations

from collections.abc import Sequence

from tilescope.models import baseline

from tilescope_dashboard.components import layout, version_panels
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import baselines, changed_findings, compared_case, versions
from tilescope_dashboard.topics.changed_findings import Side


class ChangedCode(layout.Part):
    """The source's difference where both runs kept it, and the findings that came or went."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.layout = state, version_panels.pane()

    def show(self, tokens: Sequence[str]) -> str:
        """Show the findings against the first of ``tokens`` that has the case. Returns a summary of the changes.

        An implementation without code of its own, such as PyTorch's, has none to compare.
        """
        loaded, case = self.state.loaded, self.state.standing
        self.layout.visible = False
        if loaded is None or case is None:
            return ""
        own = Side(loaded, self.state.kernel, case)
        for side, token in changed_findings.sides(own, tokens, run_cache.open_cached):
            if side.case in run_cache.cases_of(side.loaded, side.kernel):
                return self._compare(side, own, token)
        return ""

    def _compare(self, side: Side, own: Side, token: str) -> str:
        before, after = changed_findings.code(side, own)
        other = side.case.impl != own.case.impl
        found = [run_cache.findings(one.loaded, (one.kernel, *one.case)) for one in (side, own)]
        if not (before and after) and (other or not any(found)):
            return ""
        names = compared_case.declared(own.loaded, own.kernel)
        name = baselines.name_of(token, self.state.runs, names)
        same = baselines.name_of(own.loaded.run.id, self.state.runs, {})
        now = baseline.called(own.case.impl, names) if other else own.kernel if side.kernel != own.kernel else same
        files = None if not (before and after) else {} if before == after else versions.source(before, after, {})
        head = f"{name} → {now}", "the same source" if before == after else "source"
        self.layout.object = version_panels.panels(files, head, found, self.state.theme == "dark")
        self.layout.visible = True
        return changed_findings.count(changed_findings.changed(*found))
