"""Counters of a launch: levels of memory as boxes with the bytes moved between them as arrows, and the states of its warps as bars."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd
from bokeh.models import Arrow, ColumnDataSource, NormalHead, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, heading, hover, write_on

#: Height of a box, of the gap below it, and width of a box, in the figure's units.
_BOX, _GAP, _WIDTH = 1.0, 1.25, {True: 0.98, False: 0.56}
#: Horizontal place of arrows, by direction.
_ACROSS = {"read": 0.40, "both": 0.50, "written": 0.60}
_THIN, _THICK = 1.5, 14.0


class Flow(NamedTuple):
    """Bytes between the level ``below`` and the one above it (``read`` upwards, ``written`` downwards); None where not recorded."""

    below: str
    direction: str
    value: float | None


class Level(NamedTuple):
    """A level of memory with lines of text about it."""

    name: str
    lines: tuple[str, ...]


class Memory(NamedTuple):
    """The levels from the SMs down, and the flows between them."""

    levels: tuple[Level, ...]
    flows: tuple[Flow, ...]


def memory(moved: Memory, look: Theme) -> figure:
    """A box for each level, the SMs on top. Bytes that were not recorded are named so and have no arrow."""
    tops = {level.name: -place * (_BOX + _GAP) for place, level in enumerate(moved.levels)}
    plot = blank(look, "memory", 470, x_range=Range1d(0, 1), y_range=Range1d(min(tops.values()) - _BOX - 0.1, 0.1))
    plot.axis.visible = plot.grid.visible = False
    names = [level.name for level in moved.levels]
    plot.rect(
        "x", "y", width=_WIDTH[look.narrow], height=_BOX, fill_color=look.line, line_color=look.muted, name="levels",
        source=ColumnDataSource({"x": [0.5] * len(names), "y": [tops[name] - _BOX / 2 for name in names], "level": names}),
    )  # fmt: skip
    middle = [0.5] * len(names)
    title = {"text_font_style": "bold", "text_font_size": "15px"}
    _write(plot, look, (middle, [tops[name] - 0.32 for name in names]), names, **title)
    lines = [", ".join(level.lines) or "not recorded" for level in moved.levels]
    _write(plot, look, (middle, [tops[name] - 0.72 for name in names]), lines)
    most = max((flow.value or 0 for flow in moved.flows), default=0)
    for flow in moved.flows:
        _draw(plot, look, flow, tops[flow.below], most)
    heading(plot, look, "Memory chart")
    return plot


def _draw(plot: figure, look: Theme, flow: Flow, top: float, most: float) -> None:
    across, low, high = _ACROSS[flow.direction], top + 0.06, top + _GAP - 0.06
    said = {"read": "read", "written": "written", "both": "loads and stores"}[flow.direction]
    right = flow.direction != "read"
    text = "not recorded" if flow.value is None else write(flow.value, "byte")
    x = across + (0.04 if right else -0.04)
    align = "left" if right else "right"
    middle = (low + high) / 2
    _write(plot, look, ([x], [middle + 0.19]), [text], text_align=align, text_font_style="bold", text_font_size="13px")
    _write(plot, look, ([x], [middle - 0.19]), [said], text_align=align, text_color=look.muted)
    if not flow.value:
        return
    width = max(_THIN, _THICK * flow.value / most)

    def head() -> NormalHead:
        return NormalHead(size=width + 7, fill_color=look.accent, line_color=look.accent)

    start, end = (high, low) if flow.direction == "written" else (low, high)
    ends = {"end": head()} | ({"start": head()} if flow.direction == "both" else {"start": None})
    plot.add_layout(
        Arrow(x_start=across, x_end=across, y_start=start, y_end=end, line_color=look.accent, line_width=width, **ends)
    )


def _write(plot: figure, look: Theme, at: tuple[list[float], list[float]], text: list[str], **style: str) -> None:
    write_on(plot, look, *at, text, **{"text_align": "center", **style})


#: Most bars that are drawn; the table has all.
_MOST = 12


def stalls(waited: pd.DataFrame, look: Theme) -> figure:
    """A bar for each of ``topics.counters.stalls``' first rows with cycles; the state in which warps issue has another colour."""
    drawn = waited[waited["cycles"] > 0].head(_MOST)
    names = drawn["name"].tolist()
    # Leave room for the longest bar's label, half of the width on a phone.
    end = (1.7 if look.narrow else 1.3) * float(drawn["cycles"].max())
    plot = blank(
        look, "stalls", 470, x="cycles per issued instruction", x_unit="count", named_rows=True, x_range=Range1d(0, end),
        y_range=names[::-1],
    )  # fmt: skip
    source = ColumnDataSource({
        "name": names, "cycles": drawn["cycles"], "meaning": drawn["meaning"],
        "colour": [look.muted if reason == "selected" else look.accent for reason in drawn["reason"]],
        "text": [f"{write(row.cycles, 'count')}  ({write(row.share, 'ratio')})" for row in drawn.itertuples()],
    })  # fmt: skip
    bars = plot.hbar(y="name", right="cycles", height=0.62, color="colour", source=source, name="stalls")
    write_on(plot, look, "cycles", "name", "text", source=source, x_offset=6)
    hover(plot, bars, [("", "@name: @text"), ("", "@meaning")])
    heading(plot, look, "Warp states, by Nsight's names")
    return plot
