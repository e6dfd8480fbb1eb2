"""Timeline: a call's launches in the order in which they ran, and the gaps between them by cause."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.models import timeline as model

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.components.trace_links import links
from tilescope_dashboard.data import frames, run_cache
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures.timeline import timeline
from tilescope_dashboard.topics import timeline as topic
from tilescope_dashboard.views.base import View


class Timeline(View):
    """One repetition of each implementation on a problem, drawn from the moment its first launch began."""

    name_in_address, title, question = "timeline", "Timeline", Question(rows_of(topic.NEEDED))

    def build(self) -> list[Any]:
        self._filling, self._of = False, None
        self._chart = chart()
        self._table, self._totals = table(topic.LAUNCHES, pagination="remote"), table(topic.TOTALS)
        self._problem = pmui.Select(label="workload", options={}, size="small", width=280)
        self._sample = pmui.Select(label="repetition", options={}, size="small", width=130)
        self._filter = pmui.TextInput(label="function contains", size="small", width=190)
        self._traces = pn.Column(sizing_mode="stretch_width", margin=0)
        self._problem.param.watch(lambda _: self._filling or self._pick(), "value")
        for widget in (self._sample, self._filter):
            widget.param.watch(lambda _: self._filling or self._draw(), "value")
        self._body = pn.Column(
            pn.FlexBox(self._problem, self._sample, self._filter, gap="6px"), self._chart, self._traces,
            self.saved(self._totals, "totals"), self.saved(self._table, "launches"),
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        return [self._body]

    def update(self) -> None:
        self._filling = True
        rows = self.usual
        other, anew = self.elsewhere(), rows is not self._of
        if anew:
            self._of = rows
            self._launches, self._sums = self._timed(rows)
            self._sample.param.update(options=topic.repetitions(self._sums["sample"]), value=topic.TYPICAL)
        options = topic.problems(self._sums)
        if anew or other:
            first = frames.first_problem(rows, options.values(), self.state.chosen)
            self._problem.param.update(options=options, value=first)
        self._body.visible = bool(options)
        self._filling = False
        self._draw()

    def _timed(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The launches of these rows and the sums of their repetitions, cached for the next page."""

        def found() -> tuple[pd.DataFrame, pd.DataFrame]:
            launches = model.timeline(rows)
            return launches, model.totals(launches)

        return run_cache.kept(self.loaded, ("timeline", self.state.kernel), found) if self.loaded else found()

    def _pick(self) -> None:
        workload, direction = self._problem.value
        self.choose(self._draw, workload=workload, direction=direction)

    def _draw(self) -> None:
        workload, direction = self._problem.value or ("", "")
        sums = topic.chosen(self._sums, workload, direction, self._sample.value)
        launches = model.of_repetitions(self._launches, sums)
        chosen = launches["function"].str.contains(self._filter.value or "", case=False, regex=False)
        self._head.object = html_text.heading(*topic.sentence(launches, sums))
        self._chart.object = timeline(launches.assign(chosen=chosen), self.look)
        self._traces.objects = links(self.loaded, launches, self.origin)
        fill(self._totals, sums)
        fill(self._table, topic.listed(launches)[chosen])
