"""Table whose rows lead elsewhere: a click opens the row that the browser shows, even while a newer frame is on its way."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import pandas as pd

from tilescope_dashboard.components.tables import Table, table
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.session.scheduling import next_tick


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
