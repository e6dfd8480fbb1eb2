"""Overview: the chosen kernel's headline, every kernel's, every case of the run, and the runs there are."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import summary

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.library import library, listing
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.session.scheduling import once_loaded
from tilescope_dashboard.topics import overview as headline
from tilescope_dashboard.views import overview_columns as columns
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.elsewhere import Elsewhere, rows_of
from tilescope_dashboard.views.first_finding import FirstFinding

_KERNELS = "The largest forward case of each, from the run that says most of it. Click one to look at it."
_CASES = (
    "The dashed line is the floor: the algorithm's bytes or operations at the device's roofs. ∇ is the backward pass, "
    "+∇ both. Click a row to read it in full."
)


class Overview(View):
    """Numbers first, then where they stand, then the tables behind them."""

    name_in_address, title = "overview", "Overview"

    def build(self) -> list[Any]:
        self._head, self._nowhere = html_text.pane(), Elsewhere(self.state)
        self._first, self._chart = FirstFinding(self.state), chart()
        self._kernels, self._table, self._runs = (table(c) for c in (columns.KERNELS, columns.CASES, columns.RUNS))
        self._headlines = self._library = pd.DataFrame()
        self._kernels.param.watch(self._choose, "selection")
        self._table.param.watch(self._tell, "selection")
        self._runs.param.watch(self._open, "selection")
        self.state.param.watch(lambda _: self._list_runs(), "runs")
        below = pn.Column(sizing_mode="stretch_width", margin=0)
        # Off the screen at first: the page is there sooner without them.
        once_loaded(lambda: below.extend(self._below()))
        kernels = self.saved(self._kernels, "kernels", tuple)
        cases = _text("Every case of this run", _CASES)
        return [self._head, self._nowhere, self._first, _text("Kernels", _KERNELS), kernels, cases, self._chart, below]

    def _below(self) -> list[Any]:
        runs = self.saved(self._runs, "runs", tuple)
        return [self.saved(self._table, "cases"), _text("Runs", "Click one to open it."), runs]

    def update(self) -> None:
        state, loaded = self.state, self.state.loaded
        headlines = self._headlines = pd.DataFrame() if loaded is None else run_cache.headlines(loaded)
        self._say()
        self._chart.object = overview(headlines, state.look)
        fill(self._table, headlines)
        self._list_runs()

    def _say(self) -> None:
        """The chosen kernel's headline."""
        state, rows = self.state, self._headlines
        case = summary.representative(rows[rows["kernel"] == state.kernel]) if len(rows) else None
        self._head.object = headline.of_kernel(state.kernel, case, str(state.facts.get("summary", "")))
        self._first.show(case)
        if case is None and state.kernel:
            self._nowhere.seek(rows_of(), otherwise=headline.NOWHERE)
        else:
            self._nowhere.say("")

    def _list_runs(self) -> None:
        self._listed = list(self.state.runs)
        self._library = library(self._listed)
        fill(self._kernels, self._library)
        fill(self._runs, listing(self._listed))

    def _tell(self, event: Any) -> None:
        """The chosen row's headline in full: its sentence is longer than a cell. Without a row, the kernel's."""
        if not event.new:
            self._say()
        else:
            row = self._headlines.iloc[event.new[0]].to_dict()
            self._head.object = headline.of_kernel(row["kernel"], row)
            self._first.show(row)

    def _choose(self, event: Any) -> None:
        if event.new:
            row = self._library.iloc[event.new[0]]
            self.state.param.update(run=row["run"], kernel=row["kernel"])

    def _open(self, event: Any) -> None:
        if event.new and self._listed[event.new[0]].id != self.state.run:
            self.state.run = self._listed[event.new[0]].id


def _text(title: str, said: str) -> pn.pane.HTML:
    return html_text.pane(html_text.subheading(title, said))
