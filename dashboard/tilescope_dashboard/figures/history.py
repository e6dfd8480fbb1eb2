"""GPU time of one case over the runs that timed it."""

from __future__ import annotations

import pandas as pd
from bokeh.models import ColumnDataSource, LegendItem, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.units import ranged, short
from tilescope_dashboard.figures.style import Theme, blank, colour, empty, hover, legend, mark

_NOTHING = "No run on this GPU timed this case."


def history(rows: pd.DataFrame, look: Theme) -> figure:
    """A column a run, the oldest first, with a mark and a bar for its range an implementation; rows are ``topics.history``'s.

    A line joins the times of one implementation's default. A sweep's fastest config is small and not joined.
    """
    if rows.empty:
        return empty(look, "history", _NOTHING, 220)
    runs = rows.drop_duplicates("run_id")
    labels = _labels(runs, look.narrow)
    low, high = rows["gpu_time_low"].min(), rows["gpu_time_high"].max()
    room = max(0.15 * (high - low), 0.02 * high)
    plot = blank(
        look, "history", 380, x="run, and the commit it was made at", y="GPU time", y_unit="second",
        x_range=list(labels.values()), y_range=Range1d(max(0, low - room), high + room),
    )  # fmt: skip
    plot.xaxis.major_label_text_color = look.ink
    plot.xgrid.grid_line_color = None
    impls = list(dict.fromkeys(rows["impl"]))
    items = []
    for place, impl in enumerate(impls):
        shade = colour(impl, look, impls)
        # Dodge the implementations within a run, or their bars would overlap.
        shift = (place - (len(impls) - 1) / 2) * min(0.14, 0.7 / len(impls))
        shown = _columns(look.named(rows[rows["impl"] == impl]), labels, shift)
        own = shown[~shown["swept"]]
        plot.line(own["x"].tolist(), own["y"].to_numpy(), color=shade, line_width=2)
        source = ColumnDataSource(shown)
        plot.segment("x", "low", "x", "high", source=source, color=shade, line_width=2)
        drawn = plot.scatter(
            "x", "y", source=source, marker=mark(impl, impls), size="size", color=shade, name="points",
        )  # fmt: skip
        hover(plot, drawn, [("", "@said"), ("GPU time", "@time"), ("commit", "@revision"), ("from", "@origin")])
        items.append(LegendItem(label=short(look.called(impl), 22), renderers=[drawn]))
    legend(plot, look, items)
    return plot


def _labels(runs: pd.DataFrame, narrow: bool) -> dict[str, str]:
    """A run's place on the axis: its time and commit. Two runs of one minute have two places."""
    labels: dict[str, str] = {}
    for run, started, revision in zip(runs["run_id"], runs["started"], runs["revision"], strict=True):
        when = started[5:].replace(" ", "\n") if narrow else started[5:]
        label = f"{when}\n{revision[:7]}" if revision else when
        labels[run] = label + "\u200b" * sum(other.rstrip("\u200b") == label for other in labels.values())
    return labels


def _columns(of: pd.DataFrame, labels: dict[str, str], shift: float) -> pd.DataFrame:
    times = of[["gpu_time", "gpu_time_low", "gpu_time_high"]]
    return pd.DataFrame({
        "x": [(labels[run], shift) for run in of["run_id"]], "y": of["gpu_time"], "low": of["gpu_time_low"], "high": of["gpu_time_high"],
        "size": [7 if swept else 11 for swept in of["swept"]], "swept": of["swept"],
        "said": (of["impl"] + " " + of["config"]).str.strip(),
        "time": [ranged("second", *row) for row in times.itertuples(index=False)],
        "revision": of["revision"], "origin": of["origin"],
    })  # fmt: skip
