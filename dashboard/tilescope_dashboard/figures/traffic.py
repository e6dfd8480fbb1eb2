"""HBM traffic: bytes by launch for each implementation beside the algorithm's minimum, and the speedup that they predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, Label, Range1d
from bokeh.plotting import figure
from tilescope.models.traffic import SAMPLED
from tilescope.table.sources import MEASURED

from tilescope_dashboard.data.units import short, times, write
from tilescope_dashboard.figures import style

_ROW = 54
#: Launches of an implementation with a segment of their own: those with the most bytes. The others share the last one.
MOST = 300


def traffic(launches: pd.DataFrame, floor: float | None, look: style.Theme) -> figure:
    """A stacked bar an implementation, with a segment a launch; the algorithm's ``floor`` in bytes is a line.

    ``launches`` is one problem's part of ``tilescope.models.traffic.traffic``, with one source an implementation. A measured
    segment is solid, a predicted one pale with a dashed edge, an estimate from a sample empty with a dotted edge. Above ``MOST``
    launches of an implementation, the smallest share one segment.
    """
    if launches.empty:
        return style.empty(look, "traffic", "This run did not count the bytes of this kernel.")
    launches = launches.assign(
        bytes=launches["read"] + launches["written"], measured=launches["source"].isin(MEASURED),
        sampled=launches["metric"].eq(SAMPLED),
    )  # fmt: skip
    impls = list(dict.fromkeys(launches["impl"]))[::-1]
    totals = launches.groupby("impl")["bytes"].sum()
    longest = max(totals.max(), floor or 0)
    lanes = style.distinct(impls, 14, look.called)
    across = Range1d(0, longest * 1.25)
    said = "bytes requested" if launches["sampled"].all() else "bytes to and from HBM"
    plot = style.blank(
        look, "traffic", 120 + _ROW * len(impls), x=said, x_unit="byte", named_rows=True, y_range=list(lanes.values()), x_range=across,
    )  # fmt: skip
    plot.xaxis.ticker.desired_num_ticks = 5
    plot.yaxis.major_label_text_font_size = "13px"
    bars = plot.hbar(
        y="impl", left="left", right="right", height=0.56, fill_color="colour", fill_alpha="alpha", line_dash="dash",
        line_color="edge", line_width=1.5, hatch_pattern="hatch", hatch_color=look.ground, hatch_alpha=0.55,
        hatch_scale=9, source=ColumnDataSource(_segments(launches, look, lanes)), name="bars",
    )  # fmt: skip
    near = set(launches.loc[launches["sampled"], "impl"])
    # Write a total that would touch the floor's line beyond the line.
    ends = {i: floor if floor and 0 < floor - totals[i] < 0.12 * longest else totals[i] for i in impls}
    texts = [f"{'≈ ' if i in near else ''}{write(totals[i], 'byte')}" for i in impls]
    style.write_on(
        plot, look, [ends[i] for i in impls], list(lanes.values()), texts, x_offset=6, background_fill_color=look.ground,
        background_fill_alpha=0.85,
    )  # fmt: skip
    if floor:
        style.line_at(plot, look, floor, line_width=2)
        side, gap = ("right", -5) if floor > longest / 2 else ("left", 5)
        plot.add_layout(Label(
            x=floor, y=0, y_units="screen", y_offset=2, x_offset=gap, text=f"floor {write(floor, 'byte')}", text_align=side,
            text_color=look.ink, text_font=style.FONT, text_font_size="12px",
        ))  # fmt: skip
        plot.y_range.range_padding = 0.25
    tooltips = [
        ("", "@impl, @launch"), ("function", "@function"), ("bytes", "@bytes"), ("read", "@read"),
        ("written", "@written"), ("source", "@source"),
    ]  # fmt: skip
    style.hover(plot, bars, tooltips)
    return plot


def _segments(launches: pd.DataFrame, look: style.Theme, lanes: dict[str, str]) -> dict[str, list[Any]]:
    segments = []
    for impl, rows in launches.groupby("impl", sort=False):
        left = 0.0
        for position, row in enumerate(_reduced(rows)):
            shade = style.colour(str(impl), look, lanes)
            segments.append({
                "impl": lanes[str(impl)], "left": left, "right": left + row["bytes"], "colour": shade,
                "edge": look.ground if row["measured"] else shade, "alpha": 0.92 if row["measured"] else 0.0 if row["sampled"] else 0.3,
                "dash": "solid" if row["measured"] else "dotted" if row["sampled"] else "dashed", "hatch": style.hatch(position), "launch": row["said"],
                "function": short(row["function"] or "whole call", 44),
                **{name: ("≈ " if row["sampled"] else "") + write(row[name], "byte") for name in ("bytes", "read", "written")},
                "source": f"{_how(row)} ({row['source']})",
            })  # fmt: skip
            left += row["bytes"]
    return {name: [segment[name] for segment in segments] for name in segments[0]}


def _how(row: Mapping[str, Any]) -> str:
    if row["sampled"]:
        of = f" of {row['counted']:,.0f} of {row['programs']:,.0f} programs" if row["counted"] > 0 else ""
        return f"from a sample{of}"
    return "measured" if row["measured"] else "predicted"


def _reduced(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One implementation's segments with their labels. The last holds all but the ``MOST`` largest launches."""
    numbered = rows.assign(said=[f"launch {place + 1}" for place in range(len(rows))])
    if len(rows) <= MOST:
        return [*numbered.to_dict("records")]
    own = rows["bytes"].rank(method="first", ascending=False) <= MOST
    rest = numbered[~own]
    together = rest.iloc[0].to_dict() | rest[["bytes", "read", "written"]].sum().to_dict()
    together |= {
        "function": "the smallest launches",
        "said": f"{len(rest):,} launches",
        "measured": rest["measured"].all(),
        "sampled": rest["sampled"].any(),
    }
    return [*numbered[own].to_dict("records"), together]


def speedup(gains: pd.DataFrame, look: style.Theme) -> figure:
    """The speedup over the unfused composition that bytes predict (hollow) and that was measured (filled).

    ``gains`` has ``impl``, ``predicted`` and ``actual`` (ratios; absent where not known).
    """
    known = gains[gains["predicted"].notna() | gains["actual"].notna()] if len(gains) else gains
    if known.empty:
        return style.empty(
            look,
            "speedup",
            "A speedup needs the bytes or the time of the unfused composition and of another implementation.",
            200,
        )
    impls = list(dict.fromkeys(known["impl"]))[::-1]
    lanes = style.distinct(impls, 14, look.called)
    top = max(known[["predicted", "actual"]].max().max(), 1.0)
    low = min(known[["predicted", "actual"]].min().min(), 1.0)
    room = (0.18 if look.narrow else 0.06) * top  # for half a label
    plot = style.blank(
        look, "speedup", 140 + (66 if look.narrow else 54) * len(impls), x="speedup vs unfused", x_unit="times",
        named_rows=True, y_range=list(lanes.values()),
        x_range=Range1d(max(-room, low - 0.35 * (top - low) - 0.1), top + 0.35 * (top - low) + 0.1),
    )  # fmt: skip
    plot.y_range.range_padding = 0.2  # for the numbers above the first mark
    plot.xaxis.ticker.desired_num_ticks = 5
    plot.yaxis.major_label_text_font_size = "13px"
    # Draw it below the numbers.
    style.line_at(plot, look, 1, line_color=look.muted, line_dash="solid", level="underlay")
    rows = [lanes[i] for i in known["impl"]]
    shades = [style.colour(i, look, impls) for i in known["impl"]]
    plot.segment(
        known["predicted"], rows, known["actual"], rows, line_color=look.muted, line_dash="dotted", line_width=2
    )
    marks = []
    for name, fill, marker, size in (("predicted", look.ground, "diamond", 16), ("actual", "colour", "circle", 12)):
        data = {"x": known[name].astype(float), "impl": rows, "colour": shades, "text": [times(v) for v in known[name]]}
        source = ColumnDataSource(data)
        looks = {"marker": marker, "size": size, "line_color": "colour", "line_width": 2, "fill_color": fill}
        marks.append(plot.scatter("x", "impl", source=source, name=name, **looks))
        offset, baseline, ink = (-11, "bottom", look.ink) if name == "actual" else (11, "top", look.muted)
        style.write_on(
            plot, look, "x", "impl", "text", source=source, y_offset=offset, text_align="center", text_baseline=baseline,
            text_color=ink, background_fill_color=look.ground, background_fill_alpha=0.9,
        )  # fmt: skip
    style.hover(plot, marks, [("", "@impl"), ("speedup", "@text")])
    lines = {"predicted": style.Key("predicted (bytes)", "diamond", look.muted, look.ground),
             "actual": style.Key("measured (GPU time)", "circle", look.muted, look.muted)}  # fmt: skip
    style.keys(plot, look, [line for name, line in lines.items() if known[name].notna().any()])
    style.heading(plot, look, "Predicted and measured speedup")
    return plot
