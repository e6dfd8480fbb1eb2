"""The hierarchical roofline: log-log, one diagonal a memory level, one horizontal a pipe in use.

What a mark means: its shape and colour are the implementation's; hollow is the algorithm's floor, hollow with a dot is
what the program requests, filled is what the hardware moved; a dashed outline is a performance that was predicted,
not timed. Solid roofs were measured, dashed ones are the datasheet's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
from bokeh.models import ColumnDataSource, CustomJS, CustomJSHover, CustomJSTransform, HoverTool, LegendItem, TapTool
from bokeh.plotting import figure
from bokeh.transform import transform
from tilescope.schema import CASE_COLUMNS

from tilescope_dashboard.figures.style import (
    GLYPH_FONT,
    Theme,
    blank,
    colour,
    empty,
    legend,
    mark,
    short,
    ticks,
    written_as,
)  # fmt: skip
from tilescope_dashboard.units import write

LEVELS = {"hbm": "HBM", "l2": "L2", "l1": "L1"}
KINDS = {"algorithm": "algorithm", "requested": "requested", "moved": "moved"}
_SIZES = {"hbm": 13, "l2": 10, "l1": 8}
_NAN = float("nan")
#: So many points are drawn one by one; and of more, one in each cell of so many a decade in either direction.
_MOST, _CELLS = 5_000, 60
#: What is added to a mark by its kind.
_VARIANTS = {"requested": "_dot"}
#: What a point's number stands for, by the column that holds it.
_CODED = {"style": ["impl", "kind", "level", "predicted"], "case": ["impl", "pass", "workload"], "launch": ["function"]}

_ALONG_DIAGONAL = """
    const decades = range => Math.log10(range.end / range.start)
    const up = plot.inner_height / decades(plot.y_range), right = plot.inner_width / decades(plot.x_range)
    if (isFinite(up / right) && right > 0) glyph.angle = {value: Math.atan2(up, right)}
"""


def roofline(points: pd.DataFrame, roofs: pd.DataFrame, look: Theme) -> figure:
    """A roofline of ``points`` (as ``tilescope.roofline.points`` gives them) under ``roofs``.

    A point that was not timed stands where the roofs would allow it, with a dashed outline. The points' renderer is
    called ``points``, and its column ``row`` says which row of the frame a point is: of very many, those that lie under
    others alike are left out. On a narrow page a roof's label has one value.
    """
    roofs = roofs[(roofs["kind"] == "compute") | roofs["name"].isin(LEVELS)]
    points = points.assign(
        height=points["performance"].fillna(points["attainable"]).astype("float64"),
        predicted=points["performance"].isna(),
        row=np.arange(len(points), dtype=np.int32),
    )
    points = points.iloc[_seen(points)]
    drawn = points[points["height"].gt(0) & points["intensity"].gt(0)]
    if drawn.empty and roofs.empty:
        return empty(look, "roofline", "No flops, bytes or roofs are known for this kernel in this run.")
    used = _used(roofs, drawn)
    (left, right), (low, high) = _extent(drawn, used)
    plot = blank(
        look, "roofline", 460, x_axis_type="log", y_axis_type="log", x_range=(left, right), y_range=(low, high)
    )
    plot.xaxis.axis_label = "arithmetic intensity, flop/byte"
    plot.yaxis.axis_label = "performance, flop/s"
    plot.xaxis.formatter, plot.yaxis.formatter = ticks("decimal"), ticks("decimal")
    if not points.empty:
        _draw_points(plot, points, look)
    # After the points: ten thousand of them would bury the roofs.
    _draw_roofs(plot, used, look, (left, right), low)
    return plot


def source(plot: figure) -> ColumnDataSource | None:
    """The data source of the points, or None where there are none."""
    renderer = plot.select_one({"name": "points"})
    return renderer.data_source if renderer else None


def _used(roofs: pd.DataFrame, points: pd.DataFrame) -> pd.DataFrame:
    """Memory roofs, and the compute roofs of the pipes in use (all of them where no point names one)."""
    if roofs.empty:
        return roofs
    pipes = set(points["pipe"].dropna()) & set(roofs["name"])
    return roofs[(roofs["kind"] == "memory") | roofs["name"].isin(pipes or set(roofs["name"]))]


def _extent(points: pd.DataFrame, roofs: pd.DataFrame) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ranges that hold the points and the ridges, a little room around them."""
    memory = roofs.loc[roofs["kind"] == "memory", "value"] if len(roofs) else pd.Series(dtype=float)
    compute = roofs.loc[roofs["kind"] == "compute", "value"] if len(roofs) else pd.Series(dtype=float)
    ridges = [c / m for c in compute for m in memory]
    across = [*points["intensity"], *ridges] or [0.1, 100.0]
    up = [*points["height"], *compute] or [1e9, 1e13]
    left, right = min(across) / 4, max(across) * 6
    low = min(*up, left * 4 * min(memory, default=min(up) / left)) / 4
    return (left, right), (low, max(up) * 4)


def _seen(points: pd.DataFrame) -> np.ndarray | slice:
    """The rows that are drawn: all of up to ``_MOST``, else one of those that look alike in each cell of a fine grid.

    A mark is several cells wide, so what is left out would not be seen.
    """
    if len(points) <= _MOST:
        return slice(None)
    cells = [
        np.floor(np.log10(points[name].where(points[name].gt(0)).to_numpy(dtype=float, na_value=_NAN)) * _CELLS)
        for name in ("intensity", "height")
    ]
    style, _ = _distinct(points, _CODED["style"])
    _, first = np.unique(np.column_stack([style, *cells]), axis=0, return_index=True)
    return np.sort(first)


def _draw_points(plot: figure, points: pd.DataFrame, look: Theme) -> None:
    impls = list(dict.fromkeys(points["impl"]))
    across, up = _joined(points[points["height"].gt(0)])
    # There even where it joins nothing, like the rings below: with the same renderers a figure need not be drawn anew.
    plot.multi_line(across, up, color=look.muted, line_width=1.2, line_dash="dotted")
    styled = {name: _looked_up("style", values) for name, values in _styles(points, look, impls).items()}
    plotted = plot.scatter(
        x="intensity", y="height", marker=styled["mark"], size=styled["size"], fill_color=styled["fill"],
        line_color=styled["colour"], line_dash=styled["dash"], line_width=1.8, fill_alpha=0.9, hover_line_color=look.ink,
        nonselection_alpha=0.25, nonselection_fill_alpha=0.25, selection_line_color=look.ink, selection_line_width=3,
        source=ColumnDataSource(_columns(points)), name="points",
    )  # fmt: skip
    above = points[points["above_roof"]]
    plot.scatter(above["intensity"], above["height"], size=24, fill_color=None, line_color=look.warning, line_width=1.6)
    plot.add_tools(_hover(points, plotted), TapTool(renderers=[plotted]))
    legend(plot, look, _legend(plot, points, look, impls, len(above) > 0))


def _looked_up(column: str, values: list) -> Any:
    """The value that the number in ``column`` stands for."""
    return transform(column, CustomJSTransform(args={"values": values}, v_func="return Array.from(xs, x => values[x])"))


def _joined(points: pd.DataFrame) -> tuple[list[list[float]], list[list[float]]]:
    """Intensities and heights of the points of each launch that has several, from left to right."""
    of_launch = [*CASE_COLUMNS, "launch"]
    several = points[points.duplicated(of_launch, keep=False)]
    if several.empty:
        return [], []
    launch = several.groupby(of_launch, dropna=False, sort=False).ngroup().to_numpy()
    order = np.lexsort((several["intensity"], launch))
    ends = np.flatnonzero(np.diff(launch[order])) + 1
    across, up = (
        [part.tolist() for part in np.split(several[name].to_numpy(dtype=float)[order], ends)]
        for name in ("intensity", "height")
    )
    return across, up


def _columns(points: pd.DataFrame) -> dict[str, np.ndarray]:
    """Numbers only: what is many travels fast. ``style``, ``case`` and ``launch`` count the frame's distinct ones, as
    ``_distinct`` gives them."""
    numbers = {"intensity": "intensity", "height": "height", "gpu_time": "gpu_time"}
    codes = {name: _distinct(points, columns)[0] for name, columns in _CODED.items()}
    floats = {key: points[name].to_numpy(dtype=float, na_value=_NAN) for key, name in numbers.items()}
    return floats | codes | {"row": points["row"].to_numpy()}


def _distinct(points: pd.DataFrame, columns: list[str]) -> tuple[np.ndarray, list[tuple]]:
    """Each row's number among the distinct values of ``columns``, and those values, in the order of their appearance."""
    numbers = points.groupby(columns, dropna=False, sort=False).ngroup()
    values = points[columns].drop_duplicates().itertuples(index=False, name=None)
    return numbers.to_numpy(dtype=np.int32), list(values)


def _styles(points: pd.DataFrame, look: Theme, impls: list[str]) -> dict[str, list]:
    """What a mark looks like, by the number of its style."""
    styles = _distinct(points, _CODED["style"])[1]
    return {
        "mark": [mark(impl, impls) + _VARIANTS.get(kind, "") for impl, kind, _, _ in styles],
        "size": [_SIZES.get(level, 10) for _, _, level, _ in styles],
        "colour": [colour(impl, look, impls) for impl, _, _, _ in styles],
        "fill": [colour(impl, look, impls) if kind == "moved" else look.ground for impl, kind, _, _ in styles],
        "dash": ["dashed" if predicted else "solid" for _, _, _, predicted in styles],
    }


def _hover(points: pd.DataFrame, plotted: Any) -> HoverTool:
    """What is said of a point; its words are looked up, and its numbers written, in the browser."""
    said = {
        "case": [short(" · ".join(case), 60) for case in _distinct(points, _CODED["case"])[1]],
        "launch": [
            "whole call" if pd.isna(f) or not f else short(f, 44) for (f,) in _distinct(points, _CODED["launch"])[1]
        ],
        "style": [
            f"{KINDS.get(kind, kind)} through {LEVELS.get(level, level)}{', not timed' if predicted else ''}"
            for _, kind, level, predicted in _distinct(points, _CODED["style"])[1]
        ],
    }
    lookups = {
        f"@{name}": CustomJSHover(args={"said": texts}, code="return said[value]") for name, texts in said.items()
    }
    written = {
        "@intensity": written_as("flop/byte"),
        "@height": written_as("flop/second"),
        "@gpu_time": written_as("second"),
    }
    return HoverTool(
        renderers=[plotted], formatters=lookups | written, limit=2,
        tooltips=[
            ("", "@case{custom}"), ("launch", "@launch{custom}"), ("point", "@style{custom}"),
            ("intensity", "@intensity{custom}"), ("performance", "@height{custom}"), ("time", "@gpu_time{custom}"),
        ],
    )  # fmt: skip


def _legend(plot: figure, points: pd.DataFrame, look: Theme, impls: list[str], above: bool) -> list[LegendItem]:
    def item(label: str, **marks: object) -> LegendItem:
        return LegendItem(label=label, renderers=[plot.scatter([_NAN], [_NAN], size=10, line_width=1.8, **marks)])

    items = [
        item(short(i, 18), marker=mark(i, impls), color=colour(i, look, impls)) for i in impls
    ]  # fmt: skip
    kinds = {
        "algorithm": {"marker": "circle", "fill_color": None},
        "requested": {"marker": "circle_dot", "fill_color": None},
        "moved": {"marker": "circle", "fill_color": look.muted},
    }
    present = set(points["kind"])
    items += [item(KINDS[k], line_color=look.muted, **m) for k, m in kinds.items() if k in present]
    if points["predicted"].any():
        items.append(item("not timed", marker="circle", fill_color=None, line_color=look.muted, line_dash="dashed"))
    if above:
        ring = plot.scatter([_NAN], [_NAN], size=15, fill_color=None, line_color=look.warning, line_width=1.6)
        items.append(LegendItem(label="above its roof", renderers=[ring]))
    return items


def _draw_roofs(plot: figure, roofs: pd.DataFrame, look: Theme, across: tuple[float, float], low: float) -> None:
    memory, compute = (roofs[roofs["kind"] == kind] for kind in ("memory", "compute"))
    fastest, highest = memory["value"].max(), compute["value"].max()
    for roof in memory.itertuples():
        top = compute.loc[compute["origin"] == roof.origin, "value"].max()
        top = highest if math.isnan(top) else top
        top = across[1] * roof.value if math.isnan(top) else top
        # Far beyond the left edge, so that panning does not come to a roof's end.
        start = across[0] / 1e3
        plot.line([start, top / roof.value], [start * roof.value, top], **_stroke(roof, look))
    for roof in compute.itertuples():
        start = across[0] if math.isnan(fastest) else roof.value / fastest
        plot.line([start, across[1] * 1e3], [roof.value] * 2, **_stroke(roof, look))
    for name, values in memory.groupby("name", sort=False):
        highest = values["value"].max()
        start = max(across[0], low / highest) * 1.5
        _label_diagonal(plot, _roof_text(str(name), values, "byte/second", look.narrow), start, highest, look)
    for height, text in _compute_labels(compute, look.narrow):
        plot.text(
            [across[1]], [height], [text], text_align="right", x_offset=-24, y_offset=-4, text_baseline="bottom",
            **_text(look),
        )  # fmt: skip


def _compute_labels(roofs: pd.DataFrame, brief: bool) -> list[tuple[float, str]]:
    """Where each label stands and what it says. Roofs too close for a line of text each share one."""
    labels: list[tuple[float, str]] = []
    ranked = sorted(roofs.groupby("name", sort=False), key=lambda named: -named[1]["value"].max())
    for name, values in ranked:
        height, text = values["value"].max(), _roof_text(str(name), values, "flop/second", brief)
        if labels and labels[-1][0] / height < 1.6:
            labels[-1] = (labels[-1][0], f"{labels[-1][1]}  ·  {text}")
        else:
            labels.append((height, text))
    return labels


def _stroke(roof: object, look: Theme) -> dict[str, object]:
    name, origin = roof.name, roof.origin  # type: ignore[attr-defined]
    return {
        "line_color": look.ink,
        "line_width": 1.2 if name in ("l2", "l1") else 2.0,
        "line_dash": "solid" if origin == "measured" else [6, 4],
        "line_alpha": 0.9 if origin == "measured" else 0.6,
    }


def _text(look: Theme) -> dict[str, object]:
    return {"text_color": look.ink, "text_font": GLYPH_FONT, "text_font_size": "12px"}


def _roof_text(name: str, values: pd.DataFrame, unit: str, brief: bool) -> str:
    """``HBM 4.27 TB/s (datasheet 4.80 TB/s)``."""
    by_origin = dict(zip(values["origin"], values["value"], strict=True))
    title = LEVELS.get(name, name)
    if "measured" not in by_origin:
        return f"{title} {write(max(by_origin.values()), unit)} datasheet"
    text = f"{title} {write(by_origin['measured'], unit)}"
    sheet = by_origin.get("datasheet")
    return f"{text} (datasheet {write(sheet, unit).split()[0]})" if sheet and not brief else text


def _label_diagonal(plot: figure, text: str, start: float, bandwidth: float, look: Theme) -> None:
    """Write along a memory roof from intensity ``start`` on; the angle follows the figure's shape and zoom."""
    written = plot.text(
        [start], [start * bandwidth], [text], angle=0.7, text_baseline="bottom",
        x_offset=-2, y_offset=-6, **_text(look),
    )  # fmt: skip
    turn = CustomJS(args={"plot": plot, "glyph": written.glyph}, code=_ALONG_DIAGONAL)
    plot.js_on_change("inner_width", turn)
    plot.js_on_change("inner_height", turn)
    for axis in (plot.x_range, plot.y_range):
        axis.js_on_change("start", turn)
        axis.js_on_change("end", turn)
