"""Findings of the chosen case beside those of the same case in a baseline run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import panel as pn
import param
from tilescope.runs import store

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import changed_findings as topic
from tilescope_dashboard.topics import compare


class ChangedFindings(pn.viewable.Viewer):
    """A sentence and a list; hidden where no baseline is another run with the case."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._said = cards.pane()
        self._layout = pn.Column(self._said, sizing_mode="stretch_width", margin=0, visible=False)

    @property
    def shown(self) -> bool:
        """Whether it is visible."""
        return self._layout.visible

    def show(self, tokens: Sequence[str]) -> str:
        """Show the findings against the first of ``tokens`` that is a run with the case. Returns a summary of the changes."""
        state, case = self.state, self.state.standing
        run, rows = self._against(tokens)
        self._layout.visible = rows is not None and len(rows) > 0
        if case is None or rows is None:
            return ""
        where = f"{case.impl} on {case.workload}, {case.direction}"
        head = html_text.subheading(*topic.sentence(rows, where, compare.name_of(run, state.runs)))
        self._said.object = head + cards.changed(rows.itertuples(index=False, name=None))
        return topic.count(rows)

    def _against(self, tokens: Sequence[str]) -> tuple[str, pd.DataFrame | None]:
        """The baseline's token and the rows against it; no rows if no baseline has the case."""
        loaded, case = self.state.loaded, self.state.standing
        if loaded is None or case is None:
            return "", None
        of_kernel = (self.state.kernel, *case)
        for token in tokens:
            run, _, impl = token.partition(":")
            if impl or run == loaded.run.id:
                continue
            try:
                other = run_cache.open_cached(store.find(run))
            except (store.StoreError, OSError):
                continue  # a notice already says that it cannot be opened
            if case in run_cache.cases_of(other, self.state.kernel):
                found = [run_cache.findings(side, of_kernel) for side in (other, loaded)]
                return token, topic.changed(*found)
        return "", None

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
