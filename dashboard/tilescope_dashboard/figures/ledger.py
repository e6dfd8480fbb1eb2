"""The ledger of a step: one bar whose parts add up to the step."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, LegendItem, Range1d
from bokeh.plotting import figure
from tilescope.models.ledger import PARTS, Ledger

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, empty, hatch, hover, legend

_ROW = "step"


def ledger(found: Ledger | None, look: Theme, *, predicted: bool = False) -> figure:
    """A stacked bar of the step's parts. Time on the GPU is coloured by its distance from the roofs, time without a launch is grey.

    A predicted step is drawn faint, in dashes.
    """
    if found is None or not found.total:
        return empty(look, "ledger", "This run is not of a model's step. Make one with 'tilescope model script.py'.")
    plot = blank(
        look, "ledger", 190, x="time of the step", x_unit="second", named_rows=True, y_range=[_ROW],
        x_range=Range1d(0, max(found.total, found.step) * 1.01),
    )  # fmt: skip
    colours = {
        "floor": look.series[2], "above": look.series[1], "unknown": look.series[5], "copies": look.series[3],
        "communication": look.series[0], "gaps": look.muted, "cpu": look.series[4], "idle": look.line,
    }  # fmt: skip
    items, left = [], 0.0
    for place, (name, seconds) in enumerate(found.parts.items()):
        if not seconds:
            continue
        source = ColumnDataSource(
            {"y": [_ROW], "left": [left], "right": [left + seconds], "part": [PARTS[name]], "time": [write(seconds, "second")],
             "share": [write(seconds / found.total, "ratio")]}
        )  # fmt: skip
        drawn = plot.hbar(
            y="y", left="left", right="right", height=0.7, fill_color=colours[name], line_color=look.ink if predicted else look.ground,
            line_dash="dashed" if predicted else "solid", fill_alpha=0.35 if predicted else 1.0,
            hatch_pattern=hatch(place), hatch_color=look.ground, hatch_alpha=0.35, source=source, name=name,
        )  # fmt: skip
        hover(plot, drawn, [("", "@part"), ("", "@time, @share of the step")])
        items.append(LegendItem(label=PARTS[name][:1].upper() + PARTS[name][1:], renderers=[drawn]))
        left += seconds
    legend(plot, look, items)
    return plot
