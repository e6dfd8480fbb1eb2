"""The hierarchical roofline: log-log, one diagonal a memory level, one horizontal a pipe in use.

A mark has the shape and colour of its implementation. It is hollow for the algorithm's floor, hollow with a dot for requested
bytes, and filled for moved ones; a cross is requested bytes estimated from a sample. A dashed outline marks a predicted
performance. Solid roofs were measured, dashed ones are the datasheet's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from bokeh.core.properties import value
from bokeh.models import ColumnDataSource, CustomJS, CustomJSHover, CustomJSTransform, HoverTool, LegendItem, TapTool
from bokeh.plotting import figure
from bokeh.transform import transform
from tilescope.hardware import ceilings
from tilescope.table.units import SYMBOLS

from tilescope_dashboard.data.units import short
from tilescope_dashboard.figures.marks import Categories, Marks, Style, marks
from tilescope_dashboard.figures.redraw import Columns, Drawing
from tilescope_dashboard.figures.roofs import LEVELS, Roof, applying, compute_labels, lines, memory_labels, split, used
from tilescope_dashboard.figures.style import (
    GLYPH_FONT,
    Theme,
    blank,
    colour,
    empty,
    legend,
    mark,
    place,
    ticks,
    written_as,
)  # fmt: skip

_SIZES = {"hbm": 13, "l2": 10, "l1": 8}
_NAN = float("nan")
#: A mark without fill.
_CLEAR = "#00000000"
#: A figure's columns, and those of a frame of points.
_PLACE = {"x": "intensity", "y": "height"}
#: Suffixes of a marker by kind.
_VARIANTS = {"requested": "_dot"}
#: Labels of kinds that are not their names.
KINDS = {"sampled": "≈ requested, of a sample"}
#: Sampled points have a marker of their own, as they are approximate.
_SAMPLED = "x"
#: Performance counts the algorithm's operations; executed ones stand beside it.
_EXECUTED = "return isFinite(value) ? `${value.toFixed(2)}× the operations needed` : 'not counted'"
_ALONG_DIAGONAL = """
    const decades = range => Math.log10(range.end / range.start)
    const up = plot.inner_height / decades(plot.y_range), right = plot.inner_width / decades(plot.x_range)
    if (isFinite(up / right) && right > 0) glyph.angle = {value: Math.atan2(up, right)}
"""


def roofline(points: pd.DataFrame, roofs: pd.DataFrame, look: Theme) -> figure:
    """A roofline of ``points`` (``tilescope.models.roofline.points``) under ``roofs``: see ``drawing``."""
    return drawing(marks(points), roofs, look).figure()


def drawing(points: Marks, roofs: pd.DataFrame, look: Theme) -> Drawing:
    """A roofline of ``points`` under ``roofs``.

    A point without a time is drawn at the height of the roofs, with a dashed outline. The points' renderer is called ``points``;
    its column ``row`` is the point's row in the frame, because points hidden under equal ones are left out where there are very
    many. On a narrow page a roof's label has one value.
    """
    applied = applying(roofs, {*points.numbers["memory_roof"].unique()})
    points = points.seen()
    numbers = points.numbers
    placed = numbers[numbers["height"].gt(0) & numbers["intensity"].gt(0)]
    if placed.empty and not applied:
        return _nothing(look)
    standing = used(applied, {points.categories.pipes[number] for number in placed["pipe"].unique() if number >= 0})
    (left, right), (low, high) = _extent(placed, standing)
    columns: dict[str, Columns] = {
        "roofs": lines(standing, left, right),
        "memory": memory_labels(standing, look.narrow, left, low),
        "compute": compute_labels(standing, look.narrow, right),
    }
    shape: tuple = (look,)
    if len(numbers):
        columns |= {"joined": _joined(numbers), "points": _points(numbers), "above": _above(numbers)}
        shape = (look, points.categories, tuple(_keys(points, look)))
    build = partial(_figure, points=points, look=look)
    return Drawing(shape, columns, (left, right), (low, high), build)


def source(plot: figure) -> ColumnDataSource | None:
    """The data source of the points, or None where there are none."""
    return next((renderer.data_source for renderer in plot.renderers if renderer.name == "points"), None)


def _nothing(look: Theme) -> Drawing:
    said = "No flops, bytes or roofs are known for this kernel in this run."
    return Drawing((look, said), {}, (0, 1), (0, 1), lambda _: empty(look, "roofline", said))


def _figure(sources: Mapping[str, ColumnDataSource], points: Marks, look: Theme) -> figure:
    plot = blank(look, "roofline", 460, x_axis_type="log", y_axis_type="log", x_range=(1, 10), y_range=(1, 10))
    plot.xaxis.axis_label = "arithmetic intensity, flop/byte"
    plot.yaxis.axis_label = f"performance, {SYMBOLS[_unit(points.categories.pipes)]}"
    plot.xaxis.formatter, plot.yaxis.formatter = ticks("decimal"), ticks("decimal")
    if "points" in sources:
        _draw_points(plot, sources, points, look)
    # Above the points: ten thousand of them would hide the roofs.
    _draw_roofs(plot, sources, look)
    return plot


def _unit(pipes: Sequence[str]) -> str:
    """The unit of performance: integer operations if any point is of an integer pipe."""
    return next((unit for pipe in pipes if (unit := ceilings.unit(str(pipe))).startswith("op")), "flop/second")


def _extent(points: pd.DataFrame, roofs: Sequence[Roof]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ranges around the points and the ridges, with a margin."""
    memory, compute = ([roof.value for roof in part] for part in split(roofs))
    ridges = [c / m for c in compute for m in memory]
    across = [*_ends(points["intensity"]), *ridges] or [0.1, 100.0]
    up = [*_ends(points["height"]), *compute] or [1e9, 1e13]
    left, right = min(across) / 4, max(across) * 6
    low = min(*up, left * 4 * min(memory, default=min(up) / left)) / 4
    return (left, right), (low, max(up) * 4)


def _ends(values: pd.Series) -> list[float]:
    return [values.min(), values.max()] if len(values) else []


def _joined(points: pd.DataFrame) -> Columns:
    """A line through the points of each call or launch with several, from left to right. NaN separates two lines."""
    standing = points[points["height"].gt(0)]
    several = standing[standing.duplicated("joined", keep=False)]
    line = several.iloc[np.lexsort((several["intensity"], several["joined"]))]
    ends = np.flatnonzero(np.diff(line["joined"])) + 1
    return {name: np.insert(line[column].to_numpy(), ends, _NAN) for name, column in _PLACE.items()}


def _points(points: pd.DataFrame) -> Columns:
    """The points' data as numbers alone, which are sent fast."""
    wanted = ["intensity", "height", "gpu_time", "executed", "row", "style", "case", "function"]
    return {name: points[name].to_numpy() for name in wanted}


def _above(points: pd.DataFrame) -> Columns:
    """The places of rings."""
    above = points[points["above_roof"]]
    return {name: above[column].to_numpy() for name, column in _PLACE.items()}


def _draw_points(plot: figure, sources: Mapping[str, ColumnDataSource], points: Marks, look: Theme) -> None:
    plot.line("x", "y", source=sources["joined"], name="joined", color=look.muted, line_width=1.2, line_dash="dotted")
    styled = {name: _looked_up("style", values) for name, values in _looks(points.categories.styles, look).items()}
    plotted = plot.scatter(
        x="intensity", y="height", marker=styled["mark"], size=styled["size"], fill_color=styled["fill"],
        line_color=styled["colour"], line_dash=styled["dash"], line_width=1.8, fill_alpha=0.9, hover_line_color=look.ink,
        nonselection_alpha=0.25, nonselection_fill_alpha=0.25, selection_line_color=look.ink, selection_line_width=3,
        source=sources["points"], name="points",
    )  # fmt: skip
    ring = {"size": 24, "fill_color": None, "line_color": look.warning, "line_width": 1.6}
    plot.scatter("x", "y", source=sources["above"], name="above", **ring)
    plot.add_tools(_hover(points.categories, plotted), TapTool(renderers=[plotted]))
    _draw_keys(plot, _keys(points, look), look)


def _looked_up(column: str, values: list) -> Any:
    """A transform from the code in ``column`` to its value in ``values``."""
    return transform(column, CustomJSTransform(args={"values": values}, v_func="return Array.from(xs, x => values[x])"))


def _looks(styles: Sequence[Style], look: Theme) -> dict[str, list]:
    """Properties of a mark, by its style's code."""
    impls = list(dict.fromkeys(style.impl for style in styles))
    return {
        "mark": [
            _SAMPLED if style.kind == "sampled" else mark(style.impl, impls) + _VARIANTS.get(style.kind, "")
            for style in styles
        ],
        "size": [_SIZES.get(style.level, 10) for style in styles],
        "colour": [colour(style.impl, look, impls) for style in styles],
        "fill": [colour(style.impl, look, impls) if style.kind == "moved" else look.ground for style in styles],
        # The strokes of a cross are too short for dashes.
        "dash": ["dashed" if style.predicted and style.kind != "sampled" else "solid" for style in styles],
    }


def _hover(categories: Categories, plotted: Any) -> HoverTool:
    """The hover text of a point; its categories are looked up and its numbers formatted in the browser."""
    said = {
        "case": [short(" · ".join(case), 60) for case in categories.cases],
        "function": [short(name, 44) if name else "whole call" for name in categories.functions],
        "style": [
            f"{KINDS.get(style.kind, style.kind)} through {LEVELS.get(style.level, style.level)}{', not timed' if style.predicted else ''}"
            for style in categories.styles
        ],
    }
    lookups = {
        f"@{name}": CustomJSHover(args={"said": texts}, code="return said[value]") for name, texts in said.items()
    }
    written = {
        "@intensity": written_as("flop/byte"),
        "@height": written_as(_unit(categories.pipes)),
        "@gpu_time": written_as("second"),
    }
    written["@executed"] = CustomJSHover(code=_EXECUTED)
    return HoverTool(
        renderers=[plotted], formatters=lookups | written, limit=2,
        # The roofs are above the points.
        attachment="below",
        tooltips=[
            ("", "@case{custom}"), ("launch", "@function{custom}"), ("point", "@style{custom}"),
            ("intensity", "@intensity{custom}"), ("performance", "@height{custom}"),
            ("executed", "@executed{custom}"), ("time", "@gpu_time{custom}"),
        ],
    )  # fmt: skip


class _Key(NamedTuple):
    """A line of the legend with its mark."""

    label: str
    mark: str
    line: str
    fill: str
    dash: str = "solid"


def _keys(points: Marks, look: Theme) -> list[_Key]:
    """The lines of the legend for the drawn points."""
    known = list(dict.fromkeys(style.impl for style in points.categories.styles))
    styles = points.styles()
    impls = sorted(dict.fromkeys(style.impl for style in styles), key=lambda impl: place(impl, known))
    shades = {impl: colour(impl, look, known) for impl in impls}
    keys = [_Key(short(impl, 18), mark(impl, known), shade, shade) for impl, shade in shades.items()]
    kinds = {style.kind for style in styles}
    for kind, shape, fill in (
        ("algorithm", "circle", _CLEAR),
        ("requested", "circle_dot", _CLEAR),
        ("sampled", _SAMPLED, _CLEAR),
        ("moved", "circle", look.muted),
    ):
        if kind in kinds:
            keys.append(_Key(KINDS.get(kind, kind), shape, look.muted, fill))
    if any(style.predicted and style.kind != "sampled" for style in styles):
        keys.append(_Key("not timed", "circle", look.muted, _CLEAR, "dashed"))
    if points.numbers["above_roof"].any():
        keys.append(_Key("above its roof", "circle", look.warning, _CLEAR))
    return keys


def _draw_keys(plot: figure, keys: Sequence[_Key], look: Theme) -> None:
    """One renderer for the whole legend. Its marks have no place in the figure; each legend line shows one."""
    columns = {name: [getattr(key, name) for key in keys] for name in _Key._fields}
    nowhere = [_NAN] * len(keys)
    drawn = plot.scatter(
        "x", "y", marker="mark", line_color="line", fill_color="fill", line_dash="dash", line_width=1.8,
        source=ColumnDataSource({**columns, "x": nowhere, "y": nowhere}), name="keys",
    )  # fmt: skip
    items = [LegendItem(label=value(key.label), renderers=[drawn], index=number) for number, key in enumerate(keys)]
    legend(plot, look, items)


def _draw_roofs(plot: figure, sources: Mapping[str, ColumnDataSource], look: Theme) -> None:
    plot.segment(
        "x0", "y0", "x1", "y1", source=sources["roofs"], name="roofs", line_color=look.ink, line_width="width",
        line_dash="dash", line_alpha="alpha",
    )  # fmt: skip
    # Points may lie where a label stands: they shine through the ground behind it.
    ground = {"background_fill_color": look.ground, "background_fill_alpha": 0.8}
    font: dict[str, Any] = {"text_color": look.ink, "text_font": GLYPH_FONT, "text_font_size": "12px", **ground}
    along = plot.text(
        "x", "y", "text", source=sources["memory"], name="memory", angle=0.7, text_baseline="bottom", x_offset=-2,
        y_offset=-6, **font,
    )  # fmt: skip
    plot.text(
        "x", "y", "text", source=sources["compute"], name="compute", text_align="right", x_offset=-24, y_offset=-4,
        text_baseline="bottom", **font,
    )  # fmt: skip
    turn = CustomJS(args={"plot": plot, "glyph": along.glyph}, code=_ALONG_DIAGONAL)
    plot.js_on_change("inner_width", turn)
    plot.js_on_change("inner_height", turn)
    for axis in (plot.x_range, plot.y_range):
        axis.js_on_change("start", turn)
        axis.js_on_change("end", turn)
