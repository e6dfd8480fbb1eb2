"""Occupancy: blocks that an SM could hold, over one resource at a time, on any GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd
from tilescope.hardware import occupancy as model

from tilescope_dashboard.components.charts import chart, side_by_side
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data.kernel_cases import OF_KERNEL, KernelCase
from tilescope_dashboard.data.recordings import Question, rows_of
from tilescope_dashboard.figures.occupancy import TITLES, occupancy
from tilescope_dashboard.topics import occupancy as topic
from tilescope_dashboard.views.base import View


class Occupancy(View):
    """Three curves for the launch chosen in the table below them."""

    name_in_address, title, question = "occupancy", "Occupancy", Question(rows_of(topic.NEEDED))
    collectors = ("compiler",)

    def build(self) -> list[Any]:
        targets = list(model.LIMITS)
        self._target = Choice("GPU", 150, self._fill, options=targets, value=targets[0])
        self._charts = {resource: chart(310) for resource in TITLES}
        self.table = table(topic.COLUMNS)
        self.table.picked = self._pick
        self._of: tuple[Any, ...] = ()
        self.rows = pd.DataFrame()
        return [self._target, side_by_side(self._charts.values()), self.saved(self.table, "launches")]

    def update(self) -> None:
        # A change of theme keeps the chosen GPU and launch.
        if self._of == (self.loaded, self.state.kernel):
            self._mark()
            self._draw()
            return
        self._of = (self.loaded, self.state.kernel)
        own = self._own()
        self._target.offer(self._target.options, own if own in model.LIMITS else self._target.value, anew=True)
        self._fill()

    def _own(self) -> str:
        """The architecture of the run."""
        return self.loaded.run.device.target.rstrip("af") if self.loaded else ""

    def _fill(self) -> None:
        self.rows = topic.listed(self.usual, self._target.value)
        self.table.fill(self.rows)
        if len(self.rows):
            self.table.choose(0)
        self._mark(anew=True)
        self._draw()

    def _mark(self, *, anew: bool = False) -> None:
        """Choose the first launch of the chosen case, if another case was chosen elsewhere, or ``anew``."""
        case = self.state.chosen
        if not (self.elsewhere() or anew) or case is None:
            return
        of_case = (self.rows[OF_KERNEL] == list(case)).all(axis="columns").to_numpy().nonzero()[0]
        if len(of_case) and (self.table.chosen or 0) not in of_case:
            self.table.choose(int(of_case[0]))

    def _pick(self, place: int | None) -> None:
        """Take the launch that a user chose, and its case for all views."""
        if place is None:
            self._draw()
            return
        row = self.rows[OF_KERNEL].iloc[place]
        self.choose(self._draw, **dict(zip(KernelCase._fields, row, strict=True)))

    def _draw(self) -> None:
        if self.rows.empty:
            self.say_nothing(topic.NOTHING)
            return
        target, row = self._target.value, self.rows.iloc[self.table.chosen or 0].to_dict()
        self.say(topic.sentence({**row, "impl": self.look.called(row["impl"])}, target))
        for resource, place in self._charts.items():
            point = topic.point(row, resource, measured=self._own() == target)
            place.object = occupancy(topic.curve(row, target, resource), point, resource, self.look)
