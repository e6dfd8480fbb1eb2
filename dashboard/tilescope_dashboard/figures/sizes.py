"""Bandwidth or operation rate over the problem size, a line for each implementation."""

from __future__ import annotations

from typing import Any, NamedTuple

import pandas as pd
from bokeh.core.properties import value
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
#: The axis' scale and unit by a rate's unit.
_SCALES = {"byte/second": (1e9, "GB/s"), "flop/second": (1e12, "Tflop/s"), "op/second": (1e12, "TOP/s")}
_TOOLTIPS = [("", "@said"), ("rate", "@rate"), ("GPU time", "@time"), ("from", "@origin")]


class Frame(NamedTuple):
    """The frame of the points: the rate's unit, the label of sizes, the roof with its name, and the chosen size."""

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
    usual = rows["dtype"].mode()[0]
    impls = sorted(rows["impl"].unique(), key=lambda impl: (place(impl, rows["impl"]), impl))
    shades = {impl: colour(impl, look, impls) for impl in impls}
    marks = {impl: mark(impl, impls) for impl in impls}
    # Draw Triton's last, so that it is seen where another is as fast.
    rows = rows.sort_values("impl", key=lambda impl: impl.eq("triton"), kind="stable")
    hollow = rows["dtype"].ne(usual)
    # Use few renderers: each has five glyphs, which the page waits for.
    _draw_lines(plot, rows.assign(hollow=hollow), scale, shades)
    line = rows["impl"].map(shades)
    drawn = _columns(rows, frame.unit, scale) | {
        "line": line.tolist(), "fill": line.mask(hollow, look.ground).tolist(), "mark": rows["impl"].map(marks).tolist(),
    }  # fmt: skip
    source = ColumnDataSource(drawn)
    plot.segment("x", "low", "x", "high", source=source, color="line", line_width=2, name="ranges")
    points = _scatter(plot, source, "points")
    plot.add_tools(HoverTool(renderers=[points], tooltips=_TOOLTIPS))
    keys = [(short(impl, 22), marks[impl], shades[impl], shades[impl]) for impl in impls]
    if hollow.any():
        others = ", ".join(dtype for dtype in rows["dtype"].unique() if dtype != usual)
        keys += [(usual, "circle", look.muted, look.muted), (others, "circle", look.muted, look.ground)]
    labels, *looks = zip(*keys, strict=True)
    nowhere = {"x": [float("nan")] * len(keys), "y": [0] * len(keys)}
    key = _scatter(plot, ColumnDataSource(nowhere | dict(zip(("mark", "line", "fill"), looks, strict=True))), "keys")
    legend(plot, look, [LegendItem(label=value(label), renderers=[key], index=at) for at, label in enumerate(labels)])
    return plot


def _draw_roof(plot: figure, roof: tuple[float, str], scale: float, left: float, look: Theme) -> None:
    height, name = roof[0] / scale, roof[1]
    plot.add_layout(Span(location=height, dimension="width", line_color=look.ink, line_dash=[6, 4], line_width=1.5))
    plot.text(
        [left], [height], [f"{name}, {height:,.4g} {plot.yaxis.axis_label}"], x_offset=6, y_offset=-4,
        text_color=look.muted, text_font=GLYPH_FONT, text_font_size="12px", name="roof",
    )  # fmt: skip


def _draw_lines(plot: figure, rows: pd.DataFrame, scale: float, shades: dict[str, str]) -> None:
    """A line for each implementation and dtype, through the fastest point of each size."""
    best = rows.loc[rows.groupby(["impl", "dtype", "size"])["rate"].idxmax()].sort_values("size")
    lines: dict[str, list[Any]] = {"x": [], "y": [], "line": [], "dash": []}
    for (impl, _), some in sorted(best.groupby(["impl", "dtype"]), key=lambda group: group[0][0] == "triton"):
        lines["x"].append(some["size"].tolist())
        lines["y"].append((some["rate"] / scale).tolist())
        lines["line"].append(shades[impl])
        lines["dash"].append("dashed" if some["hollow"].iloc[0] else "solid")
    plot.multi_line(
        "x", "y", source=ColumnDataSource(lines), line_color="line", line_dash="dash", line_width=2, name="lines"
    )


def _scatter(plot: figure, source: ColumnDataSource, name: str) -> Any:
    return plot.scatter(
        "x", "y", source=source, marker="mark", size=10, line_color="line", line_width=2, fill_color="fill", name=name
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
