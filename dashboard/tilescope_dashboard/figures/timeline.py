"""The timeline: a lane for each implementation, a bar for each launch, and the gaps between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, GlyphRenderer, LegendItem, PanTool, Range1d, WheelZoomTool
from bokeh.plotting import figure
from tilescope.models.function_names import labels

from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.style import Content, Theme, blank, colour, distinct, empty, hatch, hover, legend

#: Most launches with a bar of their own: requested ones, then the longest. The others share bars.
MOST = 2_000
_SLOTS = 1_000
_ROW = 56
#: Functions of implementations that the legend names; the others are grey.
_FUNCTIONS = 10
OTHERS = "others"

_HOVER = [
    ("", "@lane"),
    ("launch @number:", "@function"),
    ("start", "@start_text"),
    ("duration", "@duration_text"),
    ("gap before it", "@gap_text"),
]
_GAP_HOVER = [("", "@lane"), ("gap of @gap_text before launch @number:", "@function"), ("", "@cause")]
_GAPS = LATE, IN_TIME, UNKNOWN = (
    "GPU idle: waiting on the CPU",
    "GPU idle: launch gap",
    "GPU idle: cause unknown",
)
_TOGETHER = "short launches, together"


def timeline(launches: pd.DataFrame, look: Theme) -> figure:
    """A bar a launch in its implementation's colour, and a thin bar a gap, coloured by its cause.

    ``launches`` are rows of ``tilescope.models.timeline.timeline``, one repetition an implementation. If there is a boolean column
    ``chosen``, other launches are pale. Above ``MOST`` launches, those neither chosen nor long share grey bars, which give their
    number, and only the ``MOST`` longest gaps are drawn.
    """
    return drawn(content(launches, look))


def content(launches: pd.DataFrame, look: Theme) -> Content:
    """The data of ``timeline``."""
    if launches.empty:
        return Content((look, (), ()), {}, {})
    launches = launches.assign(chosen=launches.get("chosen", True), end=launches["start"] + launches["duration"])
    impls = list(dict.fromkeys(launches["impl"]))
    lanes = distinct(impls, 14, look.called)
    window = launches["end"].max() or 1e-9
    singles, shared = reduced(launches)
    bars, groups = _bars(launches, singles, lanes, look)
    data = {"shared": _together(shared, lanes), "bars": bars, **_gaps(launches, lanes)}
    data = {name: columns for name, columns in data.items() if len(columns["lane"])}
    # A line of the legend: its label, its renderer, and the row of its mark.
    items: list[tuple[str, str, int | None]] = [(_TOGETHER, "shared", None)] if "shared" in data else []
    items += [(label, "bars", row) for label, row in groups]
    items += [(name, name, None) for name in data if name in _GAPS]
    parts = look, tuple(lanes.values()), tuple(item[:2] for item in items), *data
    return Content(parts, data, {"x_range": (0, window * 1.01)}, [row for *_, row in items])


def drawn(shown: Content) -> figure:
    """The figure with this ``content``."""
    look, lanes, items, *_ = shown.parts
    if not shown.data:
        return empty(look, "timeline", "This run has no start times of this kernel's launches.")
    window = shown.ranges["x_range"][1] / 1.01
    plot = along_time(look, "timeline", lanes, window, x="time after the first launch began")
    renderers = {name: _renderer(plot, name, ColumnDataSource(columns), look) for name, columns in shown.data.items()}
    plot.height = 136 + _ROW * len(lanes)
    lines = zip(items, shown.rows, strict=True)
    legend(
        plot, look, [LegendItem(label=label, renderers=[renderers[name]], index=row) for (label, name), row in lines]
    )
    return plot


def along_time(look: Theme, name: str, rows: Sequence[str], window: float, *, x: str) -> figure:
    """An empty figure with named rows, the first at the top, over ``window`` seconds. It pans and zooms along time alone."""
    plot = blank(look, name, x=x, x_unit="second", named_rows=True, y_range=list(rows)[::-1])
    time_axis(plot, window)
    # Bokeh would draw every frame of a pan a second time, half a second later.
    plot.lod_interval = 0
    plot.yaxis.major_label_text_font_size = "13px"
    return plot


def time_axis(plot: figure, window: float) -> None:
    """Limits the x axis to ``window`` seconds; pan and zoom move along it alone."""
    plot.x_range = Range1d(0, window * 1.01)
    for tool in plot.select({"type": PanTool}), plot.select({"type": WheelZoomTool}):
        next(iter(tool)).dimensions = "width"


def _foremost(launches: pd.DataFrame) -> list[tuple[str, str]]:
    """Implementations and their functions with a legend: the longest of each lane, then the longest of all."""
    spent = launches.groupby(["impl", "function"], sort=False)["duration"].sum()
    of_lanes = spent.groupby("impl", sort=False).idxmax()
    return list(dict.fromkeys([*of_lanes, *spent.nlargest(_FUNCTIONS).index]))[:_FUNCTIONS]


def reduced(
    launches: pd.DataFrame, most: int = MOST, slots: int = _SLOTS, by: str = "function"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The ``most`` launches with a bar of their own, and the shared bars of the others: ``impl left right launches busy``, and the value
    of the column ``by`` that takes most of its time.

    Others share a bar if they are in one lane and start in the same of so many ``slots`` of time.
    """
    if len(launches) <= most:
        return launches, pd.DataFrame(columns=["impl", "left", "right", "launches", "busy", by])
    first = launches["start"].min()
    window = launches["end"].max() - first or 1e-9
    # No launch is longer than the window, so adding it ranks requested launches first.
    own = _longest(launches["duration"] + window * launches["chosen"], most)
    rest = launches.loc[~own, ["impl", "start", "end", "duration", by]]
    (lane, impls), (kind, kinds) = (pd.factorize(rest[name]) for name in ("impl", by))
    place = lane * (slots + 1) + ((rest["start"] - first) / window * slots).astype(int).to_numpy()
    counts = np.bincount(place)
    used = np.flatnonzero(counts)
    spent = np.bincount(place * len(kinds) + kind, rest["duration"], counts.size * len(kinds))
    spent = spent.reshape(-1, len(kinds))[used]
    left, right = np.full(counts.size, np.inf), np.full(counts.size, -np.inf)
    np.minimum.at(left, place, rest["start"])
    np.maximum.at(right, place, rest["end"])
    shared = {"impl": impls[used // (slots + 1)], "left": left[used], "right": right[used], "launches": counts[used]}
    return launches[own], pd.DataFrame(shared | {"busy": spent.sum(axis=1), by: kinds[spent.argmax(axis=1)]})


def _longest(values: pd.Series, most: int = MOST) -> pd.Series:
    """Mask of the ``most`` largest values. It holds all or none of equal values, so that no end of the timeline is preferred."""
    least = values.nlargest(most).min()
    own = values >= least
    return own if own.sum() <= most else values > least


def _renderer(plot: figure, name: str, source: ColumnDataSource, look: Theme) -> GlyphRenderer:
    """Draws the bars of single launches, the shared bars, or gaps of one cause, as thin bars."""
    common: dict[str, Any] = {"source": source, "name": name}
    if name == "bars":
        drawn = plot.hbar(
            y="lane", left="start", right="end", height=0.56, fill_color="shade", fill_alpha="alpha", line_color="shade",
            line_alpha="alpha", line_width=1, hatch_pattern="pattern", hatch_color=look.ground, hatch_alpha=0.5,
            hatch_scale=9, **common,
        )  # fmt: skip
        hover(plot, drawn, _HOVER)
    elif name == "shared":
        drawn = plot.hbar(
            y="lane", left="left", right="right", height=0.36, fill_color=look.muted, fill_alpha=0.35, line_color=None,
            **common,
        )  # fmt: skip
        hover(plot, drawn, [("", "@lane"), ("", "@text")])
    else:
        shade, dash = look.warning if name == LATE else look.muted, "dotted" if name == UNKNOWN else "solid"
        drawn = plot.segment("left", "lane", "right", "lane", line_color=shade, line_width=4, line_dash=dash, **common)
        hover(plot, drawn, _GAP_HOVER)
    return drawn


def _together(shared: pd.DataFrame, lanes: dict[str, str]) -> dict[str, np.ndarray]:
    """Data of the shared bars."""
    said = [
        f"{count:,} short launches, {write(busy, 'second')} together"
        for count, busy in zip(shared["launches"], shared["busy"], strict=True)
    ]
    return _arrays({"lane": shared["impl"].map(lanes), "left": shared["left"], "right": shared["right"], "text": said})


def _bars(
    launches: pd.DataFrame, singles: pd.DataFrame, lanes: dict[str, str], look: Theme
) -> tuple[dict[str, np.ndarray], list[tuple[str, int]]]:
    """A bar for each launch, in its implementation's colour; patterns tell an implementation's functions apart. And for each line of
    the legend its label and the row of its first bar.
    """
    columns, known, seen = _columns(singles, lanes), labels(launches["function"]), dict.fromkeys(lanes, 0)
    shade, pattern = (np.full(len(singles), usual, object) for usual in (look.muted, " "))
    rest, groups = np.ones(len(singles), bool), []
    for impl, function in _foremost(launches):
        some = (columns["impl"] == impl) & (columns["function"] == function)
        shade[some], pattern[some] = colour(impl, look, lanes), hatch(seen[impl])
        groups.append((short(known[function], 28), some))
        seen[impl], rest = seen[impl] + 1, rest & ~some
    groups = [(label, some) for label, some in [*groups, (OTHERS, rest)] if some.any()]
    return columns | {"shade": shade, "pattern": pattern}, [(label, int(some.argmax())) for label, some in groups]


def _columns(rows: pd.DataFrame, lanes: dict[str, str]) -> dict[str, np.ndarray]:
    """Data of the bars and their tooltips, a value for each launch."""
    texts = {f"{name}_text": [write(v, "second") for v in rows[name]] for name in ("start", "duration", "gap")}
    found = {
        "lane": rows["impl"].map(lanes), "impl": rows["impl"], "number": rows["launch"].astype(int) + 1,
        "function": rows["function"], "start": rows["start"], "end": rows["end"],
        "alpha": rows["chosen"].map({True: 0.92, False: 0.18}),
    }  # fmt: skip
    return _arrays(found | texts)


def _arrays(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(values) for name, values in columns.items()}


def _gaps(launches: pd.DataFrame, lanes: dict[str, str]) -> dict[str, dict[str, np.ndarray]]:
    """Data of the gaps by their cause: waiting on the CPU, launch gaps, and gaps of unknown cause."""
    gaps = launches[launches["gap"] > 0]
    gaps = gaps[_longest(gaps["gap"])]
    waited = gaps["late"] > 0
    known = gaps["late"].notna()
    by_cause = zip(_GAPS, (gaps[waited], gaps[known & ~waited], gaps[~known]), strict=True)
    return {
        cause: _arrays({
            "lane": some["impl"].map(lanes), "number": some["launch"].astype(int) + 1,
            "function": some["function"], "left": some["start"] - some["gap"], "right": some["start"],
            "gap_text": [write(v, "second") for v in some["gap"]],
            "cause": [_cause(gap, late) for gap, late in zip(some["gap"], some["late"], strict=True)],
        })
        for cause, some in by_cause
    }  # fmt: skip


def _cause(gap: float, late: float) -> str:
    if pd.isna(late):
        return "The time of the CPU's call is unknown."
    if late > 0:
        return f"The CPU made its call {write(late, 'second')} after the GPU became idle."
    return "The CPU had called before the GPU became idle: this is a launch gap."
