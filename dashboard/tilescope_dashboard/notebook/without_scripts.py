"""A view as plain HTML, where no script may run: in a notebook that is not trusted, or on a code host."""

from __future__ import annotations

from html import escape

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.tables import Table
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.views.base import View

#: Rows of a table.
_ROWS = 12
#: It goes as soon as the view is drawn, and comes only when that has taken its time. A notebook that is not trusted has no
#: styles either.
_CSS = """:has(> [data-root-id] > *) + .without-scripts { display: none; }
.without-scripts { overflow: hidden; animation: without-scripts 1ms 5s both; }
@keyframes without-scripts { from { max-height: 0; opacity: 0; } }"""


def below(place: str, view: View) -> str:
    """``place``, the element that a script draws the view in, and what stands there as long as none has."""
    return f'{place}<div class="without-scripts">{_said(view)}</div><style>{_CSS}</style>'


def _said(view: View) -> str:
    known = [shown for shown in view.__panel__().select(Table) if isinstance(shown, Table)]
    tables = "".join(_table(shown) for shown in known if shown.visible and len(shown.filled))
    hint = "Figures and controls need scripts: trust this notebook, or run the cell."
    origin = escape(", ".join(filter(None, view.origin)))
    return f"<p><b>{escape(html_text.title_of(view.head.object))}</b> ({origin})</p><p>{hint}</p>{tables}"


def _table(shown: Table) -> str:
    rows = shown.filled
    every = [Column(name, title, shown.units[name]) for name, title in shown.titles.items()]
    known = [c for c in every if (rows[c.name].notna() & (rows[c.name].astype("str") != "")).any()]
    head = "".join(f"<th>{escape(column.title)}</th>" for column in known)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(column.text(row[column.name]))}</td>' for column in known)}</tr>"
        for row in rows.head(_ROWS).to_dict("records")
    )
    more = f"<p>{len(rows) - _ROWS:,} more rows.</p>" if len(rows) > _ROWS else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
