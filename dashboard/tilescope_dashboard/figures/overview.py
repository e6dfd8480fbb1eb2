"""Distance of each kernel from its floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, FixedTicker, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.units import short, times, write
from tilescope_dashboard.figures import style

#: Characters of a row's label, on a phone and on a wider page.
_LONGEST = {True: 22, False: 34}


def overview(cases: pd.DataFrame, look: style.Theme) -> figure:
    """A row a kernel, pass and workload, a mark an implementation, and the floor as a line at 1.

    A filled mark is the share of the roofline. A hollow mark is the predicted HBM traffic over the minimum, if nothing was
    timed. ``cases`` is ``tilescope.models.summary.summarise``'s frame. If a label is too long for the page, each kernel's name has
    a row of its own above its workloads.
    """
    for column in ("floor_fraction", "bytes_ratio") if len(cases) else ():
        if cases[column].notna().any():
            return _marks(cases[cases[column].notna()], column, look)
    return style.empty(look, "overview", "Nothing was timed or counted in this run.", 160)


def _marks(rows: pd.DataFrame, column: str, look: style.Theme) -> figure:
    timed = column == "floor_fraction"
    places, names, headings = _rows(rows, _LONGEST[look.narrow])
    impls = list(dict.fromkeys(rows["impl"]))
    count = len(names) + len(headings)
    plot = style.blank(
        look, "overview", 130 + 26 * count, x="share of roofline" if timed else "HBM traffic vs minimum (predicted)",
        x_unit="ratio" if timed else "times", x_range=Range1d(0, max(1.0, rows[column].max()) * 1.06),
        y_range=Range1d(0.5 - count, 0.5),
    )  # fmt: skip
    plot.yaxis.ticker = FixedTicker(ticks=list(names))
    plot.yaxis.major_label_overrides = names
    plot.yaxis.major_label_text_color = look.ink
    plot.xaxis.ticker.desired_num_ticks = 5
    style.line_at(plot, look, 1, level="underlay")  # kernels' names may lie over it
    shades = [style.colour(i, look, impls) for i in rows["impl"]]
    columns = {
        "x": rows[column], "y": places, "row": [_label(r) for r in rows.to_dict("records")], "impl": rows["impl"].map(look.called),
        "mark": [style.mark(i, impls) for i in rows["impl"]], "colour": shades, "fill": shades if timed else [look.ground] * len(rows),
        "text": [write(v, "ratio") if timed else times(v) for v in rows[column]],
        "time": [write(v, "second") for v in rows["gpu_time"]],
    }  # fmt: skip
    drawn = plot.scatter(
        "x", "y", marker="mark", size=11, line_color="colour", line_width=2, fill_color="fill",
        source=ColumnDataSource(columns), name="points",
    )  # fmt: skip
    style.write_on(
        plot, look, [0] * len(headings), list(headings), list(headings.values()), x_offset=4, text_font_style="bold",
        background_fill_color=look.ground, name="headings",
    )  # fmt: skip
    said = "of roofline" if timed else "HBM traffic vs minimum"
    style.hover(plot, drawn, [("", "@row"), ("implementation", "@impl"), (said, "@text"), ("GPU time", "@time")])
    style.keys(plot, look, style.keys_of(impls, look, hollow=not timed))
    return plot


def _rows(rows: pd.DataFrame, longest: int) -> tuple[list[int], dict[int, str], dict[int, str]]:
    """The place of each of ``rows`` (0 is the top, then negative), the labels of places, and the headings with kernels' names."""
    records = rows.to_dict("records")
    grouped = any(len(_label(row)) > longest for row in records)
    stands: dict[tuple[str, str, str], int] = {}
    names: dict[int, str] = {}
    headings: dict[int, str] = {}
    for kernel in rows["kernel"].unique():
        if grouped:
            headings[-len(names) - len(headings)] = short(kernel, longest)
        for key, row in {_key(row): row for row in records if row["kernel"] == kernel}.items():
            stands[key] = -len(names) - len(headings)
            label = f"{style.problem('', row['pass'])} {row['workload']}".strip() if grouped else _label(row)
            names[stands[key]] = short(label, longest)
    return [stands[_key(row)] for row in records], names, headings


def _key(case: Mapping[Any, Any]) -> tuple[str, str, str]:
    return case["kernel"], case["pass"], case["workload"]


def _label(case: Mapping[Any, Any]) -> str:
    return f"{style.problem(case['kernel'], case['pass'])} {case['workload']}"
