"""Every kernel of a step on one roofline. A mark's area is its share of the step; it is filled where its bytes were counted."""

from __future__ import annotations

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, TapTool
from bokeh.plotting import figure

from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.roofline import draw_roofs
from tilescope_dashboard.figures.roofs import applying, split, used
from tilescope_dashboard.figures.style import Key, Theme, blank, empty, hover, keys

#: The name of kernels that are of no library, and the pixels of a mark for the whole step and of the smallest one.
_OWN, _WHOLE, _SMALLEST = "Triton and others", 110, 5
_CLEAR = "#00000000"


def step_roofline(kernels: pd.DataFrame, roofs: pd.DataFrame, look: Theme, *, predicted: bool = False) -> figure:
    """The rows of ``step_tables.kernels`` under ``roofs``. The marks' renderer is called ``points``; its column ``row`` is the row's number.

    The marks of a predicted step are dashed.
    """
    placed = kernels.assign(row=np.arange(len(kernels)))[kernels["intensity"].gt(0) & kernels["performance"].gt(0)]
    if placed.empty:
        unknown = "No bytes of this step's kernels are known: torch.profiler needs record_shapes=True."
        return empty(look, "step-roofline", unknown, 80)
    pipes = {*placed["roof"]}
    standing = used(applying(roofs, set()), pipes)
    memory, compute = ([roof.value for roof in part] for part in split(standing))
    across, up = placed["intensity"], [*placed["performance"], *compute]
    left, right = across.min() / 3, max(across.max(), *(c / m for c in compute for m in memory), 1.0) * 4
    plot = blank(
        look, "step-roofline", 420, x="arithmetic intensity, flop/byte", y="performance, flop/s", x_unit="decimal", y_unit="decimal",
        x_axis_type="log", y_axis_type="log", x_range=(left, right), y_range=(min(up) / 4, max(up) * 4),
    )  # fmt: skip
    libraries = list(dict.fromkeys(name or _OWN for name in placed["library"]))
    shades = {name: look.series[place % len(look.series)] for place, name in enumerate(libraries)}
    of = [shades[name or _OWN] for name in placed["library"]]
    counted = placed["bytes_from"].eq("counted")
    # Small marks lie over large ones.
    columns = placed.assign(
        size=(_WHOLE * np.sqrt(placed["share"])).clip(lower=_SMALLEST), shade=of, fill=np.where(counted, of, _CLEAR),
        title=[short(name, 60) for name in placed["function"]], at=[write(value, "flop/byte") for value in placed["intensity"]],
        said=[f"{write(time, 'second')}, {write(share, 'ratio')} of the step" for time, share in zip(placed["time"], placed["share"], strict=True)],
        over=[write(value, "second") for value in placed["above"]], where=[short(name, 60) for name in placed["module"]],
    )[["row", "intensity", "performance", "size", "shade", "fill", "title", "at", "said", "over", "where", "launches", "bytes_from"]]  # fmt: skip
    drawn = plot.scatter(
        "intensity", "performance", size="size", line_color="shade", fill_color="fill", fill_alpha=0.5, line_width=1.6,
        line_dash="dashed" if predicted else "solid",
        nonselection_fill_alpha=0.5, nonselection_line_alpha=1.0, source=ColumnDataSource(columns.sort_values("size", ascending=False)),
        name="points",
    )  # fmt: skip
    tips = [("", "@title"), ("", "@where"), ("", "@said"), ("above the roofs", "@over"), ("launches", "@launches"),
            ("intensity", "@at"), ("bytes", "@bytes_from")]  # fmt: skip
    hover(plot, drawn, tips)
    plot.add_tools(TapTool(renderers=[drawn]))
    found = [Key(name, "circle", shade, shade) for name, shade in shades.items()]
    found += [] if counted.all() else [Key("Modelled bytes", "circle", look.muted, _CLEAR)]
    keys(plot, look, found)
    draw_roofs(plot, standing, look, (left, right), min(up) / 4)
    return plot
