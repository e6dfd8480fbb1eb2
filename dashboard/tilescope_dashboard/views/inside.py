"""Inside: what each warp of a program does, what it waits for, and the time of each source line."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.models import lanes as model
from tilescope.table.case import Case

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.components.trace_links import kept
from tilescope_dashboard.data import frames, run_cache
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures.lanes import lanes as draw
from tilescope_dashboard.topics import lanes as topic
from tilescope_dashboard.views.base import View


class Inside(View):
    """The lanes of one sampled program of a launch."""

    name_in_address, title, question = "inside", "Inside", Question(rows_of(topic.NEEDED))

    def build(self) -> list[Any]:
        self.chart, self.traces = chart(), layout.column()
        self.table = table(topic.LINES, pagination="remote")
        self._problem, self._impl = Choice("workload", 280, self._pick), Choice("implementation", 150, self._load)
        self._program = Choice("program", 260, self._draw)
        self._filter = pmui.TextInput(label="operation or line contains", size="small", width=210)
        self._filter.param.watch(lambda _: self._draw(), "value")
        choices = pn.FlexBox(self._problem, self._impl, self._program, self._filter, gap="6px")
        return [choices, self.chart, self.traces, self.saved(self.table, "lines")]

    def update(self) -> None:
        rows = self.usual
        self._rows = rows[rows["metric"].isin(topic.NEEDED)]
        options = frames.problems(self._rows)
        anew = self.elsewhere()
        first = frames.first_problem(rows, options.values(), self.state.chosen)
        self._problem.offer(options, first if anew else self._problem.value or first, anew=anew)
        self._load()

    def _pick(self) -> None:
        workload, direction = self._problem.value
        self.choose(self._load, workload=workload, direction=direction)

    def _load(self) -> None:
        """Read the lanes of the chosen case and offer its programs."""
        workload, direction = self._problem.value or ("", "")
        here = self._rows[(self._rows["workload"] == workload) & (self._rows["pass"] == direction)]
        impls = list(dict.fromkeys(frames.with_first(here, {"impl": "triton"})["impl"]))
        self._impl.offer(impls, self._impl.value if self._impl.value in impls else next(iter(impls), None))
        own = here[here["impl"] == self._impl.value]
        self._lanes: model.Lanes | None = None
        if len(own) and self.loaded:
            found = own.iloc[0]
            self._case = Case(found["kernel"], found["impl"], direction, workload, found["config"])
            loaded, case = self.loaded, self._case
            self._lanes = run_cache.kept(loaded, ("lanes", case), lambda: model.of_case(loaded, case))
        if self._lanes is None or self._lanes.spans.empty:
            self.say_nothing(topic.GONE if len(own) else topic.NOTHING)
            return
        self.body.visible = True
        programs = self._lanes.spans[["launch", "function", "program"]].drop_duplicates()
        several = programs["launch"].nunique() > 1
        labels = {
            (f"{row.function}: " if several else "") + f"program {row.program}": (row.launch, row.program)
            for row in programs.itertuples()
        }
        self._program.offer(labels, next(iter(labels.values())), anew=True)
        self._draw()

    def _draw(self) -> None:
        if self._lanes is None or self._program.value is None:
            return
        launch, number = self._program.value
        spans = model.program(self._lanes.spans, launch, number)
        self.say(topic.sentence(self._lanes, launch))
        self.chart.object = draw(spans.assign(chosen=self._chosen(spans)), model.arrows(spans), self.look)
        self.traces.objects = kept(self.loaded, model.COLLECTOR, self._case, self.origin)
        lines = topic.listed(self._lanes.spans[self._lanes.spans["launch"] == launch])
        self.table.fill(lines[self._chosen(lines)])

    def _chosen(self, rows: pd.DataFrame) -> pd.Series:
        """Whether the name of an operation, or its line, has the text."""
        text = self._filter.value or ""
        named = rows["name"].str.contains(text, case=False, regex=False) | rows["awaits"].str.contains(
            text, case=False, regex=False
        )
        return named | (rows["line"].map(lambda line: f"{line:.0f}" if pd.notna(line) else "") == text)
