"""Roles of a table's parts, for screen readers: Tabulator's leave out what can be focused, and put buttons into a grid."""

from __future__ import annotations

from panel.io.model import JSCode

#: For Tabulator's option ``placeholder``, which it calls once for each table it builds, for what an empty one shows: nothing.
#: What has the focus, and scrolls, is the grid: it owns the titles above it, and says which row is chosen.
ROLES = JSCode("""function () {
  const grid = this.rowManager.element, titles = this.columnManager.element, pages = this.footerManager.element
  for (const wrong of ["role", "aria-owns"]) this.element.removeAttribute(wrong)
  titles.id = "titles"
  grid.setAttribute("role", "grid")
  grid.setAttribute("aria-owns", titles.id)
  grid.setAttribute("aria-label", "Rows: the arrow keys choose one")
  pages.setAttribute("role", "group")
  pages.setAttribute("aria-label", "Pages of the table")
  this.on("rowSelectionChanged", (data, rows, selected, deselected) => {
    for (const row of deselected) {
      row.getElement().removeAttribute("id")
      row.getElement().setAttribute("aria-selected", false)
    }
    for (const row of rows) {
      row.getElement().id = "chosen"
      row.getElement().setAttribute("aria-selected", true)
    }
    if (rows.length) grid.setAttribute("aria-activedescendant", "chosen")
    else grid.removeAttribute("aria-activedescendant")
  })
}""")
