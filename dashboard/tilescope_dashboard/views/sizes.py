"""Sizes: GB/s or Tflop/s over the size of the problem, from all runs of the kernel on the chosen GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import measurements
from tilescope_dashboard.figures.sizes import Frame, sizes
from tilescope_dashboard.topics import sizes as topic
from tilescope_dashboard.views.base import View


class Sizes(View):
    """The plot that Triton's tutorials end with, and a table of its points. Choosing a row chooses the case for all views."""

    name_in_address, title = "sizes", "Sizes"
    of_other_runs = True

    def build(self) -> list[Any]:
        self._chart = chart()
        self._table = table(topic.columns(topic.WIDEST))
        self._table.param.watch(self._pick, "selection")
        self._settled = True
        self._body = pn.Column(self._chart, self.saved(self._table, "sizes"), sizing_mode="stretch_width", margin=0)
        return [self._body]

    def update(self) -> None:
        state = self.state
        gpu = state.device.name if state.device else ""
        every = measurements.of_kernel(tuple(state.runs), state.kernel, gpu)
        case = state.standing
        direction = case.direction if case else "forward"
        rate = topic.rate(every[every["pass"].eq(direction)])
        rows = self._rows = topic.sizes(every, direction, rate)
        self._head.object = html_text.heading(*topic.sentence(rows, rate))
        self._body.visible = len(rows) > 0
        chosen = rows.loc[rows["workload"].eq(case.workload), "size"] if case else pd.Series(dtype=float)
        at = float(chosen.iloc[0]) if len(chosen) else None
        roof = topic.roof(rows, state.device, rate)
        self._chart.object = sizes(rows, Frame(rate.unit, rate.work, roof, at), state.look_of(state.kernel, gpu))
        self._whose.object = html_text.whose(*dict.fromkeys(rows["origin"]))
        self._settled = False
        self._table.rewrite(topic.columns(rate))
        fill(self._table, rows)
        self._settled = True

    def _pick(self, event: Any) -> None:
        if self._settled and event.new:
            row = self._rows.iloc[event.new[0]]
            self.choose(lambda: None, workload=row["workload"], impl=row["impl"], direction=row["pass"])
