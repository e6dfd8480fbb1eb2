"""Selectors of a sweep, the two parameters it is drawn over, and the values of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope.models import sweeps

from tilescope_dashboard.components import layout
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.topics import autotune as topic

_BEST = "best of all"


class ConfigChoices(layout.Part):
    """Selectors; ``chosen`` is called when a user changed one, ``sweep_chosen`` when it is the sweep's.

    The parameters that are not drawn have a selector each; a button shows those on which the cost depends least.
    """

    def __init__(self, chosen: Callable[[], Any], sweep_chosen: Callable[[], Any]) -> None:
        super().__init__()
        self._chosen, self._cells = chosen, pd.DataFrame()
        self._sweep, self._colouring = Choice("sweep", 300, sweep_chosen), Choice("colour by", 160, chosen)
        self._across, self._down = Choice("across", 140, self._choose), Choice("down", 140, self._choose)
        wide: dict[str, Any] = {"sizing_mode": "stretch_width", "gap": "4px", "margin": (6, 0, 0, 0)}
        self.others, self.aside = pn.FlexBox(gap="4px", sizing_mode=None), pn.FlexBox(visible=False, **wide)
        look = [".MuiToggleButton-root { height: 36px; white-space: nowrap; }"]
        self.more = pmui.Toggle(label="", size="small", margin=(10, 10, 4, 10), visible=False, stylesheets=look)
        self.more.param.watch(self._unfold, "value")
        first = (self._sweep, self._colouring, self._across, self._down)
        self.layout = layout.column(layout.beside(*first, self.others, self.more), self.aside)

    @property
    def sweep(self) -> str:
        """The chosen one of ``sweeps.names``."""
        return str(self._sweep.value)

    @property
    def colouring(self) -> Any:
        """The column of ``sweeps.COLOURINGS`` by which the configs are coloured and ranked; None where none is known."""
        return self._colouring.value

    @property
    def across(self) -> str:
        """The parameter along the columns."""
        return str(self._across.value)

    @property
    def down(self) -> str:
        """The parameter along the rows; the same one where only one varies."""
        return str(self._down.value)

    @property
    def held(self) -> dict[str, str]:
        """The parameters held at one value, instead of taking the best over all values."""
        every = [*self.others.objects, *self.aside.objects]
        return {widget.label: widget.value for widget in every if widget.value != _BEST}

    def fill(self, cells: pd.DataFrame) -> list[str]:
        """Offer the columns of ``cells`` (from ``sweeps.configs``), the most influential first. Returns the parameters that vary."""
        self._cells = cells
        found = list(dict.fromkeys(sweeps.names(cells)))
        self._sweep.offer(found, next(iter(found), None))
        known = topic.colourings(cells)
        self._colouring.offer(known, topic.most_telling(cells, known.values()))
        names = topic.axes(cells, self.colouring)
        self._across.offer(names, next(iter(names), None))
        self._down.offer(names, next(iter(names[1:] or names), None))
        self._hold()
        return names

    def go(self, sweep: str) -> None:
        """Choose the sweep with this name, if there is one."""
        found = list(dict.fromkeys(sweeps.names(self._cells)))
        if sweep in found:
            self._sweep.offer(found, sweep, anew=True)

    def _choose(self) -> None:
        self._hold()
        self._chosen()

    def _hold(self) -> None:
        """A selector for each varying parameter that is not an axis."""
        held = [n for n in sweeps.parameters(self._cells) if n not in (self.across, self.down)]
        parts = topic.set_aside(self._cells, self.sweep, self.colouring, held) if self.colouring else (held, [])
        for place, names in zip((self.others, self.aside), parts, strict=True):
            place.objects = [self._selector(name) for name in names]
        count = len(self.aside.objects)
        self.more.param.update(label=f"{count} more parameters", visible=count > 0)
        self._unfold()

    def _selector(self, name: str) -> Choice:
        values = map(str, sorted(self._cells[name].dropna().unique()))
        return Choice(name, 140, self._chosen, options=[_BEST, *values], value=_BEST)

    def _unfold(self, *_: Any) -> None:
        self.aside.visible = self.more.value and self.more.visible
