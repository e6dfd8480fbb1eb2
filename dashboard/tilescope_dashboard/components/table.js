// What Panel's Tabulator lacks: roles for screen readers, the arrow keys, and rows that open. Tabulator calls this once for each table
// it builds, as its method, for what an empty table shows: nothing. ``opens`` says that rows lead elsewhere.
function (opens) {
  // What has the focus, and scrolls, is the grid: it owns the titles above it, and says which row is chosen. Tabulator's own roles leave
  // out what can be focused, and put buttons into a grid.
  const grid = this.rowManager.element, titles = this.columnManager.element, pages = this.footerManager.element
  for (const wrong of ["role", "aria-owns"]) this.element.removeAttribute(wrong)
  titles.id = "titles"
  grid.setAttribute("role", "grid")
  grid.setAttribute("aria-owns", titles.id)
  grid.setAttribute("aria-label", `Rows: the arrow keys choose one${opens ? ", Enter opens it" : ""}`)
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

  // The server gets the number of a row that is opened, not its place: it may have filled the table again. Bokeh has no other use
  // for tags; the time is there for who opens a row twice.
  const all = function* (views) { for (const view of views) { yield view; yield* all(view.children?.() ?? []) } }
  const numberOf = row => this.getRow(row).getData().index
  const source = () => [...all(window.Bokeh.index)].find(({tabulator}) => tabulator === this)?.model.source
  const open = (number, of = source()) => {
    if (of) of.tags = [number, performance.now()]
  }
  // The choice of a row that opens is the browser's alone. Panel, which knows of none, takes it away once while the page comes.
  let chosen = null
  const choose = row => {
    chosen = row && numberOf(row)
    this.deselectRow()
    if (row) this.selectRow(row)
  }
  const restore = () => {
    const row = grid.isConnected && this.getRows().find(row => row.getData().index === chosen)
    if (row && !this.getSelectedRows().length) this.selectRow(row)
  }
  if (opens) this.on("rowSelectionChanged", (data, rows) => rows.length || setTimeout(restore))

  const STEPS = {ArrowDown: 1, ArrowUp: -1}, FIRST = {ArrowDown: 0, ArrowUp: -1}
  grid.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return
    const rows = [...grid.querySelectorAll(".tabulator-row")]
    // While the table is filled again no row is selected, but one may be chosen.
    const at = rows.findIndex(row => opens ? numberOf(row) === chosen : row.classList.contains("tabulator-selected"))
    if (event.key in STEPS) {
      const row = at < 0 ? rows.at(FIRST[event.key]) : rows[at + STEPS[event.key]]
      event.preventDefault()
      if (opens && row) choose(row)
      else row?.querySelector(".tabulator-cell")?.click()
      row?.scrollIntoView({block: "nearest"})
    } else if (opens && event.key === "Enter" && at >= 0) {
      event.preventDefault()
      open(numberOf(rows[at]))
    } else if (opens && event.key === "Escape") choose(null)
  })
  if (!opens) return ""

  // Panel hears no click while it builds or fills a table, and the browser tells of none whose row is replaced between press and
  // release. So a row opens that was pressed, wherever it is when it is released nearby.
  const NEAR = 10, SAME = 1000
  const rowOf = event => event.composedPath().find(at => at.classList?.contains("tabulator-row"))
  let last = -SAME
  grid.addEventListener("pointerdown", event => {
    const row = rowOf(event)
    if (!row || !event.isPrimary || event.button !== 0) return
    // Panel may have built another table in this one's place by the time of the release; its source is the same.
    const number = numberOf(row), pressed = source(), over = new AbortController()
    choose(row)
    const released = ({clientX, clientY}) => {
      over.abort()
      last = performance.now()
      if (Math.hypot(clientX - event.clientX, clientY - event.clientY) < NEAR) open(number, pressed)
    }
    document.addEventListener("pointerup", released, {capture: true, signal: over.signal})
    document.addEventListener("pointercancel", () => over.abort(), {capture: true, signal: over.signal})
  })
  // A screen reader clicks without pressing.
  grid.addEventListener("click", event => {
    const row = rowOf(event)
    if (row && performance.now() - last > SAME) open(numberOf(row))
  })
  return ""
}
