"""HBM traffic: bytes that fusion saves, and whether time follows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import traffic as model

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import frames
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures.style import heading
from tilescope_dashboard.figures.traffic import speedup, traffic
from tilescope_dashboard.topics import traffic as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.choice import Choice


class Traffic(View):
    """Bars, speedups and their tables for one workload and pass."""

    name_in_address, title, question = "traffic", "HBM traffic", Question(rows_of(topic.NEEDED))

    def build(self) -> list[Any]:
        self._bars, self._gains = chart(), chart()
        self._table, self._gain_table = table(topic.LAUNCHES), table(topic.SPEEDUPS)
        self._problem, self._counted = Choice("workload", 280, self._pick), Choice("bytes", 220, self._draw)
        wide = {"sizing_mode": "stretch_width", "margin": 0}
        self._won = pn.Column(self._gains, self.saved(self._gain_table, "speedup"), **wide)
        self._of: pd.DataFrame | None = None
        self._body = pn.Column(
            pn.FlexBox(self._problem.widget, self._counted.widget, gap="6px"), self._bars,
            self.saved(self._table, "launches"), self._won,
            **wide,
        )  # fmt: skip
        return [self._body]

    def update(self) -> None:
        rows = self.usual
        if rows is not self._of:
            self._of, self._launches, self._speedups = rows, model.traffic(rows), model.speedup(rows)
        options, sources = topic.problems(self._launches), topic.sources(self._launches)
        self._problem.offer(
            options, frames.first_problem(rows, options.values(), self.state.chosen), anew=self.elsewhere()
        )
        self._counted.offer(sources, next(iter(sources.values()), None))
        self._body.visible = bool(options)
        if options:
            self._draw()
        else:
            self._head.object = html_text.heading(*topic.NOTHING)

    def _pick(self) -> None:
        workload, direction = self._problem.value
        self.choose(self._draw, workload=workload, direction=direction)

    def _draw(self) -> None:
        workload, direction = self._problem.value
        here = topic.of_problem(self._launches, workload, direction)
        gains = topic.of_problem(self._speedups, workload, direction)
        least, bars = topic.floor(here), topic.bars(here, self._counted.value)
        l2_bytes = self.state.device.l2_bytes if self.state.device else 0
        self._head.object = html_text.heading(*topic.sentence(bars, gains, least, l2_bytes))
        look = self.look
        self._bars.object = traffic(bars, least, look)
        fill(self._table, topic.listed(bars, least))
        # A speedup needs eager and another implementation.
        self._won.visible = len(gains) > 0
        if not len(gains):
            return
        figure = speedup(gains, look)
        heading(figure, look, "What the bytes predict, and what the clock says")
        self._gains.object = figure
        fill(self._gain_table, gains)
