"""Roofline: the chosen kernel's points under the device's roofs, and a table that selects with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import panel as pn
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline as model
from tilescope.runs.store import LoadedRun

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.data.run_cache import kept
from tilescope_dashboard.figures.roofline import roofline, source
from tilescope_dashboard.session.scheduling import AfterPaint, next_tick
from tilescope_dashboard.topics import roofline as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.point_choices import PointChoices


class Roofline(View):
    """The figure, its selectors, and a table with a row for each point."""

    name_in_address, title, question = "roofline", "Roofline", Question(rows_of(topic.NEEDED))

    def build(self) -> list[Any]:
        self._choices, self._chart = PointChoices(self._filter, self._pick), chart()
        self._of: pd.DataFrame | None = None
        self._table = table(topic.COLUMNS, pagination="remote")
        self._table.param.watch(self._select_point, "selection")
        self._source: Any = None
        self._list = AfterPaint(self._tell)
        self._body = pn.Column(
            self._choices, self._chart, self.saved(self._table, "points"), sizing_mode="stretch_width", margin=0
        )
        return [self._body]

    def update(self) -> None:
        loaded, rows = self.loaded, self.usual
        if rows is not self._of:
            self._of = rows
            self._all = pd.DataFrame()
            if loaded:
                self._all = kept(loaded, ("points", self.state.kernel), partial(_points, loaded, rows))
        self._body.visible = len(self._all) > 0
        if self._all.empty:
            self._head.object = html_text.heading(*topic.NOTHING)
            return
        self._choices.offer(self._all, self.state.chosen, anew=self.elsewhere())
        self._chosen = self._choices.of(self._all)
        # The headline comes first, as it is the figure's text alternative when that is drawn.
        self._tell()
        self._draw()

    def _pick(self, **parts: str) -> None:
        self.choose(self._filter, **parts)

    def _filter(self) -> None:
        self._chosen = self._choices.of(self._all)
        self._draw()
        self._list.due()

    def _draw(self) -> None:
        points = self._all[self._chosen].reset_index(drop=True)
        self._chart.object = roofline(points, all_roofs(self.loaded_run.run.device), self.look)
        self._source = source(self._chart.object)
        if self._source is not None:
            self._source.selected.on_change("indices", self._select_row)

    def _tell(self) -> None:
        """Set the headline and the table to the drawn points."""
        points = self._all[self._chosen].reset_index(drop=True)
        self._head.object = html_text.heading(*topic.sentence(points, self.state.standing))
        self._table.rewrite(topic.columns(points))
        # Leave out columns that the selectors already say, to give the others room.
        shared = topic.shared(points)
        if shared != self._table.hidden_columns:
            self._table.hidden_columns = shared
        fill(self._table, topic.listed(points))

    def _select_row(self, _: str, old: list[int], new: list[int]) -> None:
        self._list.now()
        rows = [int(self._source.data["row"][point]) for point in new]
        self._table.choose(rows)

    def _select_point(self, event: Any) -> None:
        if self._source is None:
            return
        points = np.flatnonzero(np.isin(self._source.data["row"], list(event.new))).tolist()
        if self._source.selected.indices != points:
            next_tick(partial(setattr, self._source.selected, "indices", points))


def _points(loaded: LoadedRun, rows: pd.DataFrame) -> pd.DataFrame:
    return model.points(rows, loaded.run.device, loaded.run.kernels)
