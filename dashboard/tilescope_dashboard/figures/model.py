"""A step of a model: the ledger as one bar whose parts add up to the step, its kernels on one roofline, and its modules as an icicle."""

from __future__ import annotations

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, CustomJS, LegendItem, Range1d, TapTool
from bokeh.plotting import figure
from tilescope.models.ledger import PARTS, Ledger

from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.roofline import draw_roofs, roofs_across
from tilescope_dashboard.figures.roofs import applying, split, used
from tilescope_dashboard.figures.style import Key, Theme, blank, empty, hatch, hover, keys, legend, write_on

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


#: The name of kernels that are of no library, and the pixels of a mark for the whole step and of the smallest one.
_OWN, _WHOLE, _SMALLEST = "Triton and others", 110, 5
_CLEAR = "#00000000"
#: The share of a step below which a kernel has no mark: many such kernels lie decades away from those that matter.
SMALL = 0.001


def step_roofline(kernels: pd.DataFrame, roofs: pd.DataFrame, look: Theme, *, predicted: bool = False) -> figure:
    """The rows of ``step_tables.kernels`` that are not ``SMALL`` under ``roofs``. The marks' renderer is called ``points``; its column ``row`` is the row's number.

    The marks of a predicted step are dashed.
    """
    large = kernels["share"].ge(min(SMALL, kernels["share"].max()))
    placed = kernels.assign(row=np.arange(len(kernels)))[
        large & kernels["intensity"].gt(0) & kernels["performance"].gt(0)
    ]
    if placed.empty:
        unknown = "No bytes of this step's kernels are known: torch.profiler needs record_shapes=True."
        return empty(look, "step-roofline", unknown, 80)
    pipes = {*placed["roof"]}
    standing = used(applying(roofs, set()), pipes)
    memory, compute = ([roof.value for roof in part] for part in split(standing))
    across, up = placed["intensity"], [*placed["performance"], *compute]
    left, right = across.min() / 3, max(across.max(), *(c / m for c in compute for m in memory), 1.0) * 4
    # Room above the highest roof for its label, over however many decades the kernels spread.
    top = max(up) * max(4.0, (max(up) / min(up)) ** 0.08)
    plot = blank(
        look, "step-roofline", 420, x="arithmetic intensity, flop/byte", y="performance, flop/s", x_unit="decimal", y_unit="decimal",
        x_axis_type="log", y_axis_type="log", x_range=(left, right), y_range=(min(up) / 4, top),
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
    draw_roofs(plot, roofs_across(standing, look, (left, right), min(up) / 4), look)
    return plot


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
