"""Autotune: a sweep's configs over two parameters, the others as selectors."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard import frames, words
from tilescope_dashboard.figures.autotune import autotune
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.units import write
from tilescope_dashboard.views.base import View, chart

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
        sweeps = (
            self._all[["impl", "pass", "workload"]].drop_duplicates().apply(" · ".join, axis=1)
            if len(self._all)
            else []
        )
        self._sweep.param.update(options=list(sweeps), value=next(iter(sweeps), None))
        known = {label: c for c, (label, _, _) in frames.COLOURINGS.items() if self._all[c].notna().any()}
        self._colouring.param.update(options=known, value=next(iter(known.values()), None))
        names = frames.parameters(self._all)
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
            self._head.object = words.heading("Autotune", "Every config of a kernel, measured or compiled.")
            self._chart.object = autotune(pd.DataFrame(), "", "", unit, self.state.look)
            self._fill(cells)
            return
        cells = cells[cells[["impl", "pass", "workload"]].apply(" · ".join, axis=1) == self._sweep.value]
        for widget in self._others.objects:
            if widget.value != _BEST:
                cells = cells[cells[widget.label].astype(str) == widget.value]
        cells = cells.assign(value=cells[self._colouring.value]).sort_values(
            "value", ascending=less, na_position="last", ignore_index=True
        )
        best = cells.iloc[0] if len(cells) and pd.notna(cells["value"].iloc[0]) else None
        shown = cells.drop_duplicates([across, down]).assign(
            best=lambda c: c["value"] == (best["value"] if best is not None else 0)
        )
        failed = int((cells["reason"] != "").sum())
        self._head.object = words.heading(
            f"Best {label}: {write(best['value'], unit)}" if best is not None else f"No config has a known {label}",
            (best["config"].replace(",", ", ") + ". " if best is not None else "")
            + f"{len(cells)} configs" + (f", {failed} failed (hatched: hover to see why)." if failed else ".")
            + (" Each cell is the best over the parameters not held." if len(shown) < len(cells) else ""),
        )  # fmt: skip
        self._chart.object = autotune(shown, across, down, unit, self.state.look)
        self._fill(cells)

    def _fill(self, cells: pd.DataFrame) -> None:
        sources = cells[["time_source", "code_source"]].apply(
            lambda row: "; ".join(str(s) for s in row if pd.notna(s) and s), axis=1, result_type="reduce"
        )
        fill(self._rows, cells.assign(sources=sources.astype(object)))
