"""History: the chosen case's GPU time over the runs on the chosen GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import link_table
from tilescope_dashboard.data import measurements
from tilescope_dashboard.figures.history import history
from tilescope_dashboard.topics import history as topic
from tilescope_dashboard.views.base import View


class History(View):
    """A figure and its table. A row opens its run."""

    name_in_address, title = "history", "History"
    of_other_runs = True
    collectors = ("events",)

    def build(self) -> list[Any]:
        self.chart, self.table = chart(), link_table(topic.COLUMNS, self._open, ["run_id", "impl", "config"])
        self.state.param.watch(self._changed, "compared")
        runs = html_text.pane(html_text.subheading("Runs", "Click one to open it."))
        return [self.chart, runs, self.saved(self.table, "runs")]

    def update(self) -> None:
        state, case = self.state, self.state.standing
        gpu = state.device.name if state.device else ""
        rows = topic.history(measurements.of_kernel(tuple(state.runs), state.kernel, gpu), case)
        look = state.look_of(state.kernel, gpu)
        named = case and case._replace(impl=look.called(case.impl))
        said = topic.sentence(state.kernel, look.named(rows), named, gpu)
        if rows.empty:
            self.say_nothing(said)
            return
        self.say(said)
        # Only the chosen implementation and the baseline's: beside one ten times slower, noise would not be visible.
        shown = {case.impl if case else "", *(token.partition(":")[2] for token in state.compared)}
        self.chart.object = history(rows[rows["impl"].isin(shown)], look)
        self.table.show(rows)

    def _open(self, row: pd.Series) -> None:
        self.state.param.update(run=row["run_id"], kernel=self.state.kernel)
