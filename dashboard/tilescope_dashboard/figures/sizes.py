"""Bytes or operations a second over the size of the problem: a line an implementation."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from bokeh.models import ColumnDataSource, HoverTool, LegendItem, Range1d, Span
from bokeh.plotting import figure

from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.style import (
    GLYPH_FONT,
    Theme,
    blank,
    colour,
    empty,
    legend,
    mark,
    place,
    ticks,
)  # fmt: skip

_NOTHING = "Nothing was timed on this GPU whose work is known."
#: By a rate's unit: what the axis counts, and its name.
_SCALES = {"byte/second": (1e9, "GB/s"), "flop/second": (1e12, "TFLOP/s"), "op/second": (1e12, "TOP/s")}
_TOOLTIPS = [("", "@said"), ("rate", "@rate"), ("GPU time", "@time"), ("from", "@origin")]


class Frame(NamedTuple):
    """What the points are drawn in: the rate's unit, what a size counts, in words, the roof and its name, and the chosen size."""

    unit: str
    work: str
    roof: tuple[float, str] | None = None
    at: float | None = None


def sizes(rows: pd.DataFrame, frame: Frame, look: Theme) -> figure:
    """A mark a row of ``topics.sizes.sizes``, a bar for its range, and lines over sizes of one implementation and dtype.

    The most frequent dtype's marks are filled, those of the others hollow. The roof is a dashed line.
    """
    if rows.empty:
        return empty(look, "sizes", _NOTHING, 220)
    scale, name = _SCALES[frame.unit]
    top = 1.08 * max(rows["rate_high"].max(), frame.roof[0] if frame.roof else 0) / scale
    least, most = rows["size"].min(), rows["size"].max()
    room = max(1.25, (most / least) ** 0.04)
    plot = blank(
        look, "sizes", 420, x_axis_type="log", x_range=Range1d(least / room, most * room), y_range=Range1d(0, top)
    )
    plot.xaxis.axis_label, plot.yaxis.axis_label = frame.work, name
    plot.xaxis.formatter = ticks("byte" if frame.unit.startswith("byte") else "decimal")
    plot.yaxis.formatter = ticks("count")
    plot.yaxis.ticker.desired_num_ticks = 6
    if frame.roof:
        _draw_roof(plot, frame.roof, scale, least / room, look)
    if frame.at is not None:
        plot.add_layout(
            Span(location=frame.at, dimension="height", line_color=look.muted, line_dash="dotted", line_width=1.5)
        )
    impls = sorted(rows["impl"].unique(), key=lambda impl: (place(impl, rows["impl"]), impl))
    usual = rows["dtype"].mode()[0]
    items = []
    for impl in impls:
        of = rows[rows["impl"] == impl]
        drawn = [_draw(plot, some, frame, look, impls, hollow=dtype != usual) for dtype, some in of.groupby("dtype")]
        items.append(
            LegendItem(label=short(impl, 22), renderers=[_key(plot, mark(impl, impls), colour(impl, look, impls))])
        )
        plot.add_tools(HoverTool(renderers=drawn, tooltips=_TOOLTIPS))
    others = [dtype for dtype in rows["dtype"].unique() if dtype != usual]
    if others:
        for label, fill in ((usual, look.muted), (", ".join(others), look.ground)):
            items.append(LegendItem(label=label, renderers=[_key(plot, "circle", look.muted, fill)]))
    legend(plot, look, items)
    return plot


def _draw_roof(plot: figure, roof: tuple[float, str], scale: float, left: float, look: Theme) -> None:
    value, name = roof[0] / scale, roof[1]
    plot.add_layout(Span(location=value, dimension="width", line_color=look.ink, line_dash=[6, 4], line_width=1.5))
    plot.text(
        [left], [value], [f"{name}, {value:,.4g} {plot.yaxis.axis_label}"], x_offset=6, y_offset=-4,
        text_color=look.muted, text_font=GLYPH_FONT, text_font_size="12px", name="roof",
    )  # fmt: skip


def _draw(plot: figure, some: pd.DataFrame, frame: Frame, look: Theme, impls: list[str], *, hollow: bool) -> object:
    """Points of one implementation and dtype, and the line through the fastest of those alike in size."""
    impl, scale = str(some["impl"].iloc[0]), _SCALES[frame.unit][0]
    shade = colour(impl, look, impls)
    best = some.loc[some.groupby("size")["rate"].idxmax()].sort_values("size")
    plot.line(
        best["size"].to_numpy(), best["rate"].to_numpy() / scale, color=shade, line_width=2,
        line_dash=[5, 4] if hollow else "solid", name="lines",
    )  # fmt: skip
    source = ColumnDataSource(_columns(some, frame.unit, scale))
    plot.segment("x", "low", "x", "high", source=source, color=shade, line_width=2, name="ranges")
    return plot.scatter(
        "x", "y", source=source, marker=mark(impl, impls), size=10, line_color=shade, line_width=2,
        fill_color=look.ground if hollow else shade, name="points",
    )  # fmt: skip


def _key(plot: figure, marker: str, shade: str, fill: str = "") -> object:
    """A mark for the legend alone."""
    return plot.scatter(
        [float("nan")], [0], size=10, marker=marker, line_color=shade, line_width=2, fill_color=fill or shade
    )


def _columns(some: pd.DataFrame, unit: str, scale: float) -> dict[str, list]:
    rates = zip(some["rate"], some["rate_low"], some["rate_high"], strict=True)
    named = zip(some["impl"], some["workload"], some["size"], strict=True)
    return {
        "x": some["size"].tolist(),
        "y": (some["rate"] / scale).tolist(),
        "low": (some["rate_low"] / scale).tolist(),
        "high": (some["rate_high"] / scale).tolist(),
        "said": [f"{impl} on {workload}, {write(size, unit.partition('/')[0])}" for impl, workload, size in named],
        "rate": [f"{write(value, unit)} ({write(low, unit)} to {write(high, unit)})" for value, low, high in rates],
        "time": [write(value, "second") for value in some["gpu_time"]],
        "origin": some["origin"].tolist(),
    }
