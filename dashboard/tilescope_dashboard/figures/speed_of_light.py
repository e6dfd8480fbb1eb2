"""A launch's shares of the hardware's peaks, as bars."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from bokeh.models import ColumnDataSource, FixedTicker, HBar, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, heading, hover, write_on


def speed_of_light(shares: pd.DataFrame, parts: Sequence[str], look: Theme) -> figure:
    """A bar for each of ``parts`` in the rows of ``topics.summary.speed_of_light``. Other parts are named as not measured."""
    top = max(1.0, float(shares["share"].max()))
    plot = blank(
        look, "speed-of-light", 250, x_unit="ratio", named_rows=True, x_range=Range1d(0, 1.18 * top),
        y_range=list(parts)[::-1],
    )  # fmt: skip
    plot.xaxis.ticker = FixedTicker(ticks=[0, 0.25, 0.5, 0.75, 1])
    bars = HBar(y="part", right="share", height=0.56, fill_color=look.accent, line_color=look.accent)
    said = [write(value, "ratio") for value in shares["share"]]
    bar = {name: shares[name].tolist() for name in ("part", "share", "said")}
    drawn = plot.add_glyph(ColumnDataSource(bar | {"text": said}), bars, name="shares")
    known = dict(zip(shares["part"], shares["share"], strict=True))
    texts = [write(known[part], "ratio") if part in known else "not recorded" for part in parts]
    written = ColumnDataSource({"y": list(parts), "x": [known.get(part, 0.0) for part in parts], "text": texts})
    write_on(plot, look, "x", "y", "text", source=written, x_offset=6, name="values")
    hover(plot, drawn, [("", "@part: @text"), ("", "@said")])
    heading(plot, look, "Share of peak")
    return plot
