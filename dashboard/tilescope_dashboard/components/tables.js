// What Panel's Tabulator lacks: roles for screen readers, the arrow keys, and rows that open. Tabulator calls this once for each table
// it builds, as its method, for what an empty table shows: nothing. ``opens`` says that rows lead elsewhere, ``called`` what they are.
function (opens, called) {
  // What has the focus, and scrolls, is the grid: it owns the titles above it, and says which row is chosen. Tabulator's own roles leave
  // out what can be focused, and put buttons into a grid.
  const grid = this.rowManager.element, titles = this.columnManager.element, pages = this.footerManager.element
  const put = (element, attributes) => Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value))
  for (const wrong of ["role", "aria-owns"]) this.element.removeAttribute(wrong)
  put(titles, {id: "titles"})
  put(grid, {role: "grid", "aria-owns": "titles", "aria-label": `${called}: the arrow keys choose one${opens ? ", Enter opens it" : ""}`})
  put(pages, {role: "group", "aria-label": `Pages of the table: ${called}`})
  this.on("rowSelectionChanged", (data, rows, selected, deselected) => {
    for (const row of deselected) put(row.getElement(), {id: "", "aria-selected": false})
    for (const row of rows) put(row.getElement(), {id: "chosen", "aria-selected": true})
    if (rows.length) put(grid, {"aria-activedescendant": "chosen"})
    else grid.removeAttribute("aria-activedescendant")
  })

  // The server gets the number of a row that is opened, not its place: it may have filled the table again. Bokeh has no other use
  // for tags; the time is there for who opens a row twice.
  const open = number => {
    const source = window.Bokeh.index.query_one(({tabulator}) => tabulator === this)?.model.source
    if (source) source.tags = [number, performance.now()]
  }
  // The choice of a row that opens is the browser's alone. Panel, which knows of none, takes it away when it fills the table.
  let chosen = null
  const choose = row => {
    chosen = row && row.getData().index
    this.deselectRow()
    if (row) this.selectRow(row)
  }
  const restore = () => {
    const row = grid.isConnected && this.getRows().find(row => row.getData().index === chosen)
    if (row && !this.getSelectedRows().length) this.selectRow(row)
  }
  if (opens) {
    this.on("rowSelectionChanged", (data, rows) => rows.length || setTimeout(restore))
    this.on("rowClick", (event, row) => open(row.getData().index))
  }

  const STEPS = {ArrowDown: 1, ArrowUp: -1}, FIRST = {ArrowDown: 0, ArrowUp: -1}
  grid.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const rows = this.getRows("display")
    const at = rows.findIndex(row => opens ? row.getData().index === chosen : row.isSelected())
    if (event.key in STEPS) {
      const row = at < 0 ? rows.at(FIRST[event.key]) : rows[at + STEPS[event.key]]
      event.preventDefault()
      if (opens && row) choose(row)
      else row?.getCells()[0].getElement().click()
      row?.getElement().scrollIntoView({block: "nearest"})
    } else if (opens && event.key === "Enter" && at >= 0) {
      event.preventDefault()
      open(chosen)
    } else if (opens && event.key === "Escape") choose(null)
  })
  return ""
}
