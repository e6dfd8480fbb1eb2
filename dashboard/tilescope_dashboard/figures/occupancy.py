"""Theoretical occupancy against one resource, with the kernel's own point and its limiter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, colour, empty, hover, line_at, mark, write_on

TITLES = {
    "registers": "registers per thread",
    "shared_memory": "shared memory per block",
    "warps": "warps per block",
}


def occupancy(
    curve: pd.DataFrame, point: Mapping[str, Any] | None, resource: str, look: Theme, height: int = 290
) -> figure:
    """Occupancy (0 to 1) against ``resource`` as steps; ``curve`` has ``value``, ``occupancy`` and ``limiter``.

    ``point`` is the kernel's: ``value``, ``occupancy`` (theoretical, hollow), ``achieved`` (measured, filled; may be
    None), ``limiter`` and ``impl``.
    """
    title = TITLES[resource]
    if curve.empty:
        return empty(look, f"occupancy-{resource}", f"The {title} of this launch are unknown.", height)
    span = (float(curve["value"].min()), float(curve["value"].max()))
    # Leave room for a mark at an end.
    room = 0.04 * (span[1] - span[0])
    in_bytes = resource == "shared_memory"
    plot = blank(
        look, f"occupancy-{resource}", height, x=title, y="occupancy", x_unit="kibibyte" if in_bytes else "", y_unit="ratio",
        x_range=Range1d(span[0] - room, span[1] + room), y_range=Range1d(0, 1.12), min_border_bottom=60,
    )  # fmt: skip
    plot.yaxis.ticker = [0, 0.25, 0.5, 0.75, 1]
    if in_bytes:
        plot.xaxis.ticker = list(range(0, int(span[1]) + 1, 65536 if span[1] > 131072 else 32768))
    else:
        plot.xaxis.ticker.desired_num_ticks = 5
    source = ColumnDataSource({"x": curve["value"], "y": curve["occupancy"], "limiter": curve["limiter"]})
    plot.step("x", "y", source=source, mode="after", line_color=look.muted, line_width=2, name="curve")
    steps = plot.scatter("x", "y", source=source, size=8, alpha=0, hover_alpha=0.9, hover_color=look.ink)
    tips = [(title, "@x{0,0}"), ("occupancy", "@y{0 %}"), ("limited by", "@limiter")]
    hover(plot, steps, tips, mode="vline")
    if point and point.get("value") is not None:
        _draw_point(plot, point, "byte" if in_bytes else "count", curve, look)
    return plot


#: Largest fraction of the figure's width that the point's label takes.
_LABEL = 0.4


def _draw_point(plot: figure, point: Mapping[str, Any], unit: str, curve: pd.DataFrame, look: Theme) -> None:
    shade, shape = colour(point["impl"], look), mark(point["impl"])
    line_at(plot, look, point["value"], line_color=shade, line_dash=[2, 4], line_width=1)
    plot.scatter(
        [point["value"]], [point["occupancy"]], marker=shape, size=14, fill_color=look.ground, line_color=shade,
        line_width=2.5, name="theoretical",
    )  # fmt: skip
    if not pd.isna(point.get("achieved")):
        plot.scatter([point["value"]], [point["achieved"]], marker=shape, size=11, color=shade, name="achieved")
    low, high = curve["value"].min(), curve["value"].max()
    right = point["value"] > (low + high) / 2
    # Put the label above the curve where the curve rises beside the point.
    away = (curve["value"] - point["value"]) * (-1 if right else 1)
    beside = curve.loc[away.between(0, _LABEL * (high - low)), "occupancy"]
    write_on(
        plot, look, [point["value"]], [min(max([point["occupancy"], *beside]), 1.0)],
        [f"{write(point['value'], unit)} → {write(point['occupancy'], 'ratio')}"],
        text_align="right" if right else "left", x_offset=-12 if right else 12, y_offset=-6, text_baseline="bottom",
        text_font_style="bold", background_fill_color=look.ground, background_fill_alpha=0.85,
    )  # fmt: skip
