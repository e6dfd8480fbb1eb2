"""What a page sends of a choice or a row that the server has replaced meanwhile.

A page sends a select's value back once it has drawn it. If the server has changed the options meanwhile, Panel 1.9.4 raises
``ValueError: ... not in list``, logs two tracebacks, and the page keeps showing the old value: the value is refused, and the current one
sent. A page sends the place of the row that was pressed. If the server has filled the table again with fewer rows, Panel raises
``KeyError`` in the session and puts an error on the page: the click is left alone.
"""

from __future__ import annotations

from typing import Any

from panel.widgets import Tabulator
from panel.widgets.select import SingleSelectBase

_process_choice, _process_row = SingleSelectBase._process_property_change, Tabulator._process_event


def install() -> None:
    """Install the patches in this process."""
    SingleSelectBase._process_property_change, Tabulator._process_event = process_choice, process_row


def process_choice(self: SingleSelectBase, told: dict[str, Any]) -> dict[str, Any]:
    """``SingleSelectBase._process_property_change`` for values that the select offers."""
    value = told.get("value")
    if not isinstance(value, str) or not value or not self.values or value in (*self.unicode_values, *self.labels):
        return _process_choice(self, told)
    for reference, (model, _) in self._models.copy().items():
        self._apply_update({}, self._process_param_change({"value": self.value}), model, reference)
    return _process_choice(self, {name: given for name, given in told.items() if name != "value"})


def process_row(self: Tabulator, event: Any) -> None:
    """``Tabulator._process_event`` for rows that the table has."""
    if event.event_name != "selection-change":
        before = (self.page - 1) * (self.page_size or self.initial_page_size) if self.pagination == "remote" else 0
        place = before + event.row
        if self._index_mapping.get(place, place) not in self.value.index:
            return
    _process_row(self, event)
