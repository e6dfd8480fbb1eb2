"""Colours, marks, fonts, legends and the empty state of all figures."""

from __future__ import annotations

import base64
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import pandas as pd
from bokeh.core.properties import value
from bokeh.models import (
    ColumnDataSource,
    CustomAction,
    CustomJS,
    CustomJSTickFormatter,
    GlyphRenderer,
    HoverTool,
    Label,
    Legend,
    LegendItem,
    PanTool,
    Range1d,
    ResetTool,
    SaveTool,
    Scatter,
    Span,
    Text,
    Title,
    WheelZoomTool,
)  # fmt: skip
from bokeh.plotting import figure
from tilescope.models import baseline

from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.data.units import short

FONT = "Inter, Roboto, 'Helvetica Neue', Arial, sans-serif"
#: The same for text glyphs, which take a plain string for a column's name.
GLYPH_FONT = value(FONT)


@dataclass(frozen=True)
class Theme:
    """The colours of one theme. ``series`` are Okabe and Ito's, with replacements for those with too little contrast.

    ``origin`` names the numbers' origin, such as a kernel, a run and a GPU, in the name of a saved figure. ``narrow``: the page is
    as narrow as a phone. ``declared`` are the implementations' declarations, which say what they are called.
    """

    dark: bool
    ground: str
    ink: str
    muted: str
    line: str
    accent: str
    warning: str
    series: tuple[str, ...]
    origin: tuple[str, ...] = ()
    narrow: bool = False
    declared: tuple[tuple[str, str], ...] = ()

    def called(self, impl: str) -> str:
        """An implementation's name in legends and labels."""
        return baseline.called(impl, dict(self.declared))

    def named(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows with the implementations' names of legends, for sentences and tooltips."""
        return rows.assign(impl=rows["impl"].map(self.called)) if "impl" in rows else rows


LIGHT = Theme(
    dark=False, ground="#ffffff", ink="#1b1f24", muted="#5b6570", line="#e3e7eb", accent="#0072B2", warning="#B34700",
    series=("#0072B2", "#D55E00", "#009E73", "#AA4499", "#8A6D00", "#332288"),
)  # fmt: skip
DARK = Theme(
    dark=True, ground="#14181d", ink="#eef1f4", muted="#a2acb7", line="#2a3139", accent="#56B4E9", warning="#F0A35E",
    series=("#56B4E9", "#F0A35E", "#2FC79B", "#CC79A7", "#F0E442", "#B39DDB"),
)  # fmt: skip

#: Implementations that every kernel has keep their colour in all views.
_PLACES = {"triton": 0, "eager": 1, "compile": 2, "aten": 3}
_MARKS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex")
_HATCHES = (" ", "/", ".", "x", "-", "|", "\\", "o", "+", "*")


def theme(dark: bool, *origin: str, narrow: bool = False, declared: Mapping[str, str] | None = None) -> Theme:
    """The dark or light theme, for figures with this origin on a page of this width, of implementations so ``declared``."""
    return replace(DARK if dark else LIGHT, origin=origin, narrow=narrow, declared=tuple((declared or {}).items()))


def place(impl: str, known: Iterable[str] = ()) -> int:
    """An implementation's index into colours and markers; ``known`` are all that are drawn."""
    if impl in _PLACES:
        return _PLACES[impl]
    others = sorted(set(known) - set(_PLACES))
    return 4 + (others.index(impl) if impl in others else 0) % 2


def colour(impl: str, look: Theme, known: Iterable[str] = ()) -> str:
    """The implementation's colour in this theme."""
    return look.series[place(impl, known)]


def mark(impl: str, known: Iterable[str] = ()) -> str:
    """The implementation's marker: colour is never the only difference."""
    return _MARKS[place(impl, known)]


def hatch(position: int) -> str:
    """The pattern of the n-th launch in a stack."""
    return _HATCHES[position % len(_HATCHES)]


#: ``export`` draws the figure again with BokehJS's SVG backend, in the browser.
_SAVE_SVG = """
    const blob = await Bokeh.index.find_one(plot).export("svg").to_blob()
    const link = document.createElement("a")
    link.href = URL.createObjectURL(blob)
    link.download = name + ".svg"
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10000)
"""


def _svg_icon(look: Theme) -> str:
    """The letters SVG in the theme's colour, which Bokeh applies to its own icons only."""
    letters = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><text x="12" y="16" text-anchor="middle" '
        f'fill="{look.muted}" font-family="sans-serif" font-size="10.5" font-weight="700">SVG</text></svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(letters.encode()).decode()


def blank(
    look: Theme, name: str, height: int = 420, *, x: str = "", y: str = "", x_unit: str = "", y_unit: str = "",
    named_rows: bool = False, **options: Any,
) -> figure:  # fmt: skip
    """A responsive figure in the theme with pan, wheel zoom, reset, and save as PNG and as SVG.

    The files are called after ``name`` and the theme's origin. ``x`` and ``y`` label the axes, ``x_unit`` and ``y_unit`` are keys of
    ``ticks``. ``named_rows``: the y axis has names, not numbers.
    """
    file = stem(name, *look.origin)
    tools = [PanTool(), WheelZoomTool(), ResetTool(), SaveTool(filename=file, description="Save as PNG")]
    plot = figure(
        height=height, tools=tools, **{"sizing_mode": "stretch_width", "toolbar_location": "above", **options}
    )
    save_svg = CustomJS(args={"plot": plot, "name": file}, code=f"(async () => {{{_SAVE_SVG}}})()")
    plot.add_tools(CustomAction(icon=_svg_icon(look), description="Save as SVG", callback=save_svg))
    # The mouse wheel scrolls the page until zoom is switched on.
    plot.toolbar.active_scroll = None
    plot.toolbar.logo = None
    plot.toolbar.autohide = False
    plot.toolbar.stylesheets = [f":host {{ --icon-color: {look.muted}; }} .bk-tool-overflow {{ color: {look.muted}; }}"]
    plot.background_fill_color = plot.border_fill_color = look.ground
    plot.outline_line_color = None
    plot.min_border_left = plot.min_border_right = 8
    plot.grid.grid_line_color = look.line
    plot.grid.grid_line_width = 1
    plot.axis.axis_line_color = plot.axis.major_tick_line_color = look.line
    plot.axis.minor_tick_line_color = None
    plot.axis.major_label_text_color = plot.axis.axis_label_text_color = look.muted
    plot.axis.major_label_text_font = plot.axis.axis_label_text_font = FONT
    plot.axis.major_label_text_font_size = plot.axis.axis_label_text_font_size = "12px"
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_label_standoff = 8
    for axis, label, unit in ((plot.xaxis, x, x_unit), (plot.yaxis, y, y_unit)):
        if label:
            axis.axis_label = label
        if unit:
            axis.formatter = ticks(unit)
    if x_unit == "second":
        plot.xaxis.ticker.desired_num_ticks = 3 if look.narrow else 6
        plot.min_border_right = 28  # the last tick's label reaches beyond the frame
    if named_rows:
        plot.yaxis.major_label_text_color = look.ink
        plot.ygrid.grid_line_color = None
    return plot


def write_on(
    plot: figure, look: Theme, x: Any, y: Any, text: Any, *, source: ColumnDataSource | None = None, name: str = "",
    **settings: Any,
) -> GlyphRenderer:  # fmt: skip
    """Writes texts into a figure: a text glyph in the shared font. Places and texts are lists, or columns of ``source``.

    Nobody selects a text. ``figure.text`` would add glyphs for that, which each page would have to be sent.
    """
    if source is None:
        source, x, y, text = ColumnDataSource({"x": x, "y": y, "text": text}), "x", "y", "text"
    font = {"text_color": look.ink, "text_font": GLYPH_FONT, "text_font_size": "12px", "text_baseline": "middle"}
    return plot.add_glyph(source, Text(x=x, y=y, text=text, **font | settings), name=name or None)


def line_at(plot: figure, look: Theme, x: float, **settings: Any) -> None:
    """Draws a dashed vertical line over the height of a figure, such as at a ratio of 1."""
    strokes: dict[str, Any] = {"line_color": look.ink, "line_dash": [6, 4], "line_width": 1.5}
    plot.add_layout(Span(location=x, dimension="height", **strokes | settings))


def hover(
    plot: figure, drawn: GlyphRenderer | list[GlyphRenderer], tips: Sequence[tuple[str, str]], **settings: Any
) -> None:
    """Shows ``tips``, pairs of a label and a value, over the nearest mark; beside it, and no wider than half of the page."""
    drawn = drawn if isinstance(drawn, list) else [drawn]
    rows = (f"<div>{label} {said}</div>" if label else f"<div><b>{said}</b></div>" for label, said in tips)
    text = f'<div style="max-width: min(400px, 42vw); overflow-wrap: anywhere; font: 12px/1.45 {FONT}">{"".join(rows)}</div>'
    plot.add_tools(HoverTool(renderers=drawn, tooltips=text, **{"limit": 1, **settings}))


#: Pixels for a legend on a narrow page, and on the narrowest other one, which has an open drawer.
_ROOM = {True: 260, False: 560}
#: Overrides the page's font size for legends, which is meant for running text.
_LEGEND_CSS = ":host { font-size: 12.6px; }"


def columns(labels: Sequence[str], look: Theme) -> int:
    """The number of columns of a legend with these labels that fit on the page; at least one."""
    widths = [46 + 6.5 * len(label) for label in labels]  # a mark and gaps, then 12 px letters
    fitting = (n for n in range(len(labels), 1, -1) if sum(max(widths[i::n]) for i in range(n)) <= _ROOM[look.narrow])
    return next(fitting, 1)


def legend(plot: figure, look: Theme, items: list[LegendItem], place: Literal["above", "below"] = "below") -> None:
    """Adds a compact legend to a figure, in as many columns as fit on the page. The figure grows with the legend's rows."""
    count = columns([item.label.value for item in items], look)
    plot.add_layout(
        Legend(
            items=items, ncols=count, orientation="horizontal", location="left", border_line_color=None,
            background_fill_alpha=0, label_text_color=look.ink, label_text_font=FONT, label_text_font_size="12px",
            label_standoff=4, spacing=12, padding=4, margin=4, glyph_width=26, glyph_height=26,
            stylesheets=[_LEGEND_CSS],
        ),
        place,
    )  # fmt: skip
    plot.height += 26 * (math.ceil(len(items) / count) - 1)


class Key(NamedTuple):
    """A line of a legend with its mark."""

    label: str
    mark: str
    line: str
    fill: str
    dash: str = "solid"
    size: int = 10


def keys(plot: figure, look: Theme, lines: Sequence[Key]) -> None:
    """Adds a legend of ``lines``. One renderer without a place in the figure has all marks."""
    columns = {name: [getattr(line, name) for line in lines] for name in Key._fields}
    nowhere = {"x": [math.nan] * len(lines), "y": [0] * len(lines)}
    marks = Scatter(
        x="x", y="y", marker="mark", size="size", line_color="line", fill_color="fill", line_dash="dash", line_width=2
    )
    drawn = plot.add_glyph(ColumnDataSource(columns | nowhere), marks, name="keys")
    legend(plot, look, [LegendItem(label=value(k.label), renderers=[drawn], index=n) for n, k in enumerate(lines)])


def keys_of(impls: Iterable[str], look: Theme, *, hollow: bool = False) -> list[Key]:
    """A line of a legend for each implementation that is drawn."""
    known = list(impls)
    shades = {impl: colour(impl, look, known) for impl in sorted(known, key=lambda impl: place(impl, known))}
    return [Key(short(look.called(i), 20), mark(i, known), c, look.ground if hollow else c) for i, c in shades.items()]


_WRITERS = {
    "count": "return `${+tick.toPrecision(3)}`",
    "ratio": "return `${+(tick * 100).toPrecision(3)} %`",
    "times": "return `${+tick.toPrecision(3)}×`",
    "kibibyte": "return `${+(tick / 1024).toPrecision(4)} KiB`",
    "byte": """
        for (const [size, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
            if (tick >= size) return `${+(tick / size).toPrecision(3)} ${prefix}B`
        return `${+tick.toPrecision(3)} B`
    """,
    # In the unit of the largest tick, with enough digits to tell neighbours apart at any zoom.
    "second": """
        const largest = Math.max(...ticks.map(Math.abs))
        const step = ticks.length > 1 ? ticks[1] - ticks[0] : largest
        const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]
        const [size, unit] = units.find(([size]) => largest >= size) || units[3]
        const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / size) + 1e-9)))
        return `${(tick / size).toFixed(digits)} ${unit}`
    """,
    "decimal": """
        for (const [size, prefix] of [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
            if (tick >= size * 0.999) return `${+(tick / size).toPrecision(3)} ${prefix}`
        if (0 < tick && tick < 0.01) return tick.toExponential()
        return `${+tick.toPrecision(3)}`
    """,
}


def ticks(unit: str) -> CustomJSTickFormatter:
    """A tick formatter for an axis in that unit. It is a new one each time, because a Bokeh model belongs to one document."""
    return CustomJSTickFormatter(code=_WRITERS[unit])


def heading(plot: figure, look: Theme, text: str) -> None:
    """A small title over one of several figures; on a phone above its tools."""
    plot.toolbar_sticky = not look.narrow
    plot.title = Title(
        text=text, text_color=look.ink, text_font=FONT, text_font_size="13px", text_font_style="bold", standoff=6
    )


def empty(look: Theme, name: str, text: str, height: int = 260) -> figure:
    """A figure that says why it is empty."""
    plot = blank(look, name, height, x_range=Range1d(0, 1), y_range=Range1d(0, 1))
    plot.toolbar_location = None
    plot.axis.visible = False
    plot.grid.visible = False
    lines = textwrap.wrap(text, 46)
    font = {"text_align": "center", "text_color": look.muted, "text_font": FONT, "text_font_size": "14px"}
    for position, line in enumerate(lines):
        above = 10 + 20 * (len(lines) / 2 - 1 - position)
        plot.add_layout(Label(x=0.5, y=0.5, y_offset=above, text=line, **font))
    return plot


class Content(NamedTuple):
    """What a figure shows: columns by the name of their renderer, ends of axes by the name of their range, and the row of its mark for
    each line of the legend. A figure with the same ``parts`` can show it, too.
    """

    parts: tuple[Any, ...]
    data: Mapping[str, Mapping[str, Any]]
    ranges: Mapping[str, tuple[float, float]]
    rows: Sequence[int | None] = ()


def ratio_ticks(low: float, high: float, most: int = 9) -> list[float]:
    """At most ``most`` round ratios between ``low`` and ``high``, 1 included, as finely spaced as fits."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ladders = [[step / 10 for step in range(1, 100)]]
    ladders += [[m * 10.0**d for d in decades for m in steps] for steps in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1,))]
    for ladder in ladders:
        found = [ratio for ratio in ladder if low <= ratio <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]


def problem(kernel: str, direction: str) -> str:
    """The label of a kernel and its pass in figures."""
    return " ".join(
        filter(
            None, [kernel, {"forward": "", "backward": "bwd", "forward+backward": "fwd+bwd"}.get(direction, direction)]
        )
    )


def distinct(names: Iterable[str], limit: int, called: Callable[[str], str] = str) -> dict[str, str]:
    """What the names are ``called`` on an axis, shortened to ``limit``. Names that become equal stay distinct."""
    shown: dict[str, str] = {}
    taken: dict[str, int] = {}
    for name in dict.fromkeys(names):
        label = short(called(name), limit)
        shown[name] = label + "\u200b" * taken.get(label, 0)
        taken[label] = taken.get(label, 0) + 1
    return shown
