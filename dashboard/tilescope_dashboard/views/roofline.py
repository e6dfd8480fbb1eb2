"""Roofline: the chosen kernel's points under the device's roofs, and a table that selects with them."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.hardware.roofs import all_roofs
from tilescope.models import roofline as model

from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.choice import BESIDE_FIELDS, Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.data.run_cache import kept
from tilescope_dashboard.figures.roofline import content, drawn, source
from tilescope_dashboard.figures.roofs import LEVELS
from tilescope_dashboard.session.scheduling import AfterPaint, next_tick
from tilescope_dashboard.topics import roofline as topic
from tilescope_dashboard.views.base import View

#: The choice of every workload, or every pass.
_ALL = "all"


class Roofline(View):
    """The figure, its selectors, and a table with a row for each point."""

    name_in_address, title, question = "roofline", "Roofline", Question(rows_of(topic.NEEDED))
    collectors = ("interpreter",)

    def build(self) -> list[Any]:
        self._columns = {"workload": Choice("workload", 210, self._pick), "pass": Choice("pass", 130, self._pick)}
        levels = {label: name for name, label in LEVELS.items()}
        self._levels = pmui.CheckButtonGroup(
            label="memory levels", options=levels, value=["hbm"], size="small", stylesheets=[BESIDE_FIELDS]
        )
        self._each = pmui.Switch(label="each launch", value=False)
        for widget in (self._levels, self._each):
            widget.param.watch(lambda _: self._filter(), "value")
        choices = pn.FlexBox(*self._columns.values(), self._levels, self._each, align_items="center", gap="6px")
        self.chart = chart()
        self._of: pd.DataFrame | None = None
        self.table = table(topic.COLUMNS, pagination="remote")
        self.table.param.watch(self._select_point, "selection")
        #: The data source of the figure's points; None where there are none.
        self.source: Any = None
        self._list = AfterPaint(self._tell)
        return [choices, self.chart, self.saved(self.table, "points")]

    def update(self) -> None:
        loaded, rows, anew = self.loaded, self.usual, self.elsewhere()
        if rows is not self._of:
            self._of, self._all = rows, pd.DataFrame()
            if loaded:
                points = partial(model.points, rows, loaded.run.device, loaded.run.kernels)
                self._all = kept(loaded, ("points", self.state.kernel), points)
        if self._all.empty:
            self.say_nothing(topic.NOTHING)
            return
        wanted = self.state.chosen.problem if self.state.chosen else (None, None)
        for (column, choice), value in zip(self._columns.items(), wanted, strict=True):
            found = list(dict.fromkeys(self._all[column]))
            first = found[0] if column == "pass" else _ALL
            choice.offer([_ALL, *found], value if value in found else first, anew=anew)
        self._choose()
        # The headline comes first, as it is the figure's text alternative when that is drawn.
        self._tell()
        self._draw()

    def _pick(self) -> None:
        workload, direction = (choice.value for choice in self._columns.values())
        if _ALL in (workload, direction):
            self._filter()
        else:
            self.choose(self._filter, workload=workload, direction=direction)

    def _filter(self) -> None:
        self._choose()
        self._draw()
        self._list.due()

    def _choose(self) -> None:
        held = {column: choice.value for column, choice in self._columns.items() if choice.value != _ALL}
        shown = topic.chosen(self._all, self._levels.value, self._each.value, held)
        self._points = self._all[shown].reset_index(drop=True)

    def _draw(self) -> None:
        shown = self.source
        self.chart.exchange(content(self._points, all_roofs(self.loaded_run.run.device), self.look), drawn)
        self.source = source(self.chart.object)
        if self.source is not None and self.source is not shown:
            self.source.selected.on_change("indices", self._select_row)

    def _tell(self) -> None:
        """Set the headline and the table to the drawn points."""
        look, case = self.look, self.state.standing
        self.say(topic.sentence(look.named(self._points), case and case._replace(impl=look.called(case.impl))))
        self.table.rewrite(topic.columns(self._points))
        # Leave out columns that the selectors already say, to give the others room.
        self.table.hide(topic.shared(self._points))
        self.table.fill(topic.listed(self._points))

    def _select_row(self, _: str, old: list[int], new: list[int]) -> None:
        self._list.now()
        self.table.choose(next((int(self.source.data["row"][point]) for point in new), None))

    def _select_point(self, event: Any) -> None:
        if self.source is None:
            return
        points = np.flatnonzero(np.isin(self.source.data["row"], list(event.new))).tolist()
        if self.source.selected.indices != points:
            next_tick(partial(setattr, self.source.selected, "indices", points))
