"""Table whose rows lead elsewhere: a click opens the row that the browser shows, even while a newer frame is on its way."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
from bokeh.models import CustomJS

from tilescope_dashboard.components.tables import Table, fill, table
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.session.scheduling import next_tick

#: Frames whose rows can still be opened. A browser is hardly ever more than one behind.
_KEPT = 16
#: The property of the table's source in which the browser names the chosen row: Bokeh has no other use for it.
_SAYS = "tags"
_SAY = f"source.{_SAYS} = source.selected.indices.map(place => source.data.index[place])"


class LinkTable(Table):
    """Calls ``opened`` with the row that a person chooses.

    A selection is a place in the browser's frame. The server may have filled the table again by then, and would look the place up in the
    newer frame. So every row of every frame has a number of its own, and the browser sends the number.
    """

    def __init__(self, value: pd.DataFrame, units: Any, **settings: Any) -> None:
        super().__init__(value, units, **settings)
        self._sent: deque[tuple[int, pd.DataFrame]] = deque(maxlen=_KEPT)
        self._opened: Callable[[pd.Series], Any] = lambda row: None

    def show(self, rows: pd.DataFrame, listed: pd.DataFrame | None = None) -> None:
        """Show the rows, as ``listed`` if given. ``opened`` gets one of ``rows``."""
        self._sent.append((self.first, rows))
        fill(self, rows if listed is None else listed)
        self.first += len(rows)

    def open(self, number: int) -> None:
        """Open the row with this number, and clear the selection, so that the row can be chosen again later."""
        for first, rows in self._sent:
            if first <= number < first + len(rows):
                self.selection = []
                self._opened(rows.iloc[number - first])

    def _get_model(self, *args: Any, **kwargs: Any) -> Any:
        model = super()._get_model(*args, **kwargs)
        model.source.selected.js_on_change("indices", CustomJS(args={"source": model.source}, code=_SAY))
        model.source.on_change(_SAYS, self._told)
        return model

    def _told(self, attr: str, old: Any, new: Any) -> None:
        if new:
            next_tick(functools.partial(self.open, int(new[0])))


def link_table(columns: Iterable[Column], opened: Callable[[pd.Series], Any], **options: Any) -> LinkTable:
    """An empty table with these columns (``table``) whose rows are ``opened``."""
    made = table(columns, LinkTable, **options)
    made._opened = opened
    return made
