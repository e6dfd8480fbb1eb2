"""A launch's shares of the hardware's peaks, as bars."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import GLYPH_FONT, Theme, blank, empty, heading, ticks

_NOTHING = "No run on this GPU has hardware counters of this case: profile it with cupti or ncu."


def speed_of_light(shares: pd.DataFrame, parts: Sequence[str], look: Theme) -> figure:
    """A bar for each of ``parts`` in the rows of ``topics.summary.speed_of_light``. Other parts are named as not measured."""
    if shares.empty:
        return empty(look, "speed-of-light", _NOTHING, 120)
    top = max(1.0, float(shares["share"].max()))
    plot = blank(look, "speed-of-light", 250, x_range=Range1d(0, 1.18 * top), y_range=list(parts)[::-1])
    plot.xaxis.formatter, plot.xaxis.ticker = ticks("ratio"), FixedTicker(ticks=[0, 0.25, 0.5, 0.75, 1])
    plot.ygrid.grid_line_color = None
    plot.yaxis.major_label_text_color = look.ink
    drawn = plot.hbar(
        y="part", right="share", height=0.56, color=look.accent, name="shares",
        source=ColumnDataSource({
            "part": shares["part"].tolist(), "share": shares["share"].tolist(), "said": shares["said"].tolist(),
            "text": [write(value, "ratio") for value in shares["share"]],
        }),
    )  # fmt: skip
    absent = [part for part in parts if part not in set(shares["part"])]
    written = {
        "y": [*shares["part"], *absent],
        "x": [*shares["share"], *[0.0] * len(absent)],
        "text": [*(write(value, "ratio") for value in shares["share"]), *["not recorded"] * len(absent)],
    }
    plot.text(
        "x", "y", "text", source=ColumnDataSource(written), x_offset=6, text_baseline="middle", text_color=look.ink,
        text_font=GLYPH_FONT, text_font_size="12px", name="values",
    )  # fmt: skip
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=[("", "@part: @text"), ("", "@said")]))
    heading(plot, look, "Speed of light: share of peak")
    return plot
