"""Frames as tables that sort by value and show units. Rows of some lead elsewhere."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pandas as pd
import panel as pn
from bokeh.models.widgets.tables import HTMLTemplateFormatter, NumberFormatter, StringFormatter
from panel.io.model import JSCode
from tilescope.models import baseline

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.components.download import Download, link
from tilescope_dashboard.data import exports
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.data.meanings import meaning
from tilescope_dashboard.session.scheduling import next_tick

#: A number with three digits, all of them in front of the point where there are more; 0 as it is.
_DIGITS = "(v => v && Math.abs(v) < 999.5 ? v.toPrecision(3) : Math.round(v).toLocaleString('en'))"
_ABSENT = 'value == null || value !== value ? "–" : '
_SCALED = f"(([f, p]) => {_DIGITS}(value / f) + ' ' + p + '%s')(%s.find(([f]) => Math.abs(value) >= f) || %s)"
_UP = "[[1e15,'P'],[1e12,'T'],[1e9,'G'],[1e6,'M'],[1e3,'k']]"
_DOWN = "[[1,''],[1e-3,'m'],[1e-6,'µ']]"


def _template(expression: str, kind: str = "") -> HTMLTemplateFormatter:
    shown = f"<%= {_ABSENT}{expression} %>"
    return HTMLTemplateFormatter(template=f'<div class="{kind}">{shown}</div>' if kind else shown)


#: Units whose values are scaled, by their symbol; and those that are written as they are, by a factor and what follows.
_SYMBOLS = {
    "flop": "flop", "op": "OP", "flop/second": "flop/s", "op/second": "OP/s", "byte/second": "B/s", "flop/byte": "flop/B", "hertz": "Hz",
}  # fmt: skip
_FOLLOWED = {"ratio": (100, " %"), "times": (1, "×"), "speedup": (1, "×"), "watt": (1, " W"), "celsius": (1, " °C")}


def _formatter(unit: str) -> Any:
    """Formatter of a column in that unit; the value below stays a number, so it sorts as one."""
    if unit == "second":
        return _template(_SCALED % ("s", _DOWN, "[1e-9,'n']"))
    if unit in _SYMBOLS:
        return _template(_SCALED % (_SYMBOLS[unit], _UP, "[1,'']"))
    if unit in _FOLLOWED:
        factor, after = _FOLLOWED[unit]
        # One that is almost nothing would be a row of zeros.
        return _template(
            f"(0 < value && value * {factor} < 0.001 ? '&lt; 0.001' : {_DIGITS}(value * {factor})) + '{after}'",
            "<%= value < 0.95 ? 'slower' : '' %>" if unit == "speedup" else "",
        )
    if unit in ("byte", "count"):
        # Bytes are counted exactly; a table is where one looks for the exact number.
        return NumberFormatter(format="0,0", nan_format="–")
    return StringFormatter(nan_format="–")


#: Widths in pixels that hold what a unit's values look like; a narrower page scrolls the table sideways. A column of words
#: becomes as wide as these need, up to ``_WIDEST``.
_WIDTHS = {"text": 112, "byte": 122, "count": 82, "second": 80, "ratio": 78, "times": 80, "speedup": 80, "flop": 92,
           "op": 92, "flop/second": 108, "op/second": 108, "flop/byte": 94, "byte/second": 84, "hertz": 88, "watt": 76, "celsius": 72}  # fmt: skip
_NAMED = {
    "impl": 84, "pass": 82, "level": 62, "kind": 86, "source": 92, "started": 132, "title": 160, "device": 112,
    "what": 84, "workload": 150, "function": 240, "config": 300, "kernel": 118, "value": 104, "sources": 180,
    "from_run": 192, "gpu": 170, "label": 210, "library": 76,
}  # fmt: skip
#: Pixels of a letter and of what stands around the text; a title is bold and has an arrow beside it, and a capital is wider.
_LETTER, _AROUND, _TITLE_LETTER, _CAPITAL, _AROUND_TITLE, _WIDEST = 7.2, 18, 8.2, 1.4, 30, 180
#: Columns whose words are told apart by their ends.
_WIDEST_OF = {
    "limiter": 280, "workload": 230, "launch_text": 260, "called": 220, "label": 340, "metric": 260, "sources": 260,
}  # fmt: skip
#: Pixels that a last column of words has at least.
_LEAST = 150
_CSS, _SCRIPT = (Path(__file__).with_suffix(end).read_text(encoding="utf-8") for end in (".css", ".js"))
#: A cell's whole text. Tabulator's own tooltip puts the value into the page as it is, so that a kernel's name would run as a script.
_TOOLTIP = """(event, cell) => {
  const value = cell.getValue()
  // What is absent is NaN in a column of numbers, and a dash in the cell.
  if (value === null || value === undefined || value === "" || value !== value) return ""
  return Object.assign(document.createElement("div"), {textContent: value})
}"""
#: Tabulator's own options. Panel tells it a new number of pages even before it is built, and again when it is: the first is
#: of no consequence, but for a warning.
_CONFIGURATION = {
    "debugInitialization": False,
    "rowHeight": 35,
    "columnDefaults": {"minWidth": 60, "headerWordWrap": True, "tooltip": JSCode(_TOOLTIP)},
}
#: Rows that are shown: the browser makes objects for every row it is given, and a hundred thousand take gigabytes.
_MOST = 10_000


class Table(pn.widgets.Tabulator):
    """A Tabulator that knows its columns' ``units`` and keeps the frame it was ``filled`` with, for downloads.

    ``called`` tells it from another table of its view. ``note`` says when it does not show all of it. ``picked`` is called with the place of the row that a user chooses, None for no
    row. Rows of a kind that ``opens`` lead elsewhere (``tables.js``).
    """

    opens = False
    called = "Rows"
    selection: Any
    hidden_columns: Any
    widths: Any

    def __init__(self, value: pd.DataFrame, units: Mapping[str, str], **settings: Any) -> None:
        super().__init__(value, **settings)
        self.units, self.filled, self.note = dict(units), value, html_text.pane()
        #: Columns of words that may be wider, or no wider, than others.
        self.widest = dict(_WIDEST_OF)
        self.picked: Callable[[int | None], object] = lambda place: None
        #: Declarations of the implementations, which say what they are called; the files have them by their own names.
        self.declared: Callable[[], Mapping[str, str]] = dict
        self._filling = False
        self.param.watch(lambda event: self._filling or self.picked(next(iter(event.new), None)), "selection")

    def rewrite(self, columns: Iterable[Column]) -> None:
        """Write these columns in their units, under their titles, from now on."""
        changed = [c for c in columns if (self.units[c.name], self.titles[c.name]) != (c.unit, c.title)]
        if changed:
            self.units |= {column.name: column.unit for column in changed}
            self.param.update(
                formatters={**self.formatters, **{column.name: _formatter(column.unit) for column in changed}},
                titles={**self.titles, **{column.name: column.title for column in changed}},
            )

    def hide(self, columns: list[str]) -> None:
        """Leave these columns out."""
        if columns != self.hidden_columns:
            self.hidden_columns = columns

    @property
    def chosen(self) -> int | None:
        """The place of the chosen row."""
        return next(iter(self.selection), None)

    def choose(self, place: int | None) -> None:
        """Choose the row and turn to its page: the browser warns of a row that it cannot scroll to.

        A row that is chosen already is seen, on whatever page the browser has sorted it to.
        """
        if place == self.chosen:
            return
        if place is not None and not self.sorters:
            self.page = place // (self.page_size or len(self.filled) or 1) + 1
        self._update(selection=[] if place is None else [place])

    def fill(self, frame: pd.DataFrame, numbers: Sequence[int] = ()) -> None:
        """Show the columns of ``frame`` that the table knows; a column that it lacks is absent. No row is chosen then.

        Rows have these ``numbers``, or are counted.
        """
        shown = self._shown(frame)
        if numbers:
            shown.index = pd.Index(numbers[: len(shown)])
        wider = self._wider(shown)
        if wider:
            self.widths = {**self.widths, **wider}
        self._update(selection=[], value=shown)

    def renew(self, frame: pd.DataFrame) -> None:
        """``fill`` for a short table whose values change all the time: the chosen row stays chosen.

        All of it is sent: a browser that has not drawn the table yet stumbles over single cells.
        """
        if len(frame) == len(self.filled):
            self.value = self._shown(frame)
        else:
            self.fill(frame)

    def _update(self, **changes: Any) -> None:
        self._filling = True
        self.param.update(**changes)
        self._filling = False

    def _shown(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The rows as the browser takes them; ``filled`` has them all."""
        shown = frame.reindex(columns=list(self.titles)).reset_index(drop=True)
        self.filled, declared = shown.copy(), self.declared()
        if "impl" in shown:
            shown["impl"] = shown["impl"].map(lambda impl: baseline.called(impl, declared), na_action="ignore")
        for name in shown:
            if isinstance(shown[name].dtype, pd.Int32Dtype | pd.Int64Dtype | pd.BooleanDtype):
                shown[name] = shown[name].astype("float64")
            elif shown[name].dtype == object or isinstance(shown[name].dtype, pd.StringDtype):
                shown[name] = shown[name].fillna("–").astype(object)
        cut = len(shown) > _MOST and self.pagination != "remote"
        said = f"The first {_MOST:,} of {len(shown):,} rows; the files hold all of them."
        self.note.object = f'<p class="small">{said}</p>' if cut else ""
        return shown.head(_MOST) if cut else shown

    def _wider(self, shown: pd.DataFrame) -> dict[str, int]:
        """Columns of words that are too narrow for them, and how wide they have to be. They never become narrower: with each
        change of widths the browser draws the table anew.
        """
        wider = {}
        for name, width in self.widths.items():
            most = self.widest.get(name, _WIDEST)
            if self.units[name] == "text" and width < most and len(shown):
                needed = _LETTER * max(len(str(value)) for value in shown[name].unique()) + _AROUND
                if needed > width:
                    wider[name] = min(most, round(needed))
        return wider

    def _process_event(self, event: Any) -> None:
        """Leave clicks alone: nobody listens, and Panel raises KeyError for one on a row that is gone."""
        if event.event_name == "selection-change":
            super()._process_event(event)

    def _update_style(self, recompute: bool = True) -> None:
        """Send no cells' styles, as there are none: a browser that has not drawn the table yet stumbles over them."""


def table(columns: Iterable[Column], kind: type[Table] = Table, *, called: str = "Rows", **options: Any) -> Table:
    """An empty table of that kind with these columns.

    The last column takes what room is left; if of words, enough to read some. A table of launches has
    ``pagination="remote"``: a page of it is sent at a time, which is of no use where no server stands behind.
    """
    *others, last = columns
    readable = [] if last.number else [{"field": last.name, "minWidth": _LEAST}]
    every = [*others, last]
    numeric = [column.name for column in every if column.number]
    settings: dict[str, Any] = {"pagination": "local", "page_size": 12, "selectable": 1, **options}
    known = f"{json.dumps(kind.opens)}, {json.dumps(called)}"
    script = JSCode(f"function () {{ return ({_SCRIPT}).call(this, {known}) }}")
    widths = {c.name: max(_NAMED.get(c.name, _WIDTHS[c.unit]), _title_width(c.title)) for c in others}
    made = kind(
        pd.DataFrame({c.name: [] for c in every}),
        {c.name: c.unit for c in every},
        titles={c.name: c.title for c in every},
        formatters={c.name: _formatter(c.unit) for c in every},
        text_align=dict.fromkeys(numeric, "right"),
        header_align=dict.fromkeys(numeric, "right"),
        # A phone scrolls the others, and still names the row.
        frozen_columns=[every[0].name],
        header_tooltips={c.name: meaning(c.title) for c in every},
        # Else each cell takes the focus for an editor that then does not open: hundreds of stops for the Tab key.
        editors=dict.fromkeys(c.name for c in every),
        show_index=False,
        disabled=True,
        layout="fit_columns",
        sizing_mode="stretch_width",
        theme="simple",
        configuration={**_CONFIGURATION, "columns": readable, "placeholder": script},
        stylesheets=[_CSS],
        widths=widths,
        margin=(4, 8, 0, 8),
        **settings,
    )
    made.called = called
    return made


def _title_width(title: str) -> int:
    """Pixels of a title that breaks between words only."""
    widths = (_TITLE_LETTER * len(word) + _CAPITAL * sum(map(str.isupper, word)) for word in title.split())
    return round(max(widths, default=0)) + _AROUND_TITLE


def downloads(widget: Table, name: Callable[[], str]) -> pn.Column:
    """Two links that save what the table shows, all its pages, unscaled (``exports.plain``), as CSV and as Parquet.

    The file is made, and ``name`` asked for its name without an ending, when a link is pressed; below them stands why it
    could not be.
    """

    def saving(label: str, ending: str, write: Callable[[pd.DataFrame], io.BytesIO]) -> Download:
        def make() -> io.BytesIO:
            return write(exports.plain(widget.filled, widget.units))

        return link(label, make, lambda: f"{name()}.{ending}", f"Save {what} as {label}, values unscaled")

    what = "this table" if widget.called == Table.called else f"the table of {widget.called}"
    links = [saving("CSV", "csv", exports.as_csv), saving("Parquet", "parquet", exports.as_parquet)]
    first = next((title for title in widget.titles.values() if meaning(title)), "")
    whose = "" if widget.called == Table.called else f" of {widget.called}"
    about = html_text.pane(
        f'<p class="small">{html_text.explained(first, f"What the columns{whose} mean")}</p>' if first else ""
    )
    row = pn.Row(widget.note, about, *links, sizing_mode="stretch_width", margin=(0, 8, 8, 0))
    return layout.column(row, *[pressed.said for pressed in links])


class LinkTable(Table):
    """Calls ``opened`` with the row that a user opens.

    The server may have filled the table again by then. So a row has a number, and the browser sends the number, as the first of the
    tags of the table's source (``tables.js``). A row with the same values in the columns ``identity`` keeps its number in every frame.
    """

    opens = True
    identity: Sequence[str]
    opened: Callable[[pd.Series], Any]

    def __init__(self, value: pd.DataFrame, units: Any, **settings: Any) -> None:
        super().__init__(value, units, **settings)
        self._numbers: dict[tuple[str, ...], int] = {}
        #: By number, the last frame with the row, and its place in it.
        self._rows: dict[int, tuple[pd.DataFrame, int]] = {}

    def show(self, rows: pd.DataFrame, listed: pd.DataFrame | None = None) -> None:
        """Show the rows, as ``listed`` if given. ``opened`` gets one of ``rows``."""
        named = [rows[name].astype(str) for name in self.identity]
        alike = rows.groupby(named, sort=False).cumcount().astype(str) if len(rows) else ()
        numbers = [self._numbers.setdefault(key, len(self._numbers)) for key in zip(*named, alike, strict=True)]
        self._rows |= {number: (rows, place) for place, number in enumerate(numbers)}
        self.fill(rows if listed is None else listed, numbers)

    def open(self, number: int) -> None:
        """Open the row with this number."""
        if found := self._rows.get(number):
            rows, place = found
            self.opened(rows.iloc[place])

    def _get_model(self, *args: Any, **kwargs: Any) -> Any:
        model = super()._get_model(*args, **kwargs)
        model.source.on_change("tags", self._told)
        return model

    def _told(self, attr: str, old: Any, new: Any) -> None:
        if new and isinstance(new[0], int):
            next_tick(functools.partial(self.open, new[0]))


def link_table(
    columns: Iterable[Column], opened: Callable[[pd.Series], Any], identity: Sequence[str], **options: Any
) -> LinkTable:
    """An empty table with these columns (``table``) whose rows are ``opened`` and recognized by the columns ``identity``."""
    made = cast(LinkTable, table(columns, LinkTable, selectable=False, **options))
    made.opened, made.identity = opened, identity
    return made
