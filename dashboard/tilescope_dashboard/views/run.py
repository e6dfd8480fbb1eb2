"""The dialog on the open run: a report of it, with what it is compared with."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import panel as pn
from tilescope.models import compare
from tilescope.models.compare import Side
from tilescope.runs import store

from tilescope_dashboard import report
from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.download import link
from tilescope_dashboard.components.panel_dialog import PanelDialog
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.run_cache import open_cached
from tilescope_dashboard.data.url_state import run_folder
from tilescope_dashboard.session.state import RUN, State

_FORMATS = {"HTML": "html", "Markdown": "md", "CSV": "csv", "Parquet": "parquet"}


class RunDialog(PanelDialog):
    """Links that save the open run: the same files as ``tilescope report`` writes."""

    name_of_panel, title = RUN, "This run"

    def make(self) -> list[Any]:
        self.head = html_text.pane()
        self.links = [
            link(label, self._report(end), self._name(end), f"Save as {label}") for label, end in _FORMATS.items()
        ]
        row = pn.FlexBox(html_text.Html("<b>Report:</b>"), *self.links, align_items="center")
        return [self.head, row, *[pressed.said for pressed in self.links]]

    def fill(self) -> None:
        known = next((run for run in self.state.runs if run.id == self.state.run), None)
        self.head.object = html_text.subheading(known.title or known.id, known.id) if known else ""
        for pressed in self.links:
            pressed.disabled = self.state.loaded is None

    def _name(self, end: str) -> Callable[[], str]:
        return lambda: f"{stem(self.state.run or 'report')}.{end}"

    def _report(self, end: str) -> Callable[[], io.BytesIO]:
        return lambda: io.BytesIO(report.render(sides(self.state), end))


def sides(state: State) -> list[Side]:
    """The run and its baselines. Runs that cannot be opened are left out, as in Compare."""
    found = [Side(state.loaded)]
    mine = (state.loaded.run.id, f"{state.loaded.run.id}:triton")
    for token in dict.fromkeys(state.compared):
        with contextlib.suppress(store.StoreError, compare.CompareError, OSError):
            side = compare.side(token, run_folder, open_cached)
            if side.name not in (*mine, *(known.name for known in found)):
                found.append(side)
    return found
