"""Roofline: the chosen kernel's points under the device's roofs, and a table that selects with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope import roofline as model

from tilescope_dashboard import frames, words
from tilescope_dashboard.charts import chart
from tilescope_dashboard.figures.roofline import LEVELS, roofline, source
from tilescope_dashboard.headlines.roofline import headline
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.turns import in_turn
from tilescope_dashboard.views.base import View

_ALL = "all"
_COLUMNS = {
    "impl": ("impl.", "text"),
    "workload": ("workload", "text"),
    "pass": ("pass", "text"),
    "kind": ("point", "text"),
    "level": ("level", "text"),
    "flops": ("work", "flop"),
    "bytes": ("bytes", "byte"),
    "intensity": ("intensity", "flop/byte"),
    "performance": ("performance", "flop/second"),
    "gpu_time": ("GPU time", "second"),
    "fraction": ("of the roof", "ratio"),
    "sources": ("sources", "text"),
    "function": ("launch", "text"),
}


class Roofline(View):
    """The figure, its selectors, and one table row a point."""

    name_in_address, title = "roofline", "Roofline"

    def build(self) -> list[Any]:
        self._filling = False
        small = {"size": "small", "width": 210}
        self._head, self._chart, self._table = words.pane(), chart(), table(_COLUMNS, pagination="remote")
        self._workload = pmui.Select(label="workload", options=[_ALL], value=_ALL, **small)
        self._pass = pmui.Select(label="pass", options=[_ALL], value=_ALL, size="small", width=130)
        self._levels = pmui.CheckButtonGroup(
            label="memory levels", options={v: k for k, v in LEVELS.items()}, value=["hbm"], size="small"
        )
        self._each = pmui.Switch(label="each launch", value=False)
        for widget in (self._workload, self._pass, self._levels, self._each):
            widget.param.watch(lambda _: self._filling or self._draw(), "value")
        self._table.param.watch(self._select_point, "selection")
        self._points, self._source = pd.DataFrame(), None
        choices = pn.FlexBox(self._workload, self._pass, self._levels, self._each, align_items="center", gap="6px")
        return [self._head, choices, self._chart, self.saved(self._table, "points")]

    def update(self) -> None:
        self._filling = True
        loaded = self.state.loaded
        rows = frames.default_configs(self.state.table)
        self._all = model.points(rows, loaded.run.device, loaded.run.kernels) if loaded else pd.DataFrame()
        for widget, column in ((self._workload, "workload"), (self._pass, "pass")):
            found = list(dict.fromkeys(self._all[column])) if len(self._all) else []
            kept = widget.value if widget.value in found else (found[0] if column == "pass" and found else _ALL)
            widget.param.update(options=[_ALL, *found], value=kept)
        self._filling = False
        self._draw()

    def _draw(self) -> None:
        if self._all.empty:
            self._chart.object = None
            self._head.object = words.heading(
                "Roofline", "This run has no work or bytes of this kernel. Profile it to see them."
            )
            fill(self._table, self._all)
            return
        chosen = self._all["level"].isin(self._levels.value) & (self._all["launch"].notna() == self._each.value)
        for widget, column in ((self._workload, "workload"), (self._pass, "pass")):
            if widget.value != _ALL:
                chosen &= self._all[column] == widget.value
        self._points = self._all[chosen].reset_index(drop=True)
        figure = roofline(self._points, model.roofs(self.state.device), self.state.look)
        self._head.object = headline(self._points)
        shown = source(self._chart.show(figure))
        if shown is not None and shown is not self._source:
            shown.selected.on_change("indices", self._select_row)
        self._source = shown
        sources = zip(*(self._points[f"{what}_source"].tolist() for what in ("flops", "bytes", "time")), strict=True)
        said = pd.Series([", ".join(dict.fromkeys(filter(None, row))) for row in sources], dtype=object)
        fill(self._table, self._points.assign(sources=said, level=self._points["level"].map(LEVELS)))

    def _select_row(self, _: str, old: list[int], new: list[int]) -> None:
        rows = [int(self._source.data["row"][point]) for point in new]
        if rows != self._table.selection:
            self._table.selection = rows

    def _select_point(self, event: Any) -> None:
        if self._source is None:
            return
        points = np.flatnonzero(np.isin(self._source.data["row"], list(event.new))).tolist()
        if self._source.selected.indices != points:
            in_turn(partial(setattr, self._source.selected, "indices", points))
