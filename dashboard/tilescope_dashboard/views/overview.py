"""Overview: the chosen kernel's largest case, every case of the run, and the runs there are."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.models import summary
from tilescope.models.advice.finding import DISTANCE

from tilescope_dashboard.components import cards, html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.link_table import link_table
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, case_name
from tilescope_dashboard.data.recordings import ANYTHING
from tilescope_dashboard.figures.overview import overview
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.topics import overview as topic
from tilescope_dashboard.views.base import View

_NOWHERE = "<p>No run says anything about it yet: profile it.</p>"


class Overview(View):
    """Numbers, then the figure, then the tables."""

    name_in_address, title, question = "overview", "Overview", ANYTHING

    def build(self) -> list[Any]:
        self.chart, self._case = chart(), dict[str, Any]()
        # Side by side if the page is wide enough, else the button below.
        self._brief, self._first = (
            cards.pane(),
            pn.FlexBox(sizing_mode="stretch_width", gap="4px", align_items="center"),
        )
        self._brief.styles = {"flex": "0 1 880px"}
        self._advice = pmui.Button(label="Open Advice", variant="outlined", size="small", width=120)
        self._advice.on_click(lambda _: next_tick(self._open_advice))
        self.table, self.runs = table(topic.CASES), link_table(topic.RUNS, self._open, ["id"])
        self.table.picked = self._pick
        self._cases = pd.DataFrame()
        self._look: Any = None
        self.state.param.watch(lambda _: self._list_runs(), "runs")
        head = _text("Every case of this run", f"{topic.READING} Click a row to read it in full.")
        cases, runs = self.saved(self.table, "cases"), self.saved(self.runs, "runs", tuple)
        return [self._first, head, self.chart, cases, _text("Runs", "Click one to open it."), runs]

    def otherwise(self) -> str:
        return _NOWHERE if self.state.kernel else ""

    def update(self) -> None:
        state, loaded = self.state, self.state.loaded
        cases = pd.DataFrame() if loaded is None else run_cache.summaries(loaded)
        anew, self._cases = cases is not self._cases or cases.empty, cases
        if anew:
            self.table.fill(cases)
            self._list_runs()
        self.table.choose(self._place())
        self._say()
        if anew or self._look != state.look:
            self._look = state.look
            self.chart.object = overview(cases, state.look)

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
        self.head.object = of_kernel(state.kernel, case, str(state.declared.get("summary", "")))
        self.caption.object = html_text.whose(*self.origins)
        self._show_first(dict(case or {}))

    def _show_first(self, case: dict[str, Any]) -> None:
        """Show the case's first finding in one line, and the way to the Advice view on it."""
        self._case, loaded = case, self.state.loaded
        every = run_cache.findings(loaded, tuple(case[name] for name in run_cache.CASE)) if loaded and case else ()
        # The page has a diagnosis above; the finding that no rule applies would contradict it.
        found = [finding for finding in every if finding.rule != DISTANCE]
        self._brief.object = cards.brief(found[0]) if found else ""
        # Add and remove it, as a change of ``visible`` alone may get lost.
        self._first.objects = [self._brief, self._advice] if found else []

    def _open_advice(self) -> None:
        case = case_name(self._case[part] for part in OF_KERNEL)
        self.state.param.update(kernel=self._case["kernel"], case=case, view="advice")

    def _list_runs(self) -> None:
        runs = topic.listing(self.state.runs)
        self.runs.show(runs.assign(id=[run.id for run in self.state.runs]), runs)

    def _pick(self, place: int | None) -> None:
        """The chosen row is the case of all views, and stands above in full: why it is as it is takes more room than a cell
        has. Without a row it is the kernel's largest case.
        """
        before = self.state.kernel, self.state.case
        if place is not None:
            row = self._cases.iloc[place]
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
