"""Leaves a click alone whose row is gone.

A page sends the place of the row that was pressed. If the server has filled the table again meanwhile, with fewer rows, Panel 1.9.4
raises ``KeyError`` in the session, which logs a traceback and puts an error on the page.
"""

from __future__ import annotations

from typing import Any

from panel.widgets import Tabulator

_panels_process = Tabulator._process_event


def leave() -> None:
    """Install the patch in this process."""
    Tabulator._process_event = process


def process(self: Tabulator, event: Any) -> None:
    """``Tabulator._process_event`` for rows that the table has."""
    if event.event_name != "selection-change":
        before = (self.page - 1) * (self.page_size or self.initial_page_size) if self.pagination == "remote" else 0
        place = before + event.row
        if self._index_mapping.get(place, place) not in self.value.index:
            return
    _panels_process(self, event)
