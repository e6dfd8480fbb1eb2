"""What a view says where no script may run: in a notebook that is not trusted, or on a code host. Pure HTML, all escaped."""

from __future__ import annotations

from html import escape

import pandas as pd
from tilescope.table import units

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.tables import Table
from tilescope_dashboard.views.base import View

#: Rows of a table.
_ROWS = 12
_OWN = {"watt": " W", "celsius": " °C", "times": "×", "flop/byte": " flop/B"}
#: It goes as soon as the view is drawn, and comes only when that has taken its time. A notebook that is not trusted has no
#: styles either.
_CSS = """:has(> [data-root-id] > *) + .without-scripts { display: none; }
.without-scripts { overflow: hidden; animation: without-scripts 1ms 5s both; }
@keyframes without-scripts { from { max-height: 0; opacity: 0; } }"""


def below(place: str, view: View) -> str:
    """``place``, the element that a script draws the view in, and what stands there as long as none has."""
    return f'{place}<div class="without-scripts">{_said(view)}</div><style>{_CSS}</style>'


def _said(view: View) -> str:
    tables = "".join(_table(shown) for shown in view.__panel__().select(Table) if shown.visible and len(shown.filled))
    hint = "Its figures and controls need scripts: trust this notebook, or run the cell."
    origin = escape(", ".join(filter(None, view.state.origin)))
    return f"<p><b>{escape(html_text.headline(view._head.object))}</b> ({origin})</p><p>{hint}</p>{tables}"


def _table(shown: Table) -> str:
    rows = shown.filled
    known = [name for name in shown.titles if (rows[name].notna() & (rows[name].astype("str") != "")).any()]
    head = "".join(f"<th>{escape(shown.titles[name])}</th>" for name in known)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(_value(row[name], shown.units[name]))}</td>' for name in known)}</tr>"
        for row in rows.head(_ROWS).to_dict("records")
    )
    more = f"<p>{len(rows) - _ROWS:,} more rows.</p>" if len(rows) > _ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _value(value: object, unit: str) -> str:
    if pd.isna(value):
        return "–"
    if unit == "text":
        return str(value)
    if unit in ("byte", "count"):
        return f"{value:,.0f}"
    if unit in _OWN:
        return f"{value:,.3g}{_OWN[unit]}"
    return units.text(float(value), unit)
