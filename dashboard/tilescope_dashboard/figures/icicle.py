"""The modules of a step as an icicle: a block a module, as wide as its time, above its parts. A click zooms to a module, another one back."""

from __future__ import annotations

import pandas as pd
from bokeh.models import ColumnDataSource, CustomJS, Range1d, TapTool
from bokeh.plotting import figure

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, empty, hover, write_on

#: Deepest modules that are drawn: a deeper one is in its parent's time.
_DEEPEST = 9
_ZOOM = """
    const place = source.selected.indices[0]
    if (place === undefined) return
    const {left, right} = source.data, inside = x.start === left[place] && x.end === right[place]
    x.setv({start: inside ? x.reset_start : left[place], end: inside ? x.reset_end : right[place]})
    source.selected.indices = []
"""
#: Writes as much of a name into a block as there is room for.
_LABELS = """
    const {left, right, module} = source.data, scale = plot.inner_width / (x.end - x.start)
    source.data.at = left.map(start => Math.max(start, x.start))
    source.data.label = module.map((name, place) => {
        const room = Math.floor((Math.min(right[place], x.end) - source.data.at[place]) * scale / 7.2) - 1
        return name.length <= room ? name : room > 3 ? `${name.slice(0, room - 1)}…` : ""
    })
    source.change.emit()
"""


def icicle(tree: pd.DataFrame, look: Theme) -> figure:
    """The icicle of ``step_tables.tree``. A block's colour is that of the ledger's time above the roofs, fainter near the roofs."""
    shown = tree[tree["depth"].lt(_DEEPEST)]
    if shown.empty:
        return empty(look, "modules", "The trace has no modules.", 80)
    rows = int(shown["depth"].max()) + 1
    whole = float(shown.loc[shown["depth"].eq(0), "time"].sum())
    x = Range1d(0, whole, bounds=(0, whole))
    plot = blank(
        look, "modules", 90 + 30 * rows, x="time on the GPU", x_unit="second", x_range=x, y_range=Range1d(-rows, 0)
    )
    plot.yaxis.visible = False
    plot.grid.visible = False
    columns = {
        "left": shown["start"], "right": shown["start"] + shown["time"], "top": -shown["depth"], "bottom": -shown["depth"] - 0.94,
        "middle": -shown["depth"] - 0.47, "module": shown["module"], "path": shown["path"], "at": shown["start"], "label": [""] * len(shown),
        "alpha": 0.1 + 0.5 * (shown["above"] / shown["time"]).clip(0, 1), "launches": shown["launches"],
        "time": [write(value, "second") for value in shown["time"]], "share": [write(value, "ratio") for value in shown["share"]],
        "above": [write(value, "second") for value in shown["above"]],
    }  # fmt: skip
    source = ColumnDataSource({name: list(values) for name, values in columns.items()})
    drawn = plot.quad(
        "left", "right", "top", "bottom", source=source, fill_color=look.series[1], fill_alpha="alpha", line_color=look.ground,
        nonselection_fill_alpha="alpha", name="modules",
    )  # fmt: skip
    write_on(plot, look, "at", "middle", "label", source=source, x_offset=4, name="names")
    tips = [("", "@path"), ("", "@time, @share of the step"), ("above the roofs", "@above"), ("launches", "@launches")]
    hover(plot, drawn, tips)
    args = {"plot": plot, "source": source, "x": x}
    plot.add_tools(TapTool(renderers=[drawn]))
    source.selected.js_on_change("indices", CustomJS(args=args, code=_ZOOM))
    write_names = CustomJS(args=args, code=_LABELS)
    plot.js_on_change("inner_width", write_names)
    for end in ("start", "end"):
        x.js_on_change(end, write_names)
    return plot
