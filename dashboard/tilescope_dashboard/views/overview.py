"""Overview: the chosen kernel's largest case, every case of the run, and the runs there are."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import summary

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.link_table import link_table
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, case_name
from tilescope_dashboard.data.library import listing
from tilescope_dashboard.data.recordings import ANYTHING
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.session.scheduling import once_loaded
from tilescope_dashboard.topics import overview as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.first_finding import FirstFinding

_NOWHERE = "<p>No run says anything about it yet: profile it.</p>"


class Overview(View):
    """Numbers, then the figure, then the tables."""

    name_in_address, title, question = "overview", "Overview", ANYTHING

    def build(self) -> list[Any]:
        self._first, self._chart = FirstFinding(self.state), chart()
        self._table, self._runs = table(topic.CASES), link_table(topic.RUNS, self._open, ["id"])
        self._cases = pd.DataFrame()
        self._settled, self._look = True, None
        self._table.param.watch(self._tell, "selection")
        self.state.param.watch(lambda _: self._list_runs(), "runs")
        below = pn.Column(sizing_mode="stretch_width", margin=0)
        # These are below the screen at first: defer them.
        once_loaded(lambda: below.extend(self._below()))
        cases = _text("Every case of this run", f"{topic.READING} Click a row to read it in full.")
        return [self._first, cases, self._chart, below]

    def _below(self) -> list[Any]:
        runs = self.saved(self._runs, "runs", tuple)
        return [self.saved(self._table, "cases"), _text("Runs", "Click one to open it."), runs]

    def otherwise(self) -> str:
        return _NOWHERE if self.state.kernel else ""

    def update(self) -> None:
        state, loaded = self.state, self.state.loaded
        cases = pd.DataFrame() if loaded is None else run_cache.summaries(loaded)
        anew, self._cases = cases is not self._cases or cases.empty, cases
        self._settled = False
        if anew:
            fill(self._table, cases)
            self._list_runs()
        place = self._place()
        self._table.choose([] if place is None else [place])
        self._settled = True
        self._say()
        if anew or self._look != state.look:
            self._look = state.look
            self._chart.object = overview(cases, state.look)

    def _place(self) -> int | None:
        """The row of the chosen case; None where none was chosen, or its config has no row."""
        rows, case = self._cases, self.state.chosen
        if case is None or rows.empty:
            return None
        here = (rows[["kernel", *OF_KERNEL]] == [self.state.kernel, *case]).all(axis="columns").to_numpy()
        return int(here.argmax()) if here.any() else None

    def _say(self) -> None:
        """The chosen case, else the chosen kernel's largest."""
        state, rows, place = self.state, self._cases, self._place()
        if place is not None:
            case: Mapping[str, Any] | None = rows.iloc[place].to_dict()
        else:
            case = summary.representative(rows[rows["kernel"] == state.kernel]) if len(rows) else None
        self._head.object = of_kernel(state.kernel, case, str(state.declared.get("summary", "")))
        self._first.show(case)

    def _list_runs(self) -> None:
        runs = listing(self.state.runs)
        self._runs.show(runs.assign(id=[run.id for run in self.state.runs]), runs)

    def _tell(self, event: Any) -> None:
        """The chosen row is the case of all views, and stands above in full: why it is as it is takes more room than a cell
        has. Without a row it is the kernel's largest case.
        """
        if not self._settled:
            return
        before = self.state.kernel, self.state.case
        if event.new:
            row = self._cases.iloc[event.new[0]]
            self.state.param.update(kernel=row["kernel"], case=case_name(row[OF_KERNEL]))
        else:
            self.state.case = ""
        if before == (self.state.kernel, self.state.case) or not self.fresh:
            self._say()

    def _open(self, row: pd.Series) -> None:
        self.state.run = row["id"]


def of_kernel(kernel: str, case: Mapping[str, Any] | None, about: str = "") -> str:
    """The kernel's name, ``about`` it in a sentence, and its ``case`` (``of_case``) if one is known; escaped."""
    return html_text.heading(kernel or "No kernel", about) + ("" if case is None else of_case(case))


def of_case(case: Mapping[str, Any]) -> str:
    """The numbers of a row of ``tilescope.models.summary.summarise``, and why they are what they are; escaped."""
    why, place = escape(case["why"]), escape(topic.place(case))
    return f'{html_text.stats(topic.stats(case))}<p>{why} <span class="quiet">({place})</span></p>'


def _text(title: str, said: str) -> pn.pane.HTML:
    return html_text.pane(html_text.subheading(title, said))
