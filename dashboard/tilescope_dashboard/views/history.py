"""History: the chosen case's GPU time over the runs on the chosen GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.link_table import link_table
from tilescope_dashboard.data import measurements
from tilescope_dashboard.figures.history import history
from tilescope_dashboard.topics import history as topic
from tilescope_dashboard.views.base import View


class History(View):
    """A figure and its table. A row opens its run."""

    name_in_address, title = "history", "History"
    of_other_runs = True

    def build(self) -> list[Any]:
        self._chart, self._table = chart(), link_table(topic.COLUMNS, self._open, ["run_id", "impl", "config"])
        self._body = pn.Column(
            self._chart, html_text.pane(html_text.subheading("Runs", "Click one to open it.")),
            self.saved(self._table, "runs"), sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        self.state.param.watch(self._changed, "compared")
        return [self._body]

    def update(self) -> None:
        state = self.state
        gpu = state.device.name if state.device else ""
        every = measurements.of_kernel(tuple(state.runs), state.kernel, gpu)
        case = state.standing
        rows = topic.history(every, case)
        self._head.object = html_text.heading(*topic.sentence(state.kernel, rows, case))
        self._body.visible = len(rows) > 0
        # Only the chosen implementation and the baseline's: beside one ten times slower, noise would not be visible.
        shown = {case.impl if case else "", *(token.partition(":")[2] for token in state.compared)}
        self._chart.object = history(rows[rows["impl"].isin(shown)], state.look_of(state.kernel, gpu))
        self._table.show(rows)

    def _open(self, row: pd.Series) -> None:
        self.state.param.update(run=row["run_id"], kernel=self.state.kernel)
