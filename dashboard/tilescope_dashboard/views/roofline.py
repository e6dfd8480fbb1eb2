"""Roofline: the chosen kernel's points under the device's roofs, and a table that selects with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import panel as pn
from tilescope.hardware import ceilings
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline as model

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.figures.marks import marks
from tilescope_dashboard.figures.roofline import LEVELS, drawing, source
from tilescope_dashboard.session.scheduling import Behind, in_turn
from tilescope_dashboard.topics.roofline import headline
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.elsewhere import Elsewhere, rows_of
from tilescope_dashboard.views.point_choices import PointChoices

_COLUMNS = {
    "impl": ("impl.", "text"),
    "workload": ("workload", "text"),
    "pass": ("pass", "text"),
    "kind": ("point", "text"),
    "level": ("level", "text"),
    "flops": ("operations needed", "flop"),
    "executed_ratio": ("executed / needed", "times"),
    "bytes": ("bytes", "byte"),
    "intensity": ("intensity", "flop/byte"),
    "performance": ("performance", "flop/second"),
    "gpu_time": ("GPU time", "second"),
    "fraction": ("of roofline", "ratio"),
    "function": ("launch", "text"),
    "sources": ("sources", "text"),
}
_NOTHING = html_text.heading("Roofline", "This run has no work or bytes of this kernel. Profile it to see them.")
_BYTES = {"algorithm_bytes_read", "requested_bytes_read", "dram_bytes_read"}


class Roofline(View):
    """The figure, its selectors, and one table row a point."""

    name_in_address, title = "roofline", "Roofline"

    def build(self) -> list[Any]:
        self._head, self._nowhere = html_text.pane(), Elsewhere(self.state)
        self._choices, self._chart = PointChoices(self._filter), chart()
        self._table = table(_COLUMNS, pagination="remote")
        self._table.param.watch(self._select_point, "selection")
        self._source, self._list = None, Behind(self._fill)
        self._body = pn.Column(
            self._choices, self._chart, self.saved(self._table, "points"), sizing_mode="stretch_width", margin=0
        )
        return [self._head, self._nowhere, self._body]

    def update(self) -> None:
        loaded = self.state.loaded
        rows = self.state.usual
        self._all = model.points(rows, loaded.run.device, loaded.run.kernels) if loaded else pd.DataFrame()
        self._body.visible = len(self._all) > 0
        if self._all.empty:
            self._head.object = _NOTHING
            self._nowhere.seek(rows_of(_BYTES))
            return
        self._nowhere.say("")
        self._marks = marks(self._all)
        self._choices.offer(self._all)
        self._draw()
        self._fill()

    def _filter(self) -> None:
        self._draw()
        self._list.due()

    def _draw(self) -> None:
        chosen = self._choices.of(self._all)
        self._points = self._all[chosen].reset_index(drop=True)
        self._head.object = headline(self._points)
        drawn = drawing(self._marks.where(chosen), all_roofs(self.state.device), self.state.look)
        shown = source(self._chart.draw(drawn))
        if shown is not None and shown is not self._source:
            shown.selected.on_change("indices", self._select_row)
        self._source = shown

    def _fill(self) -> None:
        points = self._points
        sources = zip(*(points[f"{what}_source"].tolist() for what in ("flops", "bytes", "time")), strict=True)
        said = pd.Series([", ".join(dict.fromkeys(filter(None, row))) for row in sources], dtype=object)
        integers = any(ceilings.unit(pipe) == "op/second" for pipe in points["pipe"].unique())
        self._table.rewrite(
            {"flops": "op", "performance": "op/second"} if integers else {"flops": "flop", "performance": "flop/second"}
        )
        # What all points share, the choices say: the last columns have its room.
        alike = [name for name in ("pass", "level", "function") if points[name].nunique(dropna=False) <= 1]
        if alike != self._table.hidden_columns:
            self._table.hidden_columns = alike
        fill(self._table, points.assign(sources=said, level=points["level"].map(LEVELS)))

    def _select_row(self, _: str, old: list[int], new: list[int]) -> None:
        self._list.now()
        rows = [int(self._source.data["row"][point]) for point in new]
        if rows != self._table.selection:
            self._table.selection = rows

    def _select_point(self, event: Any) -> None:
        if self._source is None:
            return
        points = np.flatnonzero(np.isin(self._source.data["row"], list(event.new))).tolist()
        if self._source.selected.indices != points:
            in_turn(partial(setattr, self._source.selected, "indices", points))
