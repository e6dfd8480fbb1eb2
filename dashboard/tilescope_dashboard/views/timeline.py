"""Timeline: a call's launches in the order in which they ran, and what the GPU waited for between them."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope.models import timeline as model

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.components.trace_links import links
from tilescope_dashboard.data import frames
from tilescope_dashboard.figures.timeline import timeline
from tilescope_dashboard.topics.timeline import headline
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.elsewhere import Elsewhere, rows_of

_COLUMNS = {
    "impl": ("impl.", "text"),
    "number": ("launch", "count"),
    "start": ("start", "second"),
    "duration": ("duration", "second"),
    "gap": ("gap before", "second"),
    "late": ("CPU late", "second"),
    "source": ("source", "text"),
    "function": ("function", "text"),
}
_TOTALS = {
    "impl": ("impl.", "text"),
    "sample": ("repetition", "count"),
    "launches": ("launches", "count"),
    "window": ("window", "second"),
    "busy": ("GPU busy", "second"),
    "gaps": ("gaps", "second"),
    "late": ("CPU late", "second"),
    "busy_share": ("share", "ratio"),
    "source": ("source", "text"),
}
_TYPICAL = "median"


class Timeline(View):
    """One repetition of each implementation on a problem, drawn from the moment its first launch began."""

    name_in_address, title = "timeline", "Timeline"

    def build(self) -> list[Any]:
        self._filling = False
        self._head, self._nowhere, self._chart = html_text.pane(), Elsewhere(self.state), chart()
        self._table, self._totals = table(_COLUMNS, pagination="remote"), table(_TOTALS)
        self._problem = pmui.Select(label="workload", options={}, size="small", width=280)
        self._sample = pmui.Select(label="repetition", options={}, size="small", width=130)
        self._filter = pmui.TextInput(label="function contains", size="small", width=190)
        self._traces = pn.Column(sizing_mode="stretch_width", margin=0)
        for widget in (self._problem, self._sample, self._filter):
            widget.param.watch(lambda _: self._filling or self._draw(), "value")
        self._body = pn.Column(
            pn.FlexBox(self._problem, self._sample, self._filter, gap="6px"), self._chart, self._traces,
            self.saved(self._totals, "totals"), self.saved(self._table, "launches"),
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        return [self._head, self._nowhere, self._body]

    def update(self) -> None:
        self._filling = True
        rows = self.state.usual
        self._launches = model.timeline(rows)
        self._sums = model.totals(self._launches)
        options = {
            f"{w} · {p}": (w, p) for w, p in dict.fromkeys(zip(self._sums["workload"], self._sums["pass"], strict=True))
        }
        largest = frames.largest_problem(rows)
        first = largest if largest in options.values() else next(iter(options.values()), None)
        self._problem.param.update(options=options, value=first)
        samples = sorted(set(self._sums["sample"]))
        self._sample.param.update(options={_TYPICAL: -1, **{str(s): int(s) for s in samples}}, value=-1)
        self._body.visible = bool(options)
        if options:
            self._nowhere.say("")
        else:
            self._nowhere.seek(rows_of({"launch_start"}))
        self._filling = False
        self._draw()

    def _draw(self) -> None:
        workload, direction = self._problem.value or ("", "")
        here = self._sums[(self._sums["workload"] == workload) & (self._sums["pass"] == direction)]
        sample = self._sample.value
        sums = model.typical(here) if sample == -1 else here[here["sample"] == sample]
        sums = frames.with_first(sums, {"impl": "triton"}).reset_index(drop=True)
        launches = model.of_repetitions(self._launches, sums)
        chosen = launches["function"].str.contains(self._filter.value or "", case=False, regex=False)
        self._head.object = headline(launches, sums)
        self._chart.object = timeline(launches.assign(chosen=chosen), self.state.look)
        self._traces.objects = links(self.state.loaded, launches, self.state.origin)
        fill(self._totals, sums)
        fill(self._table, launches.assign(number=launches["launch"].astype("float64") + 1)[chosen])
