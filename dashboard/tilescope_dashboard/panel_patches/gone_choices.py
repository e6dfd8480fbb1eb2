"""A choice that a select has no longer is no error of the server: the page is told again what holds.

A page sends a field's value back once it has drawn it. Where the server has given the field other choices meanwhile, Panel 1.9.4
raised ``ValueError: ... not in list``, two tracebacks in the log, and the page went on showing what is gone.
"""

from __future__ import annotations

from typing import Any

from panel.widgets.select import SingleSelectBase

_panels_process = SingleSelectBase._process_property_change


def refuse() -> None:
    """From here on in this process."""
    SingleSelectBase._process_property_change = process


def process(self: SingleSelectBase, told: dict[str, Any]) -> dict[str, Any]:
    """``SingleSelectBase._process_property_change``, of what the select has."""
    value = told.get("value")
    if not isinstance(value, str) or not value or not self.values or value in (*self.unicode_values, *self.labels):
        return _panels_process(self, told)
    for reference, (model, _) in self._models.copy().items():
        self._apply_update({}, self._process_param_change({"value": self.value}), model, reference)
    return _panels_process(self, {name: given for name, given in told.items() if name != "value"})
