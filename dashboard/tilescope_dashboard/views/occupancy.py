"""Occupancy: blocks that an SM could hold, over one resource at a time, on any GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.hardware import occupancy as model

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures.occupancy import TITLES, occupancy
from tilescope_dashboard.topics import occupancy as topic
from tilescope_dashboard.views.base import View


class Occupancy(View):
    """Three curves for the launch chosen in the table below them."""

    name_in_address, title, question = "occupancy", "Occupancy", Question(rows_of(topic.NEEDED))

    def build(self) -> list[Any]:
        self._target = pmui.Select(label="GPU", options=list(model.LIMITS), width=150, size="small")
        self._charts = {resource: chart() for resource in TITLES}
        self._table = table(topic.COLUMNS)
        self._of: tuple[Any, ...] = ()
        self._rows, self._settled = pd.DataFrame(), True
        self._target.param.watch(lambda _: self._settled and self._fill(), "value")
        self._table.param.watch(lambda _: self._settled and self._pick(), "selection")
        self._body = pn.Column(
            self._target, side_by_side(self._charts.values(), 310), self.saved(self._table, "launches"),
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        return [self._body]

    def update(self) -> None:
        # A change of theme keeps the chosen GPU and launch.
        if self._of == (self.loaded, self.state.kernel):
            self._settled = False
            self._mark()
            self._settled = True
            self._draw()
            return
        self._of = (self.loaded, self.state.kernel)
        self._settled = False
        own = self._own()
        self._target.value = own if own in model.LIMITS else self._target.value
        self._settled = True
        self._fill()

    def _own(self) -> str:
        """The architecture of the run."""
        return self.loaded.run.device.target.rstrip("af") if self.loaded else ""

    def _fill(self) -> None:
        # The table's selection is watched: set it last, so that the charts are drawn once.
        self._settled = False
        self._rows = topic.listed(self.usual, self._target.value)
        fill(self._table, self._rows)
        if len(self._rows):
            self._table.choose([0])
        self._mark(anew=True)
        self._settled = True
        self._draw()

    def _mark(self, *, anew: bool = False) -> None:
        """Choose the first launch of the chosen case, if another case was chosen elsewhere, or ``anew``."""
        case = self.state.chosen
        if not (self.elsewhere() or anew) or case is None:
            return
        of_case = (self._rows[OF_KERNEL] == list(case)).all(axis="columns").to_numpy().nonzero()[0]
        row = self._rows[OF_KERNEL].iloc[next(iter(self._table.selection), 0)] if len(of_case) else ()
        if len(of_case) and tuple(row) != tuple(case):
            self._table.choose([int(of_case[0])])

    def _pick(self) -> None:
        """Take the launch that a person chose, and its case for all views."""
        if not self._table.selection:
            self._draw()
            return
        row = self._rows[OF_KERNEL].iloc[self._table.selection[0]]
        self.choose(self._draw, **dict(zip(KernelCase._fields, row, strict=True)))

    def _draw(self) -> None:
        self._body.visible = len(self._rows) > 0
        if self._rows.empty:
            self._head.object = html_text.heading(*topic.NOTHING)
            return
        look, target = self.look, self._target.value
        row = self._rows.iloc[next(iter(self._table.selection), 0)].to_dict()
        self._head.object = html_text.heading(*topic.sentence(row, target))
        for resource, place in self._charts.items():
            point = topic.point(row, resource, measured=self._own() == target)
            place.object = occupancy(topic.curve(row, target, resource), point, resource, look)
