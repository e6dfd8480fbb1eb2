"""Published claims, traffic bounds and measured speedups on one scale."""

from __future__ import annotations

import math

import pandas as pd
from bokeh.models import ColumnDataSource, CustomJS, FixedTicker, HoverTool, LegendItem
from bokeh.plotting import figure

from tilescope_dashboard.data.units import times
from tilescope_dashboard.figures.style import (
    Theme,
    blank,
    colour,
    distinct,
    empty,
    legend,
    mark,
    problem,
    ratio_ticks,
    ticks,
)

#: Columns of measured speedups, and what each is over.
_OVER = {"over_eager": "eager", "over_compile": "compile", "over_library": "aten"}


def claims(rows: pd.DataFrame, look: Theme) -> figure:
    """A row a kernel and pass of ``tilescope.models.claims.best``'s frame, on a logarithmic scale with a line at 1.

    A band is the claim. Each recorded size has a tick for the traffic bound, and a mark for the speedup over each other
    implementation.
    """
    if rows.empty:
        return empty(look, "claims", "No recorded time to compare the claims with.", 160)
    names = [problem(kernel, direction) for kernel, direction in zip(rows["kernel"], rows["pass"], strict=True)]
    places = distinct(names, 30)
    rows = rows.assign(row=[places[name] for name in names])
    plot = blank(
        look, "claims", 150 + 30 * rows["row"].nunique(), x_axis_type="log", x_range=_range(rows),
        y_range=list(dict.fromkeys(rows["row"]))[::-1], x_axis_location="above",
    )  # fmt: skip
    plot.xaxis.axis_label, plot.xaxis.formatter = "speedup", ticks("times")
    plot.xaxis.ticker = plot.xgrid.ticker = FixedTicker(ticks=ratio_ticks(*_range(rows)))
    plot.yaxis.major_label_text_color = look.ink
    plot.ray(x=1, y=0, angle=math.pi / 2, line_color=look.ink, line_dash=[6, 4], line_width=1.5)
    items = [
        _claimed(plot, rows[rows["claim_low"].notna()].drop_duplicates("row"), look),
        _bound(plot, rows[rows["bound"].notna()], look),
    ]
    for column, impl in _OVER.items():
        known = rows[rows[column].notna()]
        if len(known):
            items.append(
                _marks(plot, known.assign(x=known[column], clock=known[column.replace("over", "interval")]), impl, look)
            )
    # The figure is longer than a screen, so the legend stands above it.
    legend(plot, look, items, "above")
    return plot


def _claimed(plot: figure, known: pd.DataFrame, look: Theme) -> LegendItem:
    """A band from the least to the largest published figure; a thick line for a single one."""
    pairs = list(zip(known["claim_low"], known["claim_high"], strict=True))
    source = ColumnDataSource({
        "row": known["row"], "low": known["claim_low"], "high": known["claim_high"], "text": known["claim"],
        "where": known["claim_source"], "edge": [5.0 if low == high else 1.0 for low, high in pairs],
    })  # fmt: skip
    drawn = plot.hbar(
        "row", left="low", right="high", height=0.62, fill_color=look.muted, fill_alpha=0.3, line_color=look.muted,
        line_width="edge", source=source, name="claimed",
    )  # fmt: skip
    plot.add_tools(
        HoverTool(renderers=[drawn], tooltips=[("", "@row"), ("published claim", "@text"), ("in", "@where")])
    )
    return LegendItem(label="published claim", renderers=[drawn])


#: A vertical line. Of Bokeh's markers only the dash is a line, and a legend does not rotate it.
_TICK = """
    export default (args, obj, {ctx, i, r, visuals}) => {
        ctx.moveTo(0, -r)
        ctx.lineTo(0, r)
        visuals.line.apply(ctx, i)
    }
"""


def _bound(plot: figure, known: pd.DataFrame, look: Theme) -> LegendItem:
    """A tick at the traffic bound: the most that moving fewer bytes can win."""
    source = ColumnDataSource(
        {"row": known["row"], "x": known["bound"], "workload": known["workload"], "text": known["bound"].map(times)}
    )
    drawn = plot.scatter(
        "x", "row", marker="@tick", defs={"@tick": CustomJS(code=_TICK)}, size=22, line_color=look.ink, line_width=3,
        source=source, name="bound",
    )  # fmt: skip
    plot.add_tools(
        HoverTool(renderers=[drawn], tooltips=[("", "@row"), ("workload", "@workload"), ("traffic bound", "@text")])
    )
    return LegendItem(label="traffic bound", renderers=[drawn])


def _marks(plot: figure, known: pd.DataFrame, impl: str, look: Theme) -> LegendItem:
    """Marks of our measured speedup over one other implementation."""
    others = list(_OVER.values())
    source = ColumnDataSource(
        {
            **{name: known[name] for name in ("x", "row", "workload", "library")},
            "text": known["x"].map(times),
            "interval": known["clock"].map(times),
        }
    )
    drawn = plot.scatter(
        "x", "row", marker=mark(impl, others), size=11, color=colour(impl, look, others), source=source, name=impl
    )
    said = f"vs {'the library' if impl == 'aten' else impl}"
    of = [("library", "@library")] if impl == "aten" else []
    ratio = (said, "@text by GPU time, @interval by the interval")
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=[("", "@row"), ("workload", "@workload"), *of, ratio]))
    return LegendItem(label=said, renderers=[drawn])


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    known = rows[["claim_low", "claim_high", "bound", *_OVER]].stack()
    return min(0.7, known.min() / 1.2), max(2.0, known.max() * 1.2)
