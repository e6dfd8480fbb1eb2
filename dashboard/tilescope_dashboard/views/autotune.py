"""Autotune: a sweep's configs over two parameters, the others as selectors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard import command_line, frames, sweeps, words
from tilescope_dashboard.charts import chart
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.headlines.autotune import headline, nothing
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.views.base import View

_BEST = "best of all"
_COLUMNS = {
    "time": ("time", "second"),
    "registers": ("registers", "count"),
    "shared_memory": ("shared memory (B)", "byte"),
    "spills": ("spills (B)", "byte"),
    "theoretical_occupancy": ("occupancy", "ratio"),
    "sources": ("from", "text"),
    "reason": ("failure", "text"),
}


class Autotune(View):
    """A heatmap of one sweep and the table of its configs."""

    name_in_address, title = "autotune", "Autotune"

    def build(self) -> list[Any]:
        self._head = words.pane()
        self._sweep, self._colouring, self._across, self._down = (
            pmui.Select(label=label, options=[], width=width, size="small")
            for label, width in (("sweep", 280), ("colour by", 210), ("across", 150), ("down", 150))
        )
        self._others = pn.FlexBox(sizing_mode="stretch_width", gap="4px")
        self._chart, self._table = chart(), pn.Column(sizing_mode="stretch_width", margin=0)
        self._all, self._rows, self._filling = pd.DataFrame(), table(_COLUMNS), False
        for widget in (self._sweep, self._across, self._down):
            widget.param.watch(self._chosen, "value")
        self._colouring.param.watch(self._chosen, "value")
        choices = pn.FlexBox(self._sweep, self._colouring, self._across, self._down, gap="4px")
        return [self._head, choices, self._others, self._chart, self._table]

    def _chosen(self, event: Any) -> None:
        # While the selectors are being filled, one of them names what another does not have yet.
        if not self._filling:
            self._draw() if event.obj is self._colouring else self._choose_others()

    def update(self) -> None:
        self._filling = True
        failures = self.state.loaded.run.failures if self.state.loaded else ()
        self._all = frames.configs(self.state.table, [f for f in failures if self.state.kernel in f.case])
        found = list(dict.fromkeys(sweeps.names(self._all)))
        self._sweep.param.update(options=found, value=next(iter(found), None))
        known = {label: c for c, (label, _, _) in frames.COLOURINGS.items() if self._all[c].notna().any()}
        colouring = sweeps.telling(self._all, known.values())
        self._colouring.param.update(options=known, value=colouring)
        names = sweeps.by_influence(self._all, frames.parameters(self._all), colouring)
        self._across.param.update(options=names, value=names[0] if names else None)
        self._down.param.update(options=names, value=names[1] if len(names) > 1 else names[0] if names else None)
        for widget in (self._sweep, self._colouring, self._across, self._down):
            widget.visible = bool(names)
        # A column a parameter: every kernel has its own.
        self._rows = table({**{name: (name, "count") for name in names}, **_COLUMNS})
        self._table.objects = [self.saved(self._rows, "configs")]
        self._filling = False
        self._choose_others()

    def _choose_others(self) -> None:
        held = [n for n in frames.parameters(self._all) if n not in (self._across.value, self._down.value)]
        self._others.objects = [
            pmui.Select(
                label=n, options=[_BEST, *map(str, sorted(self._all[n].dropna().unique()))], width=150, size="small"
            )
            for n in held
        ]
        for widget in self._others.objects:
            widget.param.watch(lambda _: self._draw(), "value")
        self._draw()

    def _draw(self) -> None:
        label, unit, less = frames.COLOURINGS.get(self._colouring.value, ("", "count", True))
        cells, across, down = self._all, self._across.value, self._down.value
        if cells.empty or not across or not self._colouring.value:
            state = self.state
            command, implementations = command_line.about(state, "tune"), state.facts.get("implementations", {})
            self._head.object = nothing(state.kernel, implementations, command, form=state.may_launch)
            shown = pd.DataFrame()
        else:
            held = {widget.label: widget.value for widget in self._others.objects if widget.value != _BEST}
            cells = sweeps.ranked(cells, self._sweep.value, held, self._colouring.value, less)
            shown = sweeps.over(cells, across, down)
            self._head.object = headline(cells, shown, label, unit)
        self._chart.visible = self._table.visible = len(shown) > 0
        self._chart.object = autotune(shown, across or "", down or "", unit, self.state.look)
        fill(self._rows, sweeps.with_sources(cells))
