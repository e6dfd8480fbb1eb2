"""Frames as tables that sort by value and show units."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import panel as pn
from bokeh.models.widgets.tables import HTMLTemplateFormatter, NumberFormatter, StringFormatter

_ABSENT = 'value == null || value !== value ? "–" : '
_SCALED = (
    "(([f, p]) => {d = v => +v.toPrecision(3); return d(value / f).toLocaleString('en', {maximumFractionDigits: 9})"
    " + ' ' + p + '%s'})(%s.find(([f]) => Math.abs(value) >= f) || %s)"
)
_UP = "[[1e15,'P'],[1e12,'T'],[1e9,'G'],[1e6,'M'],[1e3,'k']]"
_DOWN = "[[1,''],[1e-3,'m'],[1e-6,'µ']]"


def _template(expression: str) -> HTMLTemplateFormatter:
    return HTMLTemplateFormatter(template=f"<%= {_ABSENT}{expression} %>")


def _formatter(unit: str) -> Any:
    """How a column in that unit is written; the value below stays a number, so it sorts as one."""
    scaled = {"flop": "flop", "flop/second": "flop/s", "byte/second": "B/s", "flop/byte": "flop/B"}
    if unit == "second":
        return _template(_SCALED % ("s", _DOWN, "[1e-9,'n']"))
    if unit in scaled:
        return _template(_SCALED % (scaled[unit], _UP, "[1,'']"))
    if unit == "ratio":
        return _template("+(value * 100).toPrecision(3) + ' %'")
    if unit == "times":
        return _template("+value.toPrecision(3) + ' ×'")
    if unit in ("byte", "count"):
        # Bytes are counted exactly; a table is where one looks for the exact number.
        return NumberFormatter(format="0,0", nan_format="–")
    return StringFormatter(nan_format="–")


#: Widths in pixels that hold what a unit's values look like; a narrower page scrolls the table sideways.
_WIDTHS = {"text": 120, "byte": 128, "count": 92, "second": 92, "ratio": 92, "times": 92, "flop": 104,
           "flop/second": 118, "flop/byte": 110}  # fmt: skip
_NAMED = {
    "impl": 96,
    "pass": 92,
    "level": 76,
    "kind": 96,
    "started": 136,
    "title": 170,
    "device": 150,
    "workload": 160,
    "function": 240,
    "config": 300,
    "kernel": 130,
    "sources": 220,
}
_CSS = """
:host .tabulator.tabulator { font-size: 13px; border: none; background: transparent; }
.tabulator .tabulator-header { font-weight: 600; }
.tabulator .tabulator-header .tabulator-col .tabulator-col-content { padding: 6px 8px; }
.tabulator .tabulator-row .tabulator-cell { padding: 6px 8px; font-variant-numeric: tabular-nums; }
"""


def table(columns: Mapping[str, tuple[str, str]], **options: Any) -> pn.widgets.Tabulator:
    """An empty table. ``columns`` maps a frame's column to its title and unit (``text`` for words).

    The last column takes what room is left.
    """
    numeric = [name for name, (_, unit) in columns.items() if unit != "text"]
    settings: dict[str, Any] = {"pagination": "local", "page_size": 12, "selectable": 1, **options}
    widths = {name: _NAMED.get(name, _WIDTHS[unit]) for name, (_, unit) in list(columns.items())[:-1]}
    return pn.widgets.Tabulator(
        pd.DataFrame({name: [] for name in columns}),
        titles={name: title for name, (title, _) in columns.items()},
        formatters={name: _formatter(unit) for name, (_, unit) in columns.items()},
        text_align=dict.fromkeys(numeric, "right"),
        header_align=dict.fromkeys(numeric, "right"),
        show_index=False,
        disabled=True,
        layout="fit_columns",
        sizing_mode="stretch_width",
        theme="simple",
        configuration={"columnDefaults": {"minWidth": 80, "headerWordWrap": True, "tooltip": True}},
        stylesheets=[_CSS],
        widths=widths,
        margin=(4, 8),
        **settings,
    )


def fill(widget: pn.widgets.Tabulator, frame: pd.DataFrame) -> None:
    """Show ``frame``'s columns that the table knows, row for row; a column it lacks is absent."""
    shown = frame.reindex(columns=list(widget.titles)).reset_index(drop=True)
    for name in shown:
        if isinstance(shown[name].dtype, pd.Int32Dtype | pd.Int64Dtype | pd.BooleanDtype):
            shown[name] = shown[name].astype("float64")
        elif shown[name].dtype == object or isinstance(shown[name].dtype, pd.StringDtype):
            shown[name] = shown[name].fillna("–").astype(object)
    # A pager over one page is noise.
    paged = "local" if len(shown) > widget.page_size else None
    widget.param.update(selection=[], value=shown, pagination=paged)
