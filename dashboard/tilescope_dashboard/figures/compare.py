"""The speedup of each case over its baseline, with its interval."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, FixedTicker, LegendItem
from bokeh.plotting import figure

from tilescope_dashboard.data.units import short
from tilescope_dashboard.figures.style import Theme, blank, empty, hover, legend, line_at, problem, ratio_ticks, ticks

#: Most rows that are drawn: nobody reads more.
MOST = 40
#: Columns of the baseline that labels tell apart by.
_BASELINE = ("kernel", "baseline_impl", "baseline_config", "baseline_run")
#: Marks by outcome: they differ in shape as well as in colour.
_MARKS = {"faster": "triangle", "slower": "inverted_triangle", "alike": "circle"}


def compare(rows: pd.DataFrame, look: Theme) -> figure:
    """A mark a case (``tilescope.models.compare.compare``'s frame) at its speedup, a bar for its interval, a line at 1.

    The scale is logarithmic. The first ``MOST`` cases with a speedup are drawn.
    """
    timed = rows[rows["speedup"].notna()].head(MOST)
    if timed.empty:
        return empty(look, "compare", "There are no times to compare.", 160)
    # The title and the table say what all rows share.
    varies = {name for name in _BASELINE if timed[name].nunique() > 1}
    labels = [_label(row, look, varies) for row in timed.to_dict("records")]
    # Two cases with equal shortened names stay two rows.
    names = [label + "\u200b" * labels[:place].count(label) for place, label in enumerate(labels)]
    low = timed["speedup_low"].where(timed["speedup_low"] > 0, timed["speedup"] / 2)
    high = timed["speedup_high"].where(timed["speedup_high"] < math.inf, timed["speedup"] * 2)
    ends = (min(0.9, low.min() / 1.05), max(1.1, high.max() * 1.05))
    height = 130 + (36 if look.narrow and varies else 24) * len(names)
    plot = blank(look, "compare", height, x_axis_type="log", y_range=names[::-1], x_range=ends)
    said = "speedup vs baseline"
    plot.xaxis.axis_label, plot.xaxis.formatter = said, ticks("times")
    plot.xaxis.ticker = plot.xgrid.ticker = FixedTicker(ticks=ratio_ticks(*ends, most=5 if look.narrow else 8))
    plot.yaxis.major_label_text_color = look.ink
    line_at(plot, look, 1)
    colours = {"slower": look.warning, "faster": look.accent, "alike": look.muted}
    speedups = zip(timed["speedup"], low, high, strict=True)
    data = pd.DataFrame({
        "row": names, "speedup": timed["speedup"].to_numpy(), "low": low.to_numpy(), "high": high.to_numpy(),
        "verdict": timed["verdict"].to_numpy(),
        "said": [f"{speedup:.3f} ({least:.3f} to {most:.3f})" for speedup, least, most in speedups],
    })  # fmt: skip
    items = []
    for verdict, marker in _MARKS.items():
        some = data[data["verdict"] == verdict]
        if len(some):
            source = ColumnDataSource(some)
            plot.segment("low", "row", "high", "row", source=source, line_color=colours[verdict], line_width=3)
            drawn = plot.scatter(
                "speedup", "row", source=source, marker=marker, size=11, color=colours[verdict], name=verdict
            )
            hover(plot, drawn, [("", "@row"), (said, "@said")])
            items.append(LegendItem(label=verdict, renderers=[drawn]))
    legend(plot, look, items)
    return plot


def _label(row: Mapping[Any, Any], look: Theme, varies: Collection[str]) -> str:
    """The label of a comparison: the case, and what ``varies`` of its baseline. A narrow page has that in a second line."""
    case = f"{problem('', row['pass'])} {row['workload']}".strip()
    told = {**row, "baseline_impl": look.called(row["baseline_impl"])}
    baseline = [str(told[name]) for name in _BASELINE[:-1] if name in varies]
    if _BASELINE[-1] in varies and row["run"] != row["baseline_run"]:
        baseline.append(f"in {row['baseline_run'][-4:]}")
    limit, apart = (20, "\n") if look.narrow else (46, " ")
    return apart.join(short(part, limit) for part in (case, " ".join(filter(None, baseline))) if part)
