"""Tooltip with a table cell's whole text. Tabulator's own would treat the text as markup."""

from __future__ import annotations

from panel.io.model import JSCode

#: For Tabulator's option ``tooltip``. Its own puts the value into the page as it is, so that a kernel's name would run as a
#: script.
AS_TEXT = JSCode("""(event, cell) => {
  const value = cell.getValue()
  // What is absent is NaN in a column of numbers, and a dash in the cell.
  if (value === null || value === undefined || value === "" || value !== value) return ""
  const told = document.createElement("div")
  told.textContent = value
  return told
}""")
