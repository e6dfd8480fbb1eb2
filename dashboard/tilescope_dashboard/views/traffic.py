"""HBM traffic: bytes that fusion saves, and whether time follows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import traffic as model

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import frames
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures.traffic import speedup, traffic
from tilescope_dashboard.topics import traffic as topic
from tilescope_dashboard.views.base import View


class Traffic(View):
    """Bars, speedups and their tables for one workload and pass."""

    name_in_address, title, question = "traffic", "HBM traffic", Question(rows_of(topic.NEEDED))
    collectors = ("interpreter",)

    def build(self) -> list[Any]:
        self.bars, self.gains = chart(), chart()
        self.table, self.gain_table = table(topic.LAUNCHES, called="launches"), table(topic.SPEEDUPS, called="speedups")
        self._problem, self._counted = Choice("workload", 280, self._pick), Choice("bytes", 220, self._draw)
        self._won = layout.column(self.gains, self.saved(self.gain_table, "speedup"))
        self._of: pd.DataFrame | None = None
        choices = pn.FlexBox(self._problem, self._counted, gap="6px")
        return [choices, self.bars, self.saved(self.table, "launches"), self._won]

    def update(self) -> None:
        rows, anew = self.usual, self.elsewhere()
        if rows is not self._of:
            self._of, self._launches, self._speedups = rows, model.traffic(rows), model.speedup(rows)
        options, sources = topic.problems(self._launches), topic.sources(self._launches)
        self._problem.offer(options, frames.first_problem(rows, options.values(), self.state.chosen), anew=anew)
        self._counted.offer(sources, next(iter(sources.values()), None))
        if not options:
            self.say_nothing(topic.NOTHING)
            return
        self._draw()

    def _pick(self) -> None:
        workload, direction = self._problem.value
        self.choose(self._draw, workload=workload, direction=direction)

    def _draw(self) -> None:
        self.hide_like_bar(self._problem, self.state.problem)
        here, gains = (topic.of_problem(rows, *self._problem.value) for rows in (self._launches, self._speedups))
        least, bars = topic.floor(here), topic.bars(here, self._counted.value)
        l2_bytes = self.state.device.l2_bytes if self.state.device else 0
        self.say(topic.sentence(self.look.named(bars), self.look.named(gains), least, l2_bytes))
        self.bars.object = traffic(bars, least, self.look)
        self.table.fill(topic.listed(bars, least))
        # A speedup needs eager and another implementation.
        self._won.visible = len(gains) > 0
        if len(gains):
            self.gains.object = speedup(gains, self.look)
            self.gain_table.fill(gains)
