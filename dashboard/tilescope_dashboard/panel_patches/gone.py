"""What a page sends of a choice that the server has replaced meanwhile.

A page sends a select's value back once it has drawn it. If the server has changed the options meanwhile, Panel 1.9.4 raises
``ValueError: ... not in list``, logs two tracebacks, and the page keeps showing the old value: the value is refused, and the current one
sent.
"""

from __future__ import annotations

from typing import Any

from panel.widgets.select import SingleSelectBase

_process_choice = SingleSelectBase._process_property_change


def install() -> None:
    SingleSelectBase._process_property_change = process_choice


def process_choice(self: SingleSelectBase, told: dict[str, Any]) -> dict[str, Any]:
    """``SingleSelectBase._process_property_change`` for values that the select offers."""
    value = told.get("value")
    if not isinstance(value, str) or not value or not self.values or value in (*self.unicode_values, *self.labels):
        return _process_choice(self, told)
    for reference, (model, _) in self._models.copy().items():
        self._apply_update({}, self._process_param_change({"value": self.value}), model, reference)
    return _process_choice(self, {name: given for name, given in told.items() if name != "value"})
