"""GPU readings over the last minutes: a small figure for each quantity, a line for each GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bokeh.models import ColumnDataSource, CustomJSTickFormatter, DataRange1d, LegendItem, Range1d
from bokeh.plotting import figure

from tilescope_dashboard.data.telemetry import Gpu, Sample, held, slowed
from tilescope_dashboard.data.units import write
from tilescope_dashboard.figures.style import Theme, blank, heading, hover, legend

#: By figure: title, unit, format of the axis, and the column of a limit.
FIGURES = {
    "utilization": ("Utilisation", "ratio", "ratio", ""),
    "memory_used": ("Memory", "byte", "byte", "memory"),
    "sm_clock": ("SM clock, Hz", "hertz", "decimal", "sm_clock_limit"),
    "power": ("Power, W", "W", "count", "power_limit"),
    "temperature": ("Temperature, °C", "°C", "count", ""),
    "pcie_received": ("PCIe a second, in and out (dashed)", "byte/second", "byte", ""),
}
#: A second reading in the same figure, dashed.
_BESIDE = {"pcie_received": "pcie_sent"}
#: Beyond the palette lines differ in their dashes.
_DASHES = ("solid", "dashdot", "dotdash", "dotted")
#: The shown time in milliseconds.
_WINDOW = 120_000


def columns(samples: Sequence[Sample], gpu: Gpu) -> dict[str, list[Any]]:
    """Samples as a source's columns: ``time`` in ms since 1970, readings in base units (NaN where absent), limits, ``held`` (the
    SM clock where anything other than idleness lowers it) and ``why``, the reasons as text.
    """
    rows = [asdict(sample) for sample in samples]
    names = (*FIGURES, *_BESIDE.values())
    found: dict[str, list[Any]] = {name: [_number(row[name]) for row in rows] for name in (*names, "power_limit")}
    found["time"] = [1000 * sample.time for sample in samples]
    found["memory"] = [_number(gpu.memory)] * len(rows)
    found["sm_clock_limit"] = [_number(gpu.sm_clock_limit)] * len(rows)
    found["held"] = [_number(s.sm_clock) if slowed(s.reasons) else math.nan for s in samples]
    found["why"] = [held(sample.reasons) for sample in samples]
    for name, (_, unit, _, _) in FIGURES.items():
        for reading in filter(None, (name, _BESIDE.get(name))):
            found[f"{reading}_text"] = [write(value, unit) for value in found[reading]]
    return found


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def readings(name: str, sources: Mapping[str, ColumnDataSource], look: Theme, height: int = 190) -> figure:
    """One of ``FIGURES`` over time. ``sources`` maps a GPU's label to a source with the columns of ``columns``, to which the caller
    streams. A limit is dotted; a lowered clock has a ring.
    """
    title, unit, written, limit = FIGURES[name]
    rising = Range1d(0, 1.04) if unit == "ratio" else DataRange1d(start=0, range_padding=0.08)
    plot = blank(
        look, f"gpu-{name}", height + 24 * (len(sources) > 1), y_unit=written, y_range=rising,
        x_range=DataRange1d(follow="end", follow_interval=_WINDOW, range_padding=0),
    )  # fmt: skip
    heading(plot, look, title)
    plot.toolbar.autohide = True
    plot.xaxis.formatter = CustomJSTickFormatter(
        code="return new Date(tick).toLocaleTimeString([], {hourCycle: 'h23'})"
    )
    plot.xaxis.ticker.desired_num_ticks = 3
    plot.yaxis.ticker.desired_num_ticks = 4
    items = []
    for place, (label, source) in enumerate(sources.items()):
        style = {"source": source, "line_color": look.series[place % len(look.series)], "line_width": 2}
        drawn = plot.line("time", name, line_dash=_DASHES[place // len(look.series) % len(_DASHES)], name=name, **style)
        tips = [("", label), (title.partition(",")[0], f"@{name}_text"), ("clocks", "@why")]
        if name in _BESIDE:
            plot.line("time", _BESIDE[name], line_dash="dashed", name=_BESIDE[name], **style)
            tips.insert(2, ("out", f"@{_BESIDE[name]}_text"))
        if limit:
            plot.line(
                "time", limit, source=source, line_color=look.muted, line_dash="dotted", line_width=1.5, name=limit
            )
        if name == "sm_clock":
            plot.scatter(
                "time", "held", source=source, marker="circle", size=8, fill_color=None, line_color=look.warning,
                line_width=2, name="held",
            )  # fmt: skip
        hover(plot, drawn, tips, mode="vline", visible=False)
        items.append(LegendItem(label=f"GPU {label.partition(' ')[0]}", renderers=[drawn]))
    if len(items) > 1:
        legend(plot, look, items)
    return plot
