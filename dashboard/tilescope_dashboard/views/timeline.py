"""Timeline: a call's launches in the order in which they ran, and the gaps between them by cause."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.models import timeline as model
from tilescope.table.case import Case

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.components.trace_links import links
from tilescope_dashboard.data import frames, run_cache
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures.timeline import content, drawn
from tilescope_dashboard.topics import timeline as topic
from tilescope_dashboard.views.activity_strip import ActivityStrip
from tilescope_dashboard.views.base import View


class Timeline(View):
    """One repetition of each implementation on a problem, drawn from the moment its first launch began."""

    name_in_address, title, question = "timeline", "Timeline", Question(rows_of(topic.NEEDED))
    collectors = ("torch_profiler",)

    def build(self) -> list[Any]:
        self._of: pd.DataFrame | None = None
        self.chart, self.traces, self.activity = chart(), layout.column(), ActivityStrip()
        self.table = table(topic.LAUNCHES, called="launches", pagination="remote")
        self.totals = table(topic.TOTALS, called="totals")
        self._problem, self._sample = Choice("workload", 280, self._pick), Choice("repetition", 130, self._draw)
        self._filter = pmui.TextInput(label="function contains", size="small", width=190)
        self._filter.param.watch(lambda _: self._draw(), "value")
        choices = pn.FlexBox(self._problem, self._sample, self._filter, gap="6px")
        found = self.saved(self.totals, "totals"), self.saved(self.table, "launches")
        return [choices, self.chart, self.traces, self.activity, *found]

    def update(self) -> None:
        rows, anew = self.usual, self.elsewhere()
        if rows is not self._of:
            self._of, anew = rows, True
            self._launches, self._sums = self._timed(rows)
            self._sample.offer(topic.repetitions(self._sums["sample"]), topic.TYPICAL, anew=True)
        options = frames.problems(self._sums)
        first = frames.first_problem(rows, options.values(), self.state.chosen)
        self._problem.offer(options, first if anew else self._problem.value, anew=anew)
        if not options:
            self.say_nothing(topic.NOTHING)
            return
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
        self.hide_like_bar(self._problem, self.state.problem)
        workload, direction = self._problem.value or ("", "")
        sums = topic.chosen(self._sums, workload, direction, self._sample.value)
        launches = model.of_repetitions(self._launches, sums)
        chosen = launches["function"].str.contains(self._filter.value or "", case=False, regex=False)
        self.say(topic.sentence(self.look.named(launches), self.look.named(sums)))
        self.chart.exchange(content(launches.assign(chosen=chosen), self.look), drawn)
        self.traces.objects = links(self.loaded, launches, self.origin, self.look.called)
        if self.loaded:
            impl = next(iter(launches["impl"]), "")
            self.activity.show(self.loaded, Case(self.state.kernel, impl, direction, workload), self.look)
        self.totals.fill(sums)
        self.table.fill(topic.listed(launches)[chosen])
