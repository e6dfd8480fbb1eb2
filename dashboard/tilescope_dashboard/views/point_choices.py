"""Selectors of a roofline's points: the workload, the pass, the memory levels, and whole calls or each launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard.figures.roofline import LEVELS
from tilescope_dashboard.topics.roofline import chosen as points_of
from tilescope_dashboard.views.choice import Choice

_ALL = "all"


class PointChoices(pn.viewable.Viewer):
    """Selectors over ``tilescope.models.roofline.points``; ``chosen`` is called when a person changed one."""

    def __init__(self, chosen: Callable[[], Any]) -> None:
        super().__init__()
        self._columns = {"workload": Choice("workload", 210, chosen), "pass": Choice("pass", 130, chosen)}
        self.levels = pmui.CheckButtonGroup(
            label="memory levels", options={v: k for k, v in LEVELS.items()}, value=["hbm"], size="small"
        )
        self.each = pmui.Switch(label="each launch", value=False)
        for widget in (self.levels, self.each):
            widget.param.watch(lambda _: chosen(), "value")
        widgets = [choice.widget for choice in self._columns.values()]
        self._layout = pn.FlexBox(*widgets, self.levels, self.each, align_items="center", gap="6px")

    def offer(self, points: pd.DataFrame) -> None:
        """Offer what the points have: at first every problem, and the first pass of them."""
        for column, choice in self._columns.items():
            found = list(dict.fromkeys(points[column]))
            choice.offer([_ALL, *found], found[0] if column == "pass" and found else _ALL)

    def of(self, points: pd.DataFrame) -> pd.Series:
        """Mask of the chosen points."""
        held = {column: choice.value for column, choice in self._columns.items() if choice.value != _ALL}
        return points_of(points, self.levels.value, self.each.value, held)

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
