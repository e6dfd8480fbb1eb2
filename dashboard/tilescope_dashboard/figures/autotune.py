"""Autotune: every config of a kernel as a heatmap over two of its parameters."""

from __future__ import annotations

import math

import pandas as pd
from bokeh.models import ColorBar, ColumnDataSource, FixedTicker, LinearColorMapper
from bokeh.palettes import Cividis256
from bokeh.plotting import figure
from tilescope.models import sweeps

from tilescope_dashboard.data.units import short, write
from tilescope_dashboard.figures.style import FONT, Theme, blank, empty, hover, write_on

#: Columns with the place and size of a config's cell.
_CELL = {"x": "across", "y": "down", "width": 0.96, "height": 0.94}
#: Colours from the best config, the brightest, to the worst.
_PALETTE = list(Cividis256)[::-1]
#: The last colour stands for at least the first fraction over the best, so that noise gets no colours, and for at most the second, so
#: that one bad config does not make all others look alike.
_NARROWEST, _WIDEST = 0.1, 1.0


def autotune(cells: pd.DataFrame, across: str, down: str, unit: str, look: Theme) -> figure:
    """A heatmap of ``cells`` over the parameters ``across`` and ``down``, coloured by the percentage over the best.

    ``cells`` has a column for each parameter, ``value`` (in ``unit``; absent where the config failed), ``best`` and
    ``reason``. Failed cells are hatched and say why on hover; the best one carries a frame and a star.
    """
    if cells.empty:
        return empty(look, "autotune", "This run has no configs of this kernel. 'tilescope tune' records them.")
    columns, rows = (sorted(cells[p].unique()) for p in (across, down))
    plot = blank(
        look, "autotune", 150 + max(42, 60 - 2 * len(rows)) * len(rows), x=short(across), y=short(down),
        x_range=[str(c) for c in columns], y_range=[str(r) for r in rows],
    )  # fmt: skip
    plot.grid.grid_line_color = None
    good, failed = cells[cells["value"].notna()], cells[cells["value"].isna()]
    drawn = []
    if len(good):
        low, high = good["value"].min(), good["value"].max()
        over = sweeps.over_best(good["value"], less=unit != "ratio")
        relative = bool(over.notna().all())
        top = min(max(over.max(), _NARROWEST), _WIDEST)
        beyond = bool(over.max() > top)
        end = math.log2(1 + top) if relative else max(high - low, 1e-12)
        places = [math.log2(1 + part) for part in over] if relative else (good["value"] - low).tolist()
        mapper = LinearColorMapper(palette=_PALETTE, low=0, high=1)
        shown = _columns(good, across, down, unit, [place / end for place in places])
        drawn.append(
            plot.rect(
                source=ColumnDataSource(shown), name="cells", **_CELL,
                fill_color={"field": "place", "transform": mapper}, line_color=None,
            )
        )  # fmt: skip
        written = len(columns) <= 8
        if high > low and not (written and sweeps.close(good["value"])):
            labels = _share_ticks(top, beyond=beyond) if relative else _value_ticks(low, high, unit)
            bar = _bar(mapper, look, {place / end: label for place, label in labels.items()})
            if relative:
                # The last label marks values beyond the scale.
                until = "" if beyond else f", up to {percent_over(top)}"
                bar.title = f"over the best, {write(low if unit != 'ratio' else high, unit)}{until}"
            plot.min_border_right = 28  # the last label reaches beyond the bar
            plot.add_layout(bar, "below")
        if written:
            size = "10px" if look.narrow and len(columns) > 5 else "12px"
            source = drawn[0].data_source
            write_on(
                plot, look, "across", "down", "text", source=source, text_align="center", text_color="ink",
                text_font_size=size,
            )  # fmt: skip
        best = shown[good["best"].to_numpy(bool)]
        plot.rect(best["across"], best["down"], 0.96, 0.94, fill_color=None, line_color=look.ink, line_width=3.5)
        write_on(
            plot, look, best["across"].tolist(), best["down"].tolist(), ["★"] * len(best), text_align="center",
            text_baseline="bottom", y_offset=-7, text_color=ink(_PALETTE[0]), text_font_size="13px",
        )  # fmt: skip
    if len(failed):
        drawn.append(
            plot.rect(
                source=ColumnDataSource(_columns(failed, across, down, unit, [math.nan] * len(failed))), name="failed",
                **_CELL, fill_color=look.ground, line_color=look.muted, line_dash="dashed", hatch_pattern="/",
                hatch_color=look.muted, hatch_alpha=0.5, hatch_scale=10,
            )
        )  # fmt: skip
    counted = [
        (label, f"@{name}")
        for name, label in (("hbm_bytes", "HBM traffic"), ("longest_stall", "longest stall"))
        if name in cells and cells[name].notna().any()
    ]
    tips = [("config", "@config"), ("value", "@text"), ("over the best", "@over"), *counted, ("reason", "@reason")]
    hover(plot, drawn, tips)
    return plot


def _columns(cells: pd.DataFrame, across: str, down: str, unit: str, places: list[float]) -> pd.DataFrame:
    """``places`` are the cells' on the scale of colours: 0 for the best, from 1 on the worst; NaN for those without a value."""
    # Write nearly equal values with the digits in which they differ.
    digits = 4 if sweeps.close(cells["value"]) else 3
    known = cells.reindex(
        columns=[*cells.columns.difference(["hbm_bytes", "longest_stall"]), "hbm_bytes", "longest_stall"]
    )
    return pd.DataFrame({
        "across": [str(v) for v in cells[across]], "down": [str(v) for v in cells[down]],
        "value": cells["value"].astype(float).to_numpy(), "place": places,
        "over": [percent_over(part) for part in sweeps.over_best(cells["value"], less=unit != "ratio")],
        "text": [write(v, unit, digits) for v in cells["value"]],
        "config": [short(c, 80) for c in cells["config"]],
        "hbm_bytes": [write(v, "byte") for v in known["hbm_bytes"]],
        "longest_stall": [v if isinstance(v, str) else "–" for v in known["longest_stall"]],
        "reason": [short(r, 120) if r else "–" for r in cells["reason"]],
        "ink": ["" if math.isnan(place) else ink(_PALETTE[round(255 * min(place, 1))]) for place in places],
    })  # fmt: skip


def percent_over(part: float) -> str:
    """``+25 %``; ``best`` for 0, ``12×`` from ten times on, a dash if absent."""
    if part >= 9:
        return f"{1 + part:,.0f}×"
    return "–" if pd.isna(part) else "best" if part == 0 else f"+{write(part, 'ratio', 2)}"


def ink(shade: str) -> str:
    """Black or white, whichever contrasts more with the shade."""
    channels = [int(shade[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 else "#ffffff"


def _share_ticks(top: float, *, beyond: bool) -> dict[float, str]:
    """Places of round percentages over the best, up to ``top``; its tick also stands for values ``beyond`` it."""
    shown = [
        part for part in (0, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0) if part <= top and (part in (0, 0.1) or part > top / 12)
    ]
    labels = {math.log2(1 + part): percent_over(part) for part in shown}
    return labels | ({math.log2(1 + top): f"≥ {percent_over(top)}"} if beyond else {})


def _value_ticks(low: float, high: float, unit: str) -> dict[float, str]:
    """Places of the least, the middle and the largest value."""
    return {value - low: write(value, unit) for value in (low, (low + high) / 2, high)}


def _bar(mapper: LinearColorMapper, look: Theme, labels: dict[float, str]) -> ColorBar:
    return ColorBar(
        color_mapper=mapper, major_label_overrides=labels, title_text_color=look.muted, title_text_font=FONT,
        title_text_font_size="12px", title_text_font_style="normal",
        ticker=FixedTicker(ticks=list(labels)), height=10, padding=6, border_line_color=None,
        background_fill_alpha=0, major_label_text_color=look.muted, major_label_text_font=FONT,
        major_label_text_font_size="12px", major_tick_line_color=None, bar_line_color=None,
    )  # fmt: skip
