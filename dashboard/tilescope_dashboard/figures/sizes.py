"""Bandwidth or operation rate over the problem size, a line for each implementation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, Range1d, Span
from bokeh.plotting import figure

from tilescope_dashboard.data.units import ranged, write
from tilescope_dashboard.figures import style

_NOTHING = "No size whose work is known was timed on this GPU."
#: The axis' scale and unit by a rate's unit.
_SCALES = {"byte/second": (1e12, "TB/s"), "flop/second": (1e12, "Tflop/s"), "op/second": (1e12, "TOP/s")}


class Rate(NamedTuple):
    """A rate to draw: its column of ``tilescope.models.summary``, its unit, and a text on what the sizes count."""

    column: str
    unit: str
    work: str

    @property
    def unit_of_size(self) -> str:
        return self.unit.partition("/")[0]


def sizes(
    rows: pd.DataFrame, rate: Rate, roof: tuple[float, str] | None, look: style.Theme, chosen: float | None = None
) -> figure:
    """A mark a row of ``topics.sizes.sizes``, a bar for its range, and lines over sizes of one implementation and dtype.

    The most frequent dtype's marks are large, those of the others small. The ``roof``, with its name, is a dashed line; the ``chosen``
    size a dotted one.
    """
    if rows.empty:
        return style.empty(look, "sizes", _NOTHING, 220)
    scale, name = _SCALES[rate.unit]
    top = 1.08 * max(rows["rate_high"].max(), roof[0] if roof else 0) / scale
    least, most = rows["size"].min(), rows["size"].max()
    room = max(1.25, (most / least) ** 0.04)
    plot = style.blank(
        look, "sizes", x=rate.work, y=name, x_unit="byte" if rate.unit_of_size == "byte" else "decimal", y_unit="count",
        x_axis_type="log", x_range=Range1d(least / room, most * room), y_range=Range1d(0, top),
    )  # fmt: skip
    plot.yaxis.ticker.desired_num_ticks = 6
    if roof:
        height = roof[0] / scale
        plot.add_layout(Span(location=height, dimension="width", line_color=look.ink, line_dash=[6, 4], line_width=1.5))
        style.write_on(
            plot, look, [least / room], [height], [f"{roof[1]}, {write(roof[0], rate.unit)}"], x_offset=6, y_offset=-4,
            text_color=look.muted, text_baseline="bottom", name="roof",
        )  # fmt: skip
    if chosen is not None:
        style.line_at(plot, look, chosen, line_color=look.muted, line_dash="dotted")
    usual = rows["dtype"].mode()[0]
    impls = sorted(rows["impl"].unique(), key=lambda impl: (style.place(impl, rows["impl"]), impl))
    shades = {impl: style.colour(impl, look, impls) for impl in impls}
    marks = {impl: style.mark(impl, impls) for impl in impls}
    # Draw Triton's last, so that it is seen where another is as fast.
    rows = rows.sort_values("impl", key=lambda impl: impl.eq("triton"), kind="stable")
    # A hollow mark means predicted elsewhere.
    small = rows["dtype"].ne(usual)
    # Use few renderers: each has five glyphs, which the page waits for.
    _draw_lines(plot, rows.assign(small=small), scale, shades)
    line = rows["impl"].map(shades)
    source = ColumnDataSource(
        _columns(look.named(rows), rate.unit, scale).assign(
            line=line, mark=rows["impl"].map(marks), size=np.where(small, 6, 10)
        )
    )
    plot.segment("x", "low", "x", "high", source=source, color="line", line_width=2, name="ranges")
    points = plot.scatter(
        "x", "y", source=source, marker="mark", size="size", color="line", name="points",
    )  # fmt: skip
    style.hover(plot, points, [("", "@said"), ("rate", "@rate"), ("GPU time", "@time"), ("from", "@origin")])
    lines = style.keys_of(impls, look)
    if small.any():
        others = ", ".join(dtype for dtype in rows["dtype"].unique() if dtype != usual)
        lines += [
            style.Key(f"large: {usual}", "circle", look.muted, look.muted),
            style.Key(f"small: {others}", "circle", look.muted, look.muted, size=6),
        ]
    style.keys(plot, look, lines)
    return plot


def _draw_lines(plot: figure, rows: pd.DataFrame, scale: float, shades: dict[str, str]) -> None:
    """A line for each implementation and dtype, through the fastest point of each size."""
    best = rows.loc[rows.groupby(["impl", "dtype", "size"])["rate"].idxmax()].sort_values("size")
    lines: dict[str, list[Any]] = {"x": [], "y": [], "line": [], "dash": []}
    for (impl, _), some in sorted(best.groupby(["impl", "dtype"]), key=lambda group: group[0][0] == "triton"):
        lines["x"].append(some["size"].tolist())
        lines["y"].append((some["rate"] / scale).tolist())
        lines["line"].append(shades[impl])
        lines["dash"].append("dashed" if some["small"].iloc[0] else "solid")
    plot.multi_line(
        "x", "y", source=ColumnDataSource(lines), line_color="line", line_dash="dash", line_width=2, name="lines"
    )


def _columns(some: pd.DataFrame, unit: str, scale: float) -> pd.DataFrame:
    named = zip(some["impl"], some["workload"], some["size"], strict=True)
    return pd.DataFrame({
        "x": some["size"], "y": some["rate"] / scale, "low": some["rate_low"] / scale, "high": some["rate_high"] / scale,
        "said": [f"{impl} on {workload}, {write(size, unit.partition('/')[0])}" for impl, workload, size in named],
        "rate": [ranged(unit, *row) for row in some[["rate", "rate_low", "rate_high"]].itertuples(index=False)],
        "time": [write(value, "second") for value in some["gpu_time"]],
        "origin": some["origin"],
    })  # fmt: skip
