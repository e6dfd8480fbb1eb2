"""The lanes of one program: a row for each warp, a bar for each span in the colour of its kind, arrows between warps, and the critical path."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import BasicTickFormatter, ColumnDataSource, LegendItem
from bokeh.plotting import figure
from tilescope.collectors.lanes import records, trace
from tilescope.models import lanes as model

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, empty, hover, legend
from tilescope_dashboard.figures.timeline import along_time, reduced

#: Most spans with a bar of their own, and most arrows: the longest waits'. A browser draws them anew in every frame of a pan.
MOST, MOST_ARROWS = 1_000, 100
#: Slots of time whose short spans share a bar in each lane.
_SLOTS = 100
#: How much longer than what is seen the time is whose spans the figure has.
_AROUND = 3
_ROW = 26
#: Opacity of bars that are not chosen.
_PALE = 0.12
_HOVER = [
    ("", "@lane"), ("line @line:", "@name"), ("start", "@start_text"), ("duration", "@duration_text"),
]  # fmt: skip


def lanes(program: model.Program, look: Theme, *, steps: bool = False) -> figure:
    """If the spans have a boolean column ``chosen``, other spans are pale. Above ``MOST`` spans, the short ones share grey bars. With
    ``steps`` the program is along the steps of a loop (``by_step``).
    """
    spans, _, path = program
    if spans.empty:
        return empty(look, "inside", "This run has no lanes of this kernel.")
    rows = list(spans["lane"].unique())
    plot = along_time(look, "inside", rows, spans["end"].max(), x="time after the program began")
    if steps:
        plot.xaxis.axis_label, plot.xaxis.formatter = "step of the loop", BasicTickFormatter()
        plot.x_range.update(start=float(spans["start"].min()), end=float(spans["end"].max()))
    items = [_bars(plot, kind, look) for kind in trace.KINDS if (spans["kind"] == kind).any()]
    hover(plot, [item.renderers[0] for item in items], _HOVER)
    _arrows(plot, program.arrows, look, items)
    fill(plot, program)
    _path(plot, path, look, items)
    plot.height = 136 + _ROW * len(rows)
    legend(plot, look, items)
    return plot


def fill(plot: figure, program: model.Program, start: float = -math.inf, end: float = math.inf) -> None:
    """Gives the figure the spans and arrows between two times, which are fewer, so that shorter ones are drawn, too."""
    spans, arrows, _ = program
    seen = spans[(spans["end"] >= start) & (spans["start"] <= end)]
    known = seen.assign(chosen=seen.get("chosen", True), duration=seen.get("duration", seen["end"] - seen["start"]))
    singles, shared = reduced(known.assign(impl=known["lane"]), MOST, _SLOTS, "kind")
    faint = known["chosen"].sum() == singles["chosen"].sum()  # bars of short spans, of which none is chosen
    lane = spans.drop_duplicates("warp").set_index("warp")["lane"]
    apart = arrows[arrows["from_warp"] != arrows["to_warp"]]
    waits = apart[(apart["to_time"] >= start) & (apart["from_time"] <= end)]
    waits = waits.sort_values("wait", ascending=False).head(MOST_ARROWS)
    for one in plot.renderers:
        if one.name == "bars":
            kind = one.tags[0]
            one.data_source.data = _columns(
                singles[singles["kind"] == kind], shared[shared["kind"] == kind], kind, faint
            )
        elif one.name == "arrows":
            one.data_source.data = {
                "x0": waits["from_time"], "y0": waits["from_warp"].map(lane), "x1": waits["to_time"],
                "y1": waits["to_warp"].map(lane), "barrier": waits["barrier"].str.removeprefix("%"),
            }  # fmt: skip


def follow(plot: figure, program: model.Program) -> None:
    """Fills a served figure anew as a user zooms or moves out of what it has."""
    spans = program.spans
    if len(spans) <= MOST and len(program.arrows) <= MOST_ARROWS:
        return
    first, last = held = [float(spans["start"].min()), float(spans["end"].max())]

    def look(_name: str, _before: float, _now: float) -> None:
        start, end = max(plot.x_range.start, first), min(plot.x_range.end, last)
        width = end - start
        if width <= 0 or (held[0] <= start and end <= held[1] and held[1] - held[0] <= 2 * _AROUND * width):
            return
        held[:] = start - width * (_AROUND - 1) / 2, end + width * (_AROUND - 1) / 2
        fill(plot, program, *held)

    look("", 0, 0)
    for name in ("start", "end"):
        plot.x_range.on_change(name, look)


def _shade(kind: str, look: Theme) -> str:
    wait, product, copy, barrier, access, conversion = (look.series[at] for at in (1, 0, 2, 3, 4, 5))
    return {
        records.WAIT: wait, records.PRODUCT: product, records.COPY: copy, records.BARRIER: barrier, records.ACCESS: access, records.SHARED: access,
        records.CONVERSION: conversion, records.REDUCTION: conversion,
    }.get(kind, look.muted)  # fmt: skip


def _bars(plot: figure, kind: str, look: Theme) -> LegendItem:
    drawn = plot.hbar(
        y="lane", left="start", right="end", height=0.3 if kind == trace.ARITHMETIC else 0.7, fill_color=_shade(kind, look),
        fill_alpha="alpha", line_color=None, hatch_pattern="/" if kind in (records.REDUCTION, records.SHARED) else " ", hatch_color=look.ground,
        hatch_alpha=0.6, source=ColumnDataSource(), name="bars",
    )  # fmt: skip
    drawn.tags = [kind]
    return LegendItem(label=kind, renderers=[drawn])


def _columns(rows: pd.DataFrame, shared: pd.DataFrame, kind: str, faint: bool) -> dict[str, Any]:
    """Data of a kind's bars and their tooltips: a value for each span, and for each bar of short spans, most of which are of the kind.

    The first is of no bar: the legend shows its colour.
    """
    times = {"start": rows.get("began", rows["start"]), "duration": rows["duration"]}
    shared_times = {"start": shared["left"], "duration": shared["busy"]}
    texts = {
        f"{name}_text": ["", *(write(v, "second") for values in (times[name], shared_times[name]) for v in values)]
        for name in times
    }
    plain = 0.35 if kind == trace.ARITHMETIC else 0.92
    together = [f"{count:,} short spans, most of them {kind}" for count in shared["launches"]]
    named = zip(rows["name"], rows["awaits"], strict=True)
    told = [f"{name}, for {awaits}" if awaits else name for name, awaits in named]
    return {
        "lane": ["", *rows["lane"], *shared["impl"]], "start": np.r_[math.nan, rows["start"], shared["left"]],
        "end": np.r_[math.nan, rows["end"], shared["right"]], "name": ["", *told, *together],
        "line": ["", *(str(n) if n else "-" for n in rows["line"]), *["-"] * len(shared)],
        "alpha": np.r_[plain, np.where(rows["chosen"], plain, _PALE), np.full(len(shared), _PALE if faint else plain / 2)], **texts,
    }  # fmt: skip


def _path(plot: figure, path: pd.DataFrame, look: Theme, items: list[LegendItem]) -> None:
    """A line through the lanes that the program's time consists of, from its start to its end."""
    apart = path["lane"].ne(path["lane"].shift()).cumsum()
    runs = path.groupby(apart).agg(lane=("lane", "first"), start=("start", "min"), end=("end", "max"))
    data = {"x": runs[["start", "end"]].to_numpy().ravel(), "y": np.repeat(runs["lane"].to_numpy(), 2)}
    drawn = plot.line(
        "x", "y", source=ColumnDataSource(data), line_color=look.ink, line_width=2, line_alpha=0.85, name="path"
    )
    items.append(LegendItem(label="critical path", renderers=[drawn]))


def _arrows(plot: figure, arrows: pd.DataFrame, look: Theme, items: list[LegendItem]) -> None:
    """Lines from an arrival at a barrier to the end of the wait, with a mark at the wait."""
    if (arrows["from_warp"] == arrows["to_warp"]).all():
        return
    data = ColumnDataSource()
    drawn = plot.segment(
        "x0", "y0", "x1", "y1", source=data, line_color=look.ink, line_alpha=0.25, line_width=1, name="arrows"
    )
    plot.scatter("x1", "y1", source=data, marker="triangle", size=6, color=look.ink, alpha=0.6, name="arrows")
    hover(plot, drawn, [("", "arrival at barrier @barrier")])
    items.append(LegendItem(label="arrival that ends a wait", renderers=[drawn]))
