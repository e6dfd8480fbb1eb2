"""Selectors of a roofline's points: the workload, the pass, the memory levels, and whole calls or each launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.choice import BESIDE_FIELDS, Choice
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.figures.roofs import LEVELS
from tilescope_dashboard.topics.roofline import chosen as points_of

_ALL = "all"


class PointChoices(layout.Part):
    """Selectors over ``tilescope.models.roofline.points``. ``chosen`` is called when a user changed one that shows other points;
    ``picked`` with the workload and the pass when both name one problem.
    """

    def __init__(self, chosen: Callable[[], Any], picked: Callable[..., Any]) -> None:
        super().__init__()
        self._chosen, self._picked = chosen, picked
        self._columns = {"workload": Choice("workload", 210, self._pick), "pass": Choice("pass", 130, self._pick)}
        levels = {label: name for name, label in LEVELS.items()}
        self._levels = pmui.CheckButtonGroup(
            label="memory levels", options=levels, value=["hbm"], size="small", stylesheets=[BESIDE_FIELDS]
        )
        self._each = pmui.Switch(label="each launch", value=False)
        for widget in (self._levels, self._each):
            widget.param.watch(lambda _: chosen(), "value")
        self.layout = pn.FlexBox(*self._columns.values(), self._levels, self._each, align_items="center", gap="6px")

    def offer(self, points: pd.DataFrame, case: KernelCase | None = None, *, anew: bool = False) -> None:
        """Offer what the points have: at first the ``case``'s problem, else every one, and the first pass of them.

        ``anew``, also where a user has picked others.
        """
        wanted = case.problem if case else (None, None)
        for (column, choice), value in zip(self._columns.items(), wanted, strict=True):
            found = list(dict.fromkeys(points[column]))
            first = found[0] if column == "pass" and found else _ALL
            choice.offer([_ALL, *found], value if value in found else first, anew=anew)

    def _pick(self) -> None:
        workload, direction = (self._columns[column].value for column in ("workload", "pass"))
        if _ALL in (workload, direction):
            self._chosen()
        else:
            self._picked(workload=workload, direction=direction)

    def of(self, points: pd.DataFrame) -> pd.Series:
        """Mask of the chosen points."""
        held = {column: choice.value for column, choice in self._columns.items() if choice.value != _ALL}
        return points_of(points, self._levels.value, self._each.value, held)
