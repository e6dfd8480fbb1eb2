"""The lanes of one program: a row for each warp, a bar for each span in the colour of its kind, and arrows between warps."""

from __future__ import annotations

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, LegendItem
from bokeh.plotting import figure
from tilescope.collectors.lanes import records, trace

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, empty, hover, legend
from tilescope_dashboard.figures.timeline import along_time, reduced

#: Most spans with a bar of their own, and most arrows: the longest waits'.
MOST, MOST_ARROWS = 12_000, 400
_ROW = 26
_HOVER = [
    ("", "@lane"),
    ("line @line:", "@name"),
    ("waits for", "@awaits"),
    ("start", "@start_text"),
    ("duration", "@duration_text"),
]


def lanes(spans: pd.DataFrame, arrows: pd.DataFrame, look: Theme) -> figure:
    """``spans`` are rows of ``tilescope.models.lanes.program``, ``arrows`` those of ``tilescope.models.lanes.arrows``.

    If there is a boolean column ``chosen``, other spans are pale. Above ``MOST`` spans, the short ones share grey bars.
    """
    if spans.empty:
        return empty(look, "inside", "This run has no lanes of this kernel.")
    spans = spans.assign(chosen=spans.get("chosen", True), impl=spans["lane"], duration=spans["end"] - spans["start"])
    rows = list(dict.fromkeys(spans["lane"]))
    plot = along_time(look, "inside", rows, spans["end"].max(), x="time after the program began")
    singles, shared = reduced(spans, MOST)
    items = []
    if len(shared):
        drawn = plot.hbar(
            y="impl", left="left", right="right", height=0.3, fill_color=look.muted, fill_alpha=0.35, line_color=None,
            source=ColumnDataSource(shared), name="shared",
        )  # fmt: skip
        items.append(LegendItem(label="short spans, together", renderers=[drawn]))
    bars = [_bars(plot, singles[singles["kind"] == kind], kind, look) for kind in trace.KINDS]
    items += [item for item in bars if item]
    hover(plot, [item.renderers[0] for item in items if item.label.value in trace.KINDS], _HOVER)
    _arrows(plot, spans, arrows, look, items)
    plot.height = 136 + _ROW * len(rows)
    legend(plot, look, items)
    return plot


def _shade(kind: str, look: Theme) -> str:
    wait, product, copy, barrier, access, conversion = (look.series[at] for at in (1, 0, 2, 3, 4, 5))
    return {
        records.WAIT: wait, records.PRODUCT: product, records.COPY: copy, records.BARRIER: barrier, records.ACCESS: access,
        records.CONVERSION: conversion, records.REDUCTION: conversion,
    }.get(kind, look.muted)  # fmt: skip


def _bars(plot: figure, rows: pd.DataFrame, kind: str, look: Theme) -> LegendItem | None:
    if rows.empty:
        return None
    texts = {f"{name}_text": [write(v, "second") for v in rows[name]] for name in ("start", "duration")}
    quiet = kind == trace.ARITHMETIC
    data = {
        "lane": rows["lane"], "start": rows["start"], "end": rows["end"], "name": rows["name"],
        "awaits": rows["awaits"].where(rows["awaits"] != "", "-"), "line": [str(n) if n else "-" for n in rows["line"]],
        "alpha": np.where(rows["chosen"], 0.35 if quiet else 0.92, 0.12), **texts,
    }  # fmt: skip
    drawn = plot.hbar(
        y="lane", left="start", right="end", height=0.3 if quiet else 0.7, fill_color=_shade(kind, look), fill_alpha="alpha",
        line_color=None, hatch_pattern="/" if kind == records.REDUCTION else " ", hatch_color=look.ground, hatch_alpha=0.6,
        source=ColumnDataSource(data), name="bars",
    )  # fmt: skip
    return LegendItem(label=kind, renderers=[drawn])


def _arrows(plot: figure, spans: pd.DataFrame, arrows: pd.DataFrame, look: Theme, items: list[LegendItem]) -> None:
    """Lines from an arrival at a barrier to the end of the wait, with a mark at the wait."""
    lane = dict(zip(spans["warp"], spans["lane"], strict=True))
    between = arrows[arrows["from_warp"] != arrows["to_warp"]]
    waits = spans.loc[spans["kind"] == records.WAIT].set_index(["warp", "end"])["duration"]
    between = between.assign(
        wait=[waits.get((w, t), 0.0) for w, t in zip(between["to_warp"], between["to_time"], strict=True)]
    )
    between = between.nlargest(MOST_ARROWS, "wait")
    if between.empty:
        return
    data = ColumnDataSource(
        {
            "x0": between["from_time"], "y0": between["from_warp"].map(lane), "x1": between["to_time"],
            "y1": between["to_warp"].map(lane), "barrier": between["barrier"].str.removeprefix("%"),
        }
    )  # fmt: skip
    drawn = plot.segment(
        "x0", "y0", "x1", "y1", source=data, line_color=look.ink, line_alpha=0.25, line_width=1, name="arrows"
    )
    plot.scatter("x1", "y1", source=data, marker="triangle", size=6, color=look.ink, alpha=0.6, name="arrows")
    hover(plot, drawn, [("", "arrival at barrier @barrier")])
    items.append(LegendItem(label="arrival, to the wait that it ends", renderers=[drawn]))
