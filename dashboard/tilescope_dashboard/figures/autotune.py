"""Autotune: every config of a kernel as a heatmap over two of its parameters."""

from __future__ import annotations

import pandas as pd
from bokeh.models import BasicTicker, ColorBar, ColumnDataSource, HoverTool, LinearColorMapper
from bokeh.palettes import Cividis256
from bokeh.plotting import figure

from tilescope_dashboard.data import sweeps
from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.style import FONT, GLYPH_FONT, Theme, blank, empty, ticks

#: Place and size of a config's cell.
_CELL = {"x": "across", "y": "down", "width": 0.96, "height": 0.94}


def autotune(cells: pd.DataFrame, across: str, down: str, unit: str, look: Theme) -> figure:
    """A heatmap of ``cells`` over the parameters ``across`` and ``down``.

    ``cells`` has a column for each parameter, ``value`` (in ``unit``; absent where the config failed), ``best`` and
    ``reason``. Failed cells are hatched and say why on hover; the best one carries a frame and a star.
    """
    if cells.empty:
        return empty(look, "autotune", "This run has no configs of this kernel: 'tilescope tune' records them.")
    columns, rows = (sorted(cells[p].unique()) for p in (across, down))
    plot = blank(
        look, "autotune", 150 + max(42, 60 - 2 * len(rows)) * len(rows),
        x_range=[str(c) for c in columns], y_range=[str(r) for r in rows],
    )  # fmt: skip
    plot.xaxis.axis_label, plot.yaxis.axis_label = short(across), short(down)
    plot.grid.grid_line_color = None
    good, failed = cells[cells["value"].notna()], cells[cells["value"].isna()]
    drawn = []
    if len(good):
        low, high = good["value"].min(), good["value"].max()
        # Reversed: the brightest cell is the one with the least time, registers, bytes or spills.
        palette = list(Cividis256) if unit == "ratio" else list(Cividis256)[::-1]
        mapper = LinearColorMapper(palette=palette, low=low, high=high if high > low else low + 1e-12)
        drawn.append(
            plot.rect(
                source=ColumnDataSource(_columns(good, across, down, unit, palette)), name="cells", **_CELL,
                fill_color={"field": "value", "transform": mapper}, line_color=None,
            )
        )  # fmt: skip
        written = len(columns) <= 8
        if high > low and not (written and sweeps.close(good["value"])):
            plot.add_layout(_bar(mapper, unit, look), "below")
        if written:
            plot.text(
                "across", "down", "text", source=drawn[0].data_source, text_align="center", text_baseline="middle",
                text_color="ink", text_font=GLYPH_FONT, text_font_size="12px",
            )  # fmt: skip
        best = good[good["best"]]
        plot.rect(
            [str(v) for v in best[across]], [str(v) for v in best[down]], 0.96, 0.94, fill_color=None,
            line_color=look.ink, line_width=3.5,
        )  # fmt: skip
        plot.text(
            [str(v) for v in best[across]], [str(v) for v in best[down]], ["★"] * len(best), text_align="center",
            text_baseline="bottom", y_offset=-7, text_color=_inks(best["value"], low, high, palette), text_font_size="13px",
        )  # fmt: skip
    if len(failed):
        drawn.append(
            plot.rect(
                source=ColumnDataSource(_columns(failed, across, down, unit, [])), name="failed", **_CELL,
                fill_color=look.ground, line_color=look.muted, line_dash="dashed", hatch_pattern="/",
                hatch_color=look.muted, hatch_alpha=0.5, hatch_scale=10,
            )
        )  # fmt: skip
    plot.add_tools(
        HoverTool(renderers=drawn, tooltips=[("config", "@config"), ("value", "@text"), ("reason", "@reason")])
    )
    return plot


def _columns(cells: pd.DataFrame, across: str, down: str, unit: str, palette: list[str]) -> dict[str, list]:
    # Of values that are nearly alike, what they differ in.
    digits = 4 if sweeps.close(cells["value"]) else 3
    return {
        "across": [str(v) for v in cells[across]],
        "down": [str(v) for v in cells[down]],
        "value": cells["value"].astype(float).tolist(),
        "text": [write(v, unit, digits) for v in cells["value"]],
        "config": [short(c, 80) for c in cells["config"]],
        "reason": [short(r, 120) if r else "–" for r in cells["reason"]],
        "ink": _inks(cells["value"], cells["value"].min(), cells["value"].max(), palette)
        if palette
        else [""] * len(cells),
    }


def _inks(values: pd.Series, low: float, high: float, palette: list[str]) -> list[str]:
    """The text's colour on each value's cell."""
    places = [(value - low) / (high - low) if high > low else 0 for value in values]
    return [ink(palette[round(255 * place)]) for place in places]


def ink(shade: str) -> str:
    """Black or white, whichever is told better from the shade: from the luminance on at which both are told alike."""
    channels = [int(shade[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def _bar(mapper: LinearColorMapper, unit: str, look: Theme) -> ColorBar:
    return ColorBar(
        color_mapper=mapper, formatter=ticks(unit),
        ticker=BasicTicker(desired_num_ticks=4), height=10, padding=6, border_line_color=None,
        background_fill_alpha=0, major_label_text_color=look.muted, major_label_text_font=FONT,
        major_label_text_font_size="12px", major_tick_line_color=None, bar_line_color=None,
    )  # fmt: skip
