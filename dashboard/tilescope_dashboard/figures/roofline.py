"""The hierarchical roofline: log-log, one diagonal a memory level, one horizontal a pipe in use.

A mark has the shape and colour of its implementation. It is hollow for the algorithm's floor, hollow with a dot for requested
bytes, and filled for moved ones; a cross is requested bytes estimated from a sample. A dashed outline marks a predicted
performance. Solid roofs were measured, dashed ones are the datasheet's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, CustomJS, Line, Scatter, Segment, TapTool
from bokeh.plotting import figure
from tilescope.hardware import ceilings
from tilescope.table.schema import CASE_COLUMNS
from tilescope.table.units import SYMBOLS

from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.roofs import LEVELS, Roof, applying, compute_labels, lines, memory_labels, split, used
from tilescope_dashboard.figures.style import (
    Content,
    Key,
    Theme,
    blank,
    colour,
    empty,
    hover,
    keys,
    keys_of,
    mark,
    write_on,
)

_SIZES = {"hbm": 13, "l2": 10, "l1": 8}
#: A mark without fill.
_CLEAR = "#00000000"
#: Labels of kinds that are not their names.
KINDS = {"sampled": "≈ requested, from a sample"}
_NOTHING = "No flops, bytes or roofs are known for this kernel in this run."
#: Most points that are all drawn. Above, one point of a style is drawn in each cell; the cells of a decade across and up.
_MOST, _ACROSS, _UP = 2_500, 40, 14
_ALONG_DIAGONAL = """
    const decades = range => Math.log10(range.end / range.start)
    const up = plot.inner_height / decades(plot.y_range), right = plot.inner_width / decades(plot.x_range)
    if (isFinite(up / right) && right > 0) glyph.angle = {value: Math.atan2(up, right)}
"""


def roofline(points: pd.DataFrame, roofs: pd.DataFrame, look: Theme) -> figure:
    """A roofline of ``points`` (``tilescope.models.roofline.points``) under ``roofs``.

    A point without a time is drawn at the height of the roofs, with a dashed outline. The points' renderer is called ``points``;
    its column ``row`` is the point's row in the frame: of very many points, those hidden under equal ones are left out. On a narrow
    page a roof's label has one value.
    """
    return drawn(content(points, roofs, look))


def content(points: pd.DataFrame, roofs: pd.DataFrame, look: Theme) -> Content:
    """The data of ``roofline``."""
    applied = applying(roofs, {*points["memory_roof"].unique()} if len(points) else set())
    points = _seen(points)
    placed = points[points["height"].gt(0) & points["intensity"].gt(0)]
    if placed.empty and not applied:
        return Content((look, "", ()), {}, {})
    standing = used(applied, {*placed["pipe"].dropna().unique()})
    across, up = _extent(placed, standing)
    unit, lines = _unit(points["pipe"].dropna().unique()), tuple(_keys(points, look)) if len(points) else ()
    # A line also without points to join: a figure whose parts stay the same is drawn again sooner (``Chart.exchange``).
    data = {"joined": _joined(points), "points": _columns(points, unit, look)} if len(points) else {}
    above = points[points["above_roof"].astype(bool)]
    if len(above):
        data["above"] = {name: above[name].to_numpy() for name in ("intensity", "height")}
    data |= roofs_across(standing, look, across, up[0])
    return Content((look, unit, lines, *data), data, {"x_range": across, "y_range": up})


def drawn(shown: Content) -> figure:
    """The figure with this ``content``."""
    look, unit, lines, *_ = shown.parts
    if not shown.data:
        return empty(look, "roofline", _NOTHING)
    plot = blank(
        look, "roofline", 460, x="arithmetic intensity, flop/byte", y=f"performance, {SYMBOLS[unit]}", x_unit="decimal",
        y_unit="decimal", x_axis_type="log", y_axis_type="log", **dict[str, Any](shown.ranges),
    )  # fmt: skip
    if "points" in shown.data:
        _draw_points(plot, shown.data, lines, look)
    # Above the points: ten thousand of them would hide the roofs.
    draw_roofs(plot, shown.data, look)
    return plot


def source(plot: figure) -> ColumnDataSource | None:
    """The data source of the points, or None where there are none."""
    return next((renderer.data_source for renderer in plot.renderers if renderer.name == "points"), None)


def _seen(points: pd.DataFrame) -> pd.DataFrame:
    """The visible points with ``height``, ``predicted`` and ``row``: all of up to ``_MOST``, or one of equal style in each cell.

    A mark is several cells wide, so it hides the points that are left out.
    """
    found = points.assign(
        row=np.arange(len(points)), predicted=points["performance"].isna(),
        height=points["performance"].fillna(points["attainable"]).astype(float),
    )  # fmt: skip
    if len(found) <= _MOST:
        return found
    with np.errstate(divide="ignore", invalid="ignore"):
        across, up = (
            np.floor(np.log10(found[name].astype(float)) * n) for name, n in (("intensity", _ACROSS), ("height", _UP))
        )
    style = found.groupby(["impl", "kind", "level", "predicted"], dropna=False, sort=False).ngroup()
    return found[~pd.DataFrame({"across": across, "up": up, "style": style}).duplicated()]


def _unit(pipes: Iterable[str]) -> str:
    """The unit of performance: integer operations if any point is of an integer pipe."""
    return next((unit for pipe in pipes if (unit := ceilings.unit(str(pipe))).startswith("op")), "flop/second")


def _extent(points: pd.DataFrame, roofs: Sequence[Roof]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ranges around the points and the ridges, with a margin."""
    memory, compute = ([roof.value for roof in part] for part in split(roofs))
    across = [*points["intensity"], *(c / m for c in compute for m in memory)] or [0.1, 100.0]
    up = [*points["height"], *compute] or [1e9, 1e13]
    left, right = min(across) / 4, max(across) * 6
    low = min(*up, left * 4 * min(memory, default=min(up) / left)) / 4
    return (left, right), (low, max(up) * 4)


def _joined(points: pd.DataFrame) -> dict[str, np.ndarray]:
    """A line through the points of each call or launch with several, from left to right. NaN separates two lines."""
    call = points.groupby([*CASE_COLUMNS, "launch"], dropna=False, sort=False).ngroup()
    standing = points.assign(call=call)[["intensity", "height", "call"]][points["height"].gt(0)]
    several = standing[standing.duplicated("call", keep=False)].sort_values(["call", "intensity"])
    ends = np.flatnonzero(np.diff(several["call"])) + 1
    return {
        name: np.insert(several[column].to_numpy(float), ends, np.nan) for name, column in (("x", "intensity"), ("y", "height"))
    }  # fmt: skip


def _draw_points(plot: figure, data: Mapping[str, Mapping[str, Any]], lines: Sequence[Key], look: Theme) -> None:
    dotted = Line(x="x", y="y", line_color=look.muted, line_width=1.2, line_dash="dotted")
    plot.add_glyph(ColumnDataSource(data["joined"]), dotted, name="joined")
    plotted = plot.scatter(
        x="intensity", y="height", marker="mark", size="size", fill_color="fill", line_color="colour", line_dash="dash",
        line_width=1.8, fill_alpha=0.9, hover_line_color=look.ink, nonselection_alpha=0.25, nonselection_fill_alpha=0.25,
        selection_line_color=look.ink, selection_line_width=3, source=ColumnDataSource(data["points"]),
        name="points",
    )  # fmt: skip
    if "above" in data:
        ring = Scatter(x="intensity", y="height", size=24, fill_color=None, line_color=look.warning, line_width=1.6)
        plot.add_glyph(ColumnDataSource(data["above"]), ring, name="above")
    tips = [("", "@case"), ("launch", "@function"), ("point", "@said"), ("intensity", "@at"), ("performance", "@reached"),
            ("executed", "@executed"), ("time", "@time")]  # fmt: skip
    hover(plot, plotted, tips)
    plot.add_tools(TapTool(renderers=[plotted]))
    keys(plot, look, lines)


def _columns(points: pd.DataFrame, unit: str, look: Theme) -> dict[str, Any]:
    """The points' marks, and their texts for the hover."""

    def texts(write_one: Callable[..., str], *names: str) -> list[str]:
        """The texts of equal values, which are few, are written once."""
        rows = list(zip(*(points[name] for name in names), strict=True))
        written = {row: write_one(*row) for row in set(rows)}
        return [written[row] for row in rows]

    impls = list(dict.fromkeys(points["impl"]))
    shades = points["impl"].map({impl: colour(impl, look, impls) for impl in impls})
    shapes = points["impl"].map({impl: mark(impl, impls) for impl in impls})
    sampled, requested = points["kind"].eq("sampled"), points["kind"].eq("requested")
    return {
        "intensity": points["intensity"].to_numpy(float), "height": points["height"].to_numpy(), "row": points["row"].to_numpy(),
        # A cross marks sampled points, which are approximate. Its strokes are too short for dashes.
        "mark": shapes.mask(requested, shapes + "_dot").mask(sampled, "x").to_numpy(),
        "size": points["level"].map(_SIZES).fillna(10).to_numpy(),
        "colour": shades.to_numpy(), "fill": shades.where(points["kind"].eq("moved"), look.ground).to_numpy(),
        "dash": np.where(points["predicted"] & ~sampled, "dashed", "solid"),
        "case": texts(lambda impl, *of: short(" · ".join([look.called(impl), *of]), 60), "impl", "pass", "workload"),
        "function": texts(lambda name: short(name, 44) if isinstance(name, str) and name else "whole call", "function"),
        "said": texts(
            lambda kind, level, predicted: f"{KINDS.get(kind, kind)} through {LEVELS.get(level, level)}{', not timed' if predicted else ''}",
            "kind", "level", "predicted",
        ),
        "at": [write(number, "flop/byte") for number in points["intensity"]],
        "reached": [write(number, unit) for number in points["height"]],
        "executed": [f"{ratio:.2f}× the operations needed" if ratio > 0 else "not counted" for ratio in points["executed_ratio"].astype(float)],
        "time": [write(time, "second") for time in points["gpu_time"]],
    }  # fmt: skip


def _keys(points: pd.DataFrame, look: Theme) -> list[Key]:
    """The lines of the legend for the drawn points."""
    found = keys_of(points["impl"].unique(), look)
    shapes = {"algorithm": "circle", "requested": "circle_dot", "sampled": "x", "moved": "circle"}
    for kind in (kind for kind in shapes if points["kind"].eq(kind).any()):
        found.append(Key(KINDS.get(kind, kind), shapes[kind], look.muted, look.muted if kind == "moved" else _CLEAR))
    if (points["predicted"] & points["kind"].ne("sampled")).any():
        found.append(Key("not timed", "circle", look.muted, _CLEAR, "dashed"))
    if points["above_roof"].any():
        found.append(Key("above its roof", "circle", look.warning, _CLEAR))
    return found


def roofs_across(
    roofs: Sequence[Roof], look: Theme, across: tuple[float, float], low: float
) -> dict[str, dict[str, Any]]:
    """Roofs with their labels, for ``draw_roofs``, in a figure of that extent."""
    left, right = across
    return {
        "roofs": lines(roofs, left, right), "memory": memory_labels(roofs, look.narrow, across, low),
        "compute": compute_labels(roofs, look.narrow, right),
    }  # fmt: skip


def draw_roofs(plot: figure, data: Mapping[str, Mapping[str, Any]], look: Theme) -> None:
    """Draws the roofs of ``roofs_across``. Labels stay along their roofs when the figure is zoomed."""
    sources = {name: ColumnDataSource(data[name]) for name in ("roofs", "memory", "compute")}
    strokes = Segment(
        x0="x0", y0="y0", x1="x1", y1="y1", line_color=look.ink, line_width="width", line_dash="dash", line_alpha="alpha",
    )  # fmt: skip
    plot.add_glyph(sources["roofs"], strokes, name="roofs")
    # Points may lie where a label stands: they shine through the ground behind it.
    style = {"text_baseline": "bottom", "background_fill_color": look.ground, "background_fill_alpha": 0.8}
    shifts: dict[str, dict[str, Any]] = {"memory": {"angle": 0.7, "x_offset": -2, "y_offset": -6},
              "compute": {"text_align": "right", "x_offset": -24, "y_offset": -4}}  # fmt: skip
    along, _ = (
        write_on(plot, look, "x", "y", "text", source=sources[name], name=name, **style, **shift)
        for name, shift in shifts.items()
    )
    turn = CustomJS(args={"plot": plot, "glyph": along.glyph}, code=_ALONG_DIAGONAL)
    for name in ("inner_width", "inner_height"):
        plot.js_on_change(name, turn)
    for axis in (plot.x_range, plot.y_range):
        axis.js_on_change("start", turn)
        axis.js_on_change("end", turn)
