"""Occupancy: what a multiprocessor could hold, one resource at a time, on any GPU."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel_material_ui as pmui
from tilescope import occupancy as model

from tilescope_dashboard import frames, words
from tilescope_dashboard.charts import chart, side_by_side
from tilescope_dashboard.figures.occupancy import TITLES, occupancy
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.units import write
from tilescope_dashboard.views.base import View

_COLUMNS = {
    "impl": ("impl.", "text"),
    "pass": ("pass", "text"),
    "workload": ("workload", "text"),
    "launch_text": ("launch", "text"),
    "registers": ("registers", "count"),
    "shared_memory": ("shared memory (B)", "byte"),
    "block_threads": ("threads", "count"),
    "occupancy": ("theoretical", "ratio"),
    "achieved_occupancy": ("achieved", "ratio"),
    "limiter": ("limited by", "text"),
    "active_blocks": ("blocks per SM", "count"),
    "source": ("source", "text"),
}


class Occupancy(View):
    """Three curves for the launch chosen in the table below them."""

    name_in_address, title = "occupancy", "Occupancy"

    def build(self) -> list[Any]:
        self._target = pmui.Select(label="GPU", options=list(model.LIMITS), width=150, size="small")
        self._head = words.pane()
        self._charts = {resource: chart() for resource in TITLES}
        self._table = table(_COLUMNS)
        self._rows, self._settled = pd.DataFrame(), True
        self._target.param.watch(lambda _: self._settled and self._fill(self._target.value), "value")
        self._table.param.watch(lambda _: self._settled and self._draw(), "selection")
        grid = side_by_side(self._charts.values(), 310)
        return [self._head, self._target, grid, self.saved(self._table, "launches")]

    def update(self) -> None:
        device = self.state.device
        own = device.target.rstrip("af") if device else ""
        self._fill(own if own in model.LIMITS else self._target.value)

    def _fill(self, target: str) -> None:
        # These widgets are watched: the charts are drawn once, when all of them stand.
        self._settled = False
        self._target.value = target
        rows = frames.occupancies(frames.default_configs(self.state.table), self._target.value)
        self._rows = rows.sort_values("impl", key=lambda c: c != "triton", kind="stable", ignore_index=True)
        fill(
            self._table, self._rows.assign(launch_text=self._rows["function"].where(self._rows["function"] != "", "–"))
        )
        if len(self._rows):
            self._table.selection = [0]
        self._settled = True
        self._draw()

    def _draw(self) -> None:
        look, target = self.state.look, self._target.value
        chosen = self._table.selection[0] if self._table.selection else 0
        if self._rows.empty:
            say = "No launch of this kernel has its registers known in this run: run the compiler collector."
            self._head.object = words.heading("Occupancy", say)
            for place in self._charts.values():
                place.object = None
            return
        row = self._rows.iloc[chosen].to_dict()
        self._head.object = words.heading(
            f"{write(row['occupancy'], 'ratio')} occupancy, limited by {row['limiter']}",
            f"{row['function'] or row['impl']} ({row['impl']}, {row['workload']}, {row['pass']}) on {target}: "
            f"{row['active_blocks']:.0f} blocks of {row['block_threads']:.0f} threads fit on one multiprocessor. "
            "Hollow marks are theory, filled ones were measured; each curve changes one resource and keeps the others.",
        )
        for resource, place in self._charts.items():
            value = row["block_threads"] / 32 if resource == "warps" else row[resource]
            own = self.state.device is not None and self.state.device.target.rstrip("af") == target
            point = {**row, "value": value, "achieved": row["achieved_occupancy"] if own else None}
            place.object = occupancy(frames.occupancy_curve(row, target, resource), point, resource, look)
