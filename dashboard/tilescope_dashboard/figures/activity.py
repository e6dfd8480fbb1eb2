"""Activity over a launch's time: a line for each unit of the chip, as a strip above the lanes."""

from __future__ import annotations

import pandas as pd
from bokeh.models import ColumnDataSource, LegendItem
from bokeh.plotting import figure

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, hover, legend
from tilescope_dashboard.figures.timeline import time_axis

_DASHES = ("solid", "dashed", "dotted")


def activity(samples: pd.DataFrame, look: Theme) -> figure:
    """``samples`` are rows of ``topics.activity.of_case``."""
    plot = blank(
        look, "activity", 210, x="time after the launch began", y="share of peak", x_unit="second", y_unit="ratio", y_range=(0, 1.05)
    )  # fmt: skip
    time_axis(plot, samples["time"].max())
    plot.yaxis.ticker = [0, 0.5, 1]
    items = []
    for number, (unit, own) in enumerate(samples.groupby("unit", sort=False)):
        texts = {"at": [write(v, "second") for v in own["time"]], "used": [write(v, "ratio") for v in own["share"]]}
        source = ColumnDataSource({"time": own["time"], "share": own["share"], "unit": own["unit"], **texts})
        style = {"line_color": look.series[number], "line_dash": _DASHES[number], "line_width": 1.8}
        drawn = plot.line("time", "share", source=source, name="activity", **style)
        items.append(LegendItem(label=str(unit), renderers=[drawn]))
    hover(plot, [item.renderers[0] for item in items], [("", "@unit"), ("at @at:", "@used")], mode="vline", limit=None)
    legend(plot, look, items)
    return plot
