"""Published claims, traffic ratios and measured speedups on one scale."""

from __future__ import annotations

import pandas as pd
from bokeh.models import ColumnDataSource, CustomJS, FixedTicker, LegendItem
from bokeh.plotting import figure

from tilescope_dashboard.data.units import times
from tilescope_dashboard.figures import style

#: Columns of measured speedups, and what each is over.
_OVER = {"over_eager": "eager", "over_compile": "compile", "over_library": "aten"}


def claims(rows: pd.DataFrame, look: style.Theme) -> figure:
    """A row a kernel and pass of ``tilescope.models.claims.best``'s frame, on a logarithmic scale with a line at 1.

    A band is the claim. Each recorded size has a tick for the traffic ratio, and a mark for the speedup over each other
    implementation.
    """
    if rows.empty:
        return style.empty(look, "claims", "No recorded time to compare the claims with.", 160)
    names = [style.problem(kernel, direction) for kernel, direction in zip(rows["kernel"], rows["pass"], strict=True)]
    places = style.distinct(names, 30)
    rows = rows.assign(row=[places[name] for name in names])
    ends = _range(rows)
    plot = style.blank(
        look, "claims", 150 + 30 * rows["row"].nunique(), x="speedup", x_unit="times", x_axis_type="log", x_range=ends,
        y_range=list(dict.fromkeys(rows["row"]))[::-1], x_axis_location="above",
    )  # fmt: skip
    plot.xaxis.ticker = plot.xgrid.ticker = FixedTicker(ticks=style.ratio_ticks(*ends))
    plot.yaxis.major_label_text_color = look.ink
    style.line_at(plot, look, 1)
    items = [
        _claimed(plot, rows[rows["claim_low"].notna()].drop_duplicates("row"), look),
        _bound(plot, rows[rows["bound"].notna()], look),
        *(_marks(plot, rows, column, look) for column in _OVER if rows[column].notna().any()),
    ]
    # The figure is longer than a screen, so the legend stands above it.
    style.legend(plot, look, items, "above")
    return plot


def _claimed(plot: figure, known: pd.DataFrame, look: style.Theme) -> LegendItem:
    """A band from the least to the largest published figure; a thick line for a single one."""
    edges = [5.0 if low == high else 1.0 for low, high in zip(known["claim_low"], known["claim_high"], strict=True)]
    shown = known[["row", "claim_low", "claim_high", "claim", "claim_source"]].assign(edge=edges)
    drawn = plot.hbar(
        "row", left="claim_low", right="claim_high", height=0.62, fill_color=look.muted, fill_alpha=0.3,
        line_color=look.muted, line_width="edge", source=ColumnDataSource(shown), name="claimed",
    )  # fmt: skip
    style.hover(plot, drawn, [("", "@row"), ("published claim", "@claim"), ("in", "@claim_source")])
    return LegendItem(label="published claim", renderers=[drawn])


#: A vertical line. Of Bokeh's markers only the dash is a line, and a legend does not rotate it.
_TICK = """
    export default (args, obj, {ctx, i, r, visuals}) => {
        ctx.moveTo(0, -r)
        ctx.lineTo(0, r)
        visuals.line.apply(ctx, i)
    }
"""


def _bound(plot: figure, known: pd.DataFrame, look: style.Theme) -> LegendItem:
    """A tick at the traffic ratio: what moving fewer bytes wins by itself."""
    source = ColumnDataSource(known[["row", "bound", "workload"]].assign(text=known["bound"].map(times)))
    drawn = plot.scatter(
        "bound", "row", marker="@tick", defs={"@tick": CustomJS(code=_TICK)}, size=22, line_color=look.ink, line_width=3,
        source=source, name="bound",
    )  # fmt: skip
    style.hover(plot, drawn, [("", "@row"), ("workload", "@workload"), ("traffic ratio", "@text")])
    return LegendItem(label="traffic ratio", renderers=[drawn])


def _marks(plot: figure, rows: pd.DataFrame, column: str, look: style.Theme) -> LegendItem:
    """Marks of our measured speedup over one other implementation."""
    impl, others, known = _OVER[column], list(_OVER.values()), rows[rows[column].notna()]
    clock = known[column.replace("over", "interval")]
    shown = known[["row", "workload", "library"]].assign(
        x=known[column], text=known[column].map(times), interval=clock.map(times)
    )
    drawn = plot.scatter(
        "x", "row", marker=style.mark(impl, others), size=11, color=style.colour(impl, look, others), source=ColumnDataSource(shown), name=impl,
    )  # fmt: skip
    said = f"vs {'the library' if impl == 'aten' else look.called(impl)}"
    of = [("library", "@library")] if impl == "aten" else []
    ratio = (said, "@text by GPU time, @interval by the interval")
    style.hover(plot, drawn, [("", "@row"), ("workload", "@workload"), *of, ratio])
    return LegendItem(label=said, renderers=[drawn])


def _range(rows: pd.DataFrame) -> tuple[float, float]:
    known = rows[["claim_low", "claim_high", "bound", *_OVER]].stack()
    return min(0.7, known.min() / 1.2), max(2.0, known.max() * 1.2)
