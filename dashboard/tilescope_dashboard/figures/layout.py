"""A tile's layout: a cell for each element, in the colour of its lane; where banks have conflicts, of its bank."""

from __future__ import annotations

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, Range1d
from bokeh.palettes import Viridis256
from bokeh.plotting import figure

from tilescope_dashboard.figures.style import Theme, blank, hover

_HOVER = [("", "element [@row, @column]"), ("warp", "@warp, lane @lane, register @register"), ("bank", "@bank")]


def layout(elements: pd.DataFrame, look: Theme) -> figure:
    """``elements`` are rows of ``topics.layouts.elements``."""
    rows, columns = (int(elements[name].max()) + 1 for name in ("row", "column"))
    plot = blank(
        look, "layout", 90 + max(120, min(520, 14 * rows)), x="column", y="row",
        x_range=Range1d(-0.5, columns - 0.5), y_range=Range1d(rows - 0.5, -0.5),
    )  # fmt: skip
    plot.grid.visible = False
    words = elements.get("words", pd.Series(1, elements.index))
    conflicts = bool(words.gt(1).any())
    groups = elements["bank" if conflicts else "lane"]
    shades = Viridis256[:: 256 // (int(groups.max()) + 1)]
    data = elements.assign(
        colour=[shades[group] for group in groups],
        strength=np.where(words.gt(1) | (not conflicts), 0.95, 0.2),
        bank=[f"{bank}: {units(count)}" for bank, count in zip(elements["bank"], words, strict=True)]
        if "bank" in elements
        else "chosen by the compiler",
    )
    drawn = plot.rect(
        "column", "row", width=0.94, height=0.94, fill_color="colour", fill_alpha="strength", line_color=None,
        source=ColumnDataSource(data), name="elements",
    )  # fmt: skip
    hover(plot, drawn, _HOVER)
    return plot


def units(count: int) -> str:
    """How many words a request asks of a bank."""
    return "one word" if count == 1 else f"{count} words in one request, a conflict"
