"""HBM traffic: what fusing saves in bytes, and whether the time follows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
import panel_material_ui as pmui
from tilescope import traffic as model

from tilescope_dashboard import frames, words
from tilescope_dashboard.charts import chart
from tilescope_dashboard.figures.style import heading
from tilescope_dashboard.figures.traffic import speedup, traffic
from tilescope_dashboard.headlines.traffic import headline
from tilescope_dashboard.tables import fill, table
from tilescope_dashboard.views.base import View

_COLUMNS = {
    "impl": ("impl.", "text"),
    "number": ("launch", "count"),
    "read": ("read (B)", "byte"),
    "written": ("written (B)", "byte"),
    "over": ("of the floor", "times"),
    "source": ("source", "text"),
    "function": ("function", "text"),
}
_GAINS = {
    "impl": ("impl.", "text"),
    "bytes": ("bytes", "byte"),
    "baseline_bytes": ("eager's bytes", "byte"),
    "predicted": ("predicted", "times"),
    "gpu_time": ("GPU time", "second"),
    "actual": ("actual", "times"),
    "time_source": ("time from", "text"),
}
_COUNTED = {"ncu": "measured (ncu)", "interpreter": "predicted (interpreter)"}


class Traffic(View):
    """Bars, speed-ups and their tables for one workload and pass."""

    name_in_address, title = "traffic", "HBM traffic"

    def build(self) -> list[Any]:
        self._filling = False
        self._head, self._bars, self._gains = words.pane(), chart(), chart()
        self._table, self._gain_table = table(_COLUMNS), table(_GAINS)
        self._problem = pmui.Select(label="workload", options={}, size="small", width=280)
        self._counted = pmui.Select(label="bytes", options={}, size="small", width=220)
        for widget in (self._problem, self._counted):
            widget.param.watch(lambda _: self._filling or self._draw(), "value")
        choices = pn.FlexBox(self._problem, self._counted, gap="6px")
        return [
            self._head, choices, self._bars, self.saved(self._table, "launches"), self._gains,
            self.saved(self._gain_table, "speedup"),
        ]  # fmt: skip

    def update(self) -> None:
        self._filling = True
        rows = frames.default_configs(self.state.table)
        self._launches, self._speedups = model.traffic(rows), model.speedup(rows)
        counted = self._launches[self._launches["source"] != "model"]
        problems = counted[["workload", "pass"]].drop_duplicates().to_dict("records")
        options = {f"{p['workload']} · {p['pass']}": (p["workload"], p["pass"]) for p in problems}
        largest = frames.largest_problem(rows)
        first = largest if largest in options.values() else next(iter(options.values()), None)
        self._problem.param.update(options=options, value=first)
        sources = [s for s in _COUNTED if s in set(counted["source"])]
        self._counted.param.update(options={_COUNTED[s]: s for s in sources}, value=sources[0] if sources else None)
        for widget in (self._problem, self._counted):
            widget.visible = bool(options)
        self._filling = False
        self._draw()

    def _draw(self) -> None:
        workload, direction = self._problem.value or ("", "")
        here = self._launches[(self._launches["workload"] == workload) & (self._launches["pass"] == direction)]
        floor = here[["floor_read", "floor_written"]].sum(axis=1, min_count=2).min() if len(here) else float("nan")
        floor = None if pd.isna(floor) else float(floor)
        bars = here[here["source"] != "model"]
        # An implementation that this source did not see is shown as another one saw it, and marked so.
        chosen = bars["source"].eq(self._counted.value)
        seen = set(bars.loc[chosen, "impl"])
        bars = bars[chosen | ~bars["impl"].isin(seen)].reset_index(drop=True)
        number = bars["launch"].astype("float64") + 1
        over = (bars["read"] + bars["written"]) / (floor or float("nan"))
        gains = self._speedups
        gains = gains[(gains["workload"] == workload) & (gains["pass"] == direction)].reset_index(drop=True)
        self._head.object = headline(bars, gains, floor)
        look = self.state.look
        self._bars.object = traffic(bars, floor, look)
        fill(self._table, bars.assign(number=number, over=over))
        figure = speedup(gains, look)
        heading(figure, look, "What the bytes predict, and what the clock says")
        self._gains.object = figure
        fill(self._gain_table, gains)
