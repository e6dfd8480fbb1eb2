"""Table whose rows lead elsewhere: a click opens the row that the browser shows, even while a newer frame is on its way."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from tilescope_dashboard.components.tables import Table, fill, table
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.session.scheduling import next_tick

#: Frames whose rows can still be opened. A browser is hardly ever more than one behind.
_KEPT = 64


class LinkTable(Table):
    """Calls ``opened`` with the row that a person opens.

    The server may have filled the table again by then. So every row of every frame has a number of its own, and the browser sends the
    number, as the first of the tags of the table's source (``table.js``).
    """

    opens = True

    def __init__(self, value: pd.DataFrame, units: Any, **settings: Any) -> None:
        super().__init__(value, units, **settings)
        self._sent: deque[tuple[int, pd.DataFrame]] = deque(maxlen=_KEPT)
        self._next = 0
        self._opened: Callable[[pd.Series], Any] = lambda row: None

    def show(self, rows: pd.DataFrame, listed: pd.DataFrame | None = None) -> None:
        """Show the rows, as ``listed`` if given. ``opened`` gets one of ``rows``."""
        self._sent.append((self._next, rows))
        fill(self, rows if listed is None else listed, self._next)
        self._next += len(rows)

    def open(self, number: int) -> None:
        """Open the row with this number."""
        for first, rows in self._sent:
            if first <= number < first + len(rows):
                self._opened(rows.iloc[number - first])

    def _get_model(self, *args: Any, **kwargs: Any) -> Any:
        model = super()._get_model(*args, **kwargs)
        model.source.on_change("tags", self._told)
        return model

    def _told(self, attr: str, old: Any, new: Any) -> None:
        if new and isinstance(new[0], int):
            next_tick(functools.partial(self.open, new[0]))


def link_table(columns: Iterable[Column], opened: Callable[[pd.Series], Any], **options: Any) -> LinkTable:
    """An empty table with these columns (``table``) whose rows are ``opened``."""
    made = table(columns, LinkTable, selectable=False, **options)
    made._opened = opened
    return made
