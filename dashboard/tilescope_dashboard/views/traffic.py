"""HBM traffic: what fusing saves in bytes, and whether the time follows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import panel as pn
from tilescope.models import traffic as model

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import fill, table
from tilescope_dashboard.data import frames
from tilescope_dashboard.figures.style import heading
from tilescope_dashboard.figures.traffic import speedup, traffic
from tilescope_dashboard.topics.traffic import NOTHING, headline
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.choice import Choice
from tilescope_dashboard.views.elsewhere import Elsewhere, rows_of

_COLUMNS = {
    "impl": ("impl.", "text"),
    "number": ("launch", "count"),
    "read": ("read (B)", "byte"),
    "written": ("written (B)", "byte"),
    "over": ("vs minimum", "times"),
    "source": ("source", "text"),
    "function": ("function", "text"),
}
_GAINS = {
    "impl": ("impl.", "text"),
    "bytes": ("bytes", "byte"),
    "baseline_bytes": ("eager's bytes", "byte"),
    "bytes_source": ("bytes from", "text"),
    "predicted": ("predicted", "times"),
    "gpu_time": ("GPU time", "second"),
    "actual": ("actual", "times"),
    "time_source": ("time from", "text"),
}
_COUNTED = {"ncu": "measured (ncu)", "interpreter": "predicted (interpreter)"}
_BYTES = {name for choices in model.BYTES.values() for pair in choices for name in pair}


class Traffic(View):
    """Bars, speed-ups and their tables for one workload and pass."""

    name_in_address, title = "traffic", "HBM traffic"

    def build(self) -> list[Any]:
        self._head, self._nowhere, self._bars, self._gains = html_text.pane(), Elsewhere(self.state), chart(), chart()
        self._table, self._gain_table = table(_COLUMNS), table(_GAINS)
        self._problem, self._counted = Choice("workload", 280, self._draw), Choice("bytes", 220, self._draw)
        self._body = pn.Column(
            pn.FlexBox(self._problem.widget, self._counted.widget, gap="6px"), self._bars,
            self.saved(self._table, "launches"), self._gains, self.saved(self._gain_table, "speedup"),
            sizing_mode="stretch_width", margin=0,
        )  # fmt: skip
        return [self._head, self._nowhere, self._body]

    def update(self) -> None:
        rows = self.state.usual
        self._launches, self._speedups = model.traffic(rows), model.speedup(rows)
        counted = self._launches[self._launches["source"] != "model"]
        problems = counted[["workload", "pass"]].drop_duplicates().itertuples(index=False, name=None)
        options = {f"{workload} · {direction}": (workload, direction) for workload, direction in problems}
        largest = frames.largest_problem(rows)
        self._problem.offer(options, largest if largest in options.values() else next(iter(options.values()), None))
        sources = {said: source for source, said in _COUNTED.items() if source in set(counted["source"])}
        self._counted.offer(sources, next(iter(sources.values()), None))
        self._body.visible = bool(options)
        if options:
            self._nowhere.say("")
            self._draw()
        else:
            self._head.object = NOTHING
            self._nowhere.seek(rows_of(_BYTES))

    def _draw(self) -> None:
        workload, direction = self._problem.value
        here = self._launches[(self._launches["workload"] == workload) & (self._launches["pass"] == direction)]
        floor = here[["floor_read", "floor_written"]].sum(axis=1, min_count=2).min()
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
