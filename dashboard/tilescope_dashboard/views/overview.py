"""Overview: every case of the run, and the runs there are."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import pandas as pd

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import link_table, table
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, case_name
from tilescope_dashboard.data.recordings import ANYTHING
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.figures.style import Theme
from tilescope_dashboard.topics import overview as topic
from tilescope_dashboard.views.base import View


class Overview(View):
    """A figure and a table of the run's cases, then the runs."""

    name_in_address, title, question = "overview", "Overview", ANYTHING
    collectors = ("compiler", "interpreter")

    def build(self) -> list[Any]:
        self.chart = chart()
        self.table, self.runs = (
            table(topic.CASES, called="cases"),
            link_table(topic.RUNS, self._open, ["id"], called="runs"),
        )
        self.table.picked = self._pick
        self._cases = pd.DataFrame()
        self._look: Any = None
        self.state.param.watch(lambda _: self._list_runs(), "runs")
        self.cases, runs = self.saved(self.table, "cases"), self.saved(self.runs, "runs", tuple)
        head = html_text.pane(html_text.subheading("Runs", "Click a run to open it."))
        return [self.chart, self.cases, head, runs]

    @property
    def look(self) -> Theme:
        # Implementations of one kernel are not called as those of another.
        several = self.loaded is not None and len(self.loaded.run.kernels) > 1
        return replace(super().look, declared=()) if several else super().look

    def update(self) -> None:
        loaded, of_step = self.state.loaded, self.state.of_step
        cases = pd.DataFrame() if loaded is None or of_step else run_cache.summaries(loaded)
        self.cases.visible = len(cases) > 0
        self.chart.visible = topic.has_marks(cases)
        anew, self._cases = cases is not self._cases or cases.empty, cases
        if anew:
            self.table.fill(cases)
            self._list_runs()
        self.table.choose(self._place())
        if of_step:
            self.say_apart()
            return
        if cases.empty:
            self.say_nothing(topic.of_run(cases)._replace(text=topic.NOTHING), keeps=True)
            return
        nowhere = (
            f"<p>No run has data on {escape(self.state.kernel)}. {self.otherwise()}</p>" if self.state.kernel else ""
        )
        self.say(topic.of_run(cases), "" if self.shown else nowhere)
        if anew or self._look != self.look:
            self._look = self.look
            self.chart.object = overview(cases, self.look)

    def _place(self) -> int | None:
        """The row of the chosen case; None where none was chosen, or its config has no row."""
        rows, case = self._cases, self.state.chosen
        if case is None or rows.empty:
            return None
        here = (rows[["kernel", *OF_KERNEL]] == [self.state.kernel, *case]).all(axis="columns").to_numpy()
        return int(here.argmax()) if here.any() else None

    def _list_runs(self) -> None:
        runs = topic.listing(self.state.runs)
        self.runs.show(runs.assign(id=[run.id for run in self.state.runs]), runs)

    def _pick(self, place: int | None) -> None:
        """Choose the row's case for all views; without a row, the kernel's largest case."""
        if place is not None:
            row = self._cases.iloc[place]
            self.state.param.update(kernel=row["kernel"], case=case_name(row[OF_KERNEL]))
        else:
            self.state.case = ""

    def _open(self, row: pd.Series) -> None:
        self.state.run = row["id"]
