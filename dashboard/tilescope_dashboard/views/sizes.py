"""Sizes: GB/s or Tflop/s over the size of the problem, from all runs of the kernel on the chosen GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import measurements
from tilescope_dashboard.figures.sizes import sizes
from tilescope_dashboard.topics import sizes as topic
from tilescope_dashboard.views.base import View


class Sizes(View):
    """The plot that Triton's tutorials end with, and a table of its points. Choosing a row chooses the case for all views."""

    name_in_address, title = "sizes", "Sizes"
    of_other_runs = True
    collectors = ("events",)

    def build(self) -> list[Any]:
        self.chart, self.table = chart(), table(topic.columns(topic.WIDEST))
        self.table.picked = self._pick
        return [self.chart, self.saved(self.table, "sizes")]

    def update(self) -> None:
        state, case = self.state, self.state.standing
        gpu = state.device.name if state.device else ""
        every = measurements.of_kernel(tuple(state.runs), state.kernel, gpu)
        direction = case.direction if case else "forward"
        rate = topic.rate(every[every["pass"].eq(direction)])
        rows = self._rows = topic.sizes(every, direction, rate)
        self.origins = [*dict.fromkeys(rows["origin"])]
        if rows.empty:
            self.say_nothing(topic.NOTHING)
            return
        look = state.look_of(state.kernel, gpu)
        self.say(topic.sentence(look.named(rows), rate))
        chosen = rows.loc[rows["workload"].eq(case.workload), "size"] if case else pd.Series(dtype=float)
        at = float(chosen.iloc[0]) if len(chosen) else None
        roof = topic.roof(rows, state.device, rate)
        self.chart.object = sizes(rows, rate, roof, look, at)
        self.table.rewrite(topic.columns(rate))
        self.table.fill(rows)

    def _pick(self, place: int | None) -> None:
        if place is not None:
            row = self._rows.iloc[place]
            self.choose(lambda: None, workload=row["workload"], impl=row["impl"], direction=row["pass"])
