"""What a table's cell tells in full when the pointer rests on it: text, which Tabulator itself takes for markup."""

from __future__ import annotations

from panel.io.model import JSCode
from panel.widgets import Tabulator

#: Tabulator's own tooltip puts the value into the page as it is, so that a kernel's name would run as a script.
_TELL = JSCode("""(event, cell) => {
  const value = cell.getValue()
  if (value === null || value === undefined || value === "") return ""
  const told = document.createElement("div")
  told.textContent = value
  return told
}""")


def as_text(table: Tabulator) -> None:
    """Have every cell of the table tell its value as text. Before the table is shown: Panel sends what is set once."""
    before = table._configuration
    table._configuration = {**before, "columnDefaults": {**before.get("columnDefaults", {}), "tooltip": _TELL}}
