"""What is claimed, what the bytes allow and what was measured, on one scale of speed ratios."""

from __future__ import annotations

import math

import pandas as pd
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, LegendItem
from bokeh.plotting import figure

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
from tilescope_dashboard.units import times

#: The frame's columns of measured speed ratios, and whose time ours is held against.
_OVER = {"over_eager": "eager", "over_compile": "compile", "over_library": "aten"}


def claims(rows: pd.DataFrame, look: Theme) -> figure:
    """A row a kernel and pass (``tilescope.claims.claims``'s frame): a band for the claim, a bar for what the bytes
    allow, a mark for the measured speed over each other implementation. The scale is logarithmic, equal speed a line.
    """
    if rows.empty:
        return empty(look, "claims", "Nothing is recorded to hold the claims against.", 160)
    names = [problem(kernel, direction) for kernel, direction in zip(rows["kernel"], rows["pass"], strict=True)]
    places = distinct(names, 30)
    rows = rows.assign(row=[places[name] for name in names])
    plot = blank(
        look, "claims", 150 + 30 * len(rows), x_axis_type="log", x_range=_range(rows),
        y_range=list(dict.fromkeys(rows["row"]))[::-1],
    )  # fmt: skip
    plot.xaxis.axis_label, plot.xaxis.formatter = "times as fast as the other", ticks("times")
    plot.xaxis.ticker = plot.xgrid.ticker = FixedTicker(ticks=ratio_ticks(*_range(rows)))
    plot.yaxis.major_label_text_color = look.ink
    plot.ray(x=1, y=0, angle=math.pi / 2, line_color=look.ink, line_dash=[6, 4], line_width=1.5)
    claimed, bounded = rows[rows["claim_low"].notna()], rows[rows["bound"].notna()]
    band = plot.hbar(
        claimed["row"], left=claimed["claim_low"], right=claimed["claim_high"], height=0.62, color=look.muted, alpha=0.3
    )
    bound = plot.scatter(
        bounded["bound"], bounded["row"], marker="dash", angle=math.pi / 2, size=22, line_color=look.ink, line_width=3
    )
    items = [LegendItem(label="people say", renderers=[band]), LegendItem(label="bytes allow", renderers=[bound])]
    for column, impl in _OVER.items():
        known = rows[rows[column].notna()]
        if len(known):
            items.append(_marks(plot, known.assign(x=known[column]), impl, look))
    legend(plot, look, items)
    return plot


def _marks(plot: figure, known: pd.DataFrame, impl: str, look: Theme) -> LegendItem:
    """Our measured speed over one other implementation, and its place in the legend."""
    others = list(_OVER.values())
    source = ColumnDataSource(
        {"x": known["x"], "row": known["row"], "workload": known["workload"], "text": known["x"].map(times)}
    )
    drawn = plot.scatter(
        "x", "row", marker=mark(impl, others), size=11, color=colour(impl, look, others), source=source, name=impl
    )
    said = f"over {'the library' if impl == 'aten' else impl}"
    plot.add_tools(HoverTool(renderers=[drawn], tooltips=[("", "@row"), ("workload", "@workload"), (said, "@text")]))
    return LegendItem(label=said, renderers=[drawn])


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    known = rows[["claim_low", "claim_high", "bound", *_OVER]].stack()
    return min(0.7, known.min() / 1.2), max(2.0, known.max() * 1.2)
