// A source and its assembly. A line is chosen by a click or the arrow keys; its lines in the other pane are marked.
export function render({model, el}) {
  const root = document.createElement("div")
  el.append(root)
  const rows = pane => [...root.querySelectorAll(`.${pane} tr[data-line]`)]

  function mark() {
    const own = rows("source"), made = rows("assembly")
    const isChosen = row => row.dataset.line === String(model.line)
    for (const row of [...own, ...made]) row.classList.toggle("chosen", isChosen(row))
    for (const row of own) {
      row.setAttribute("aria-selected", isChosen(row))
      row.tabIndex = row === (own.find(isChosen) ?? own[0]) ? 0 : -1
    }
    const status = root.querySelector('[role="status"]'), lines = made.filter(isChosen)
    if (status) status.textContent = model.line ? `line ${model.line}: ${lines.length} lines here` : ""
    return lines[0]
  }

  // What was clicked stays where it is; the other pane comes to it.
  function choose(row) {
    model.line = Number(row.dataset.line)
    const first = mark()
    show(row.closest(".source") ? first : root.querySelector(".source tr.chosen"))
  }

  function show(row) {
    const box = row?.closest(".scroll, .source")
    if (!box) return
    const place = row.getBoundingClientRect(), frame = box.getBoundingClientRect()
    if (place.top < frame.top + 40 || place.bottom > frame.bottom) box.scrollTop += place.top - frame.top - frame.height / 3
  }

  function fill() {
    const held = root.contains(el.getRootNode().activeElement?.closest("[name=stage]"))
    // The text is escaped where it is written.
    root.innerHTML = model.markup
    // Chromium gives a row that takes the focus no name of its cells.
    const said = cell => [...cell.childNodes].map(node => node.textContent).join(" ")
    for (const row of rows("source")) row.ariaLabel = [...row.cells].map(said).join(", ")
    show(mark())
    show(root.querySelector(".source tr.chosen"))
    if (held) root.querySelector("[name=stage]:checked")?.focus()
  }

  root.addEventListener("change", event => { model.stage = event.target.value })
  root.addEventListener("click", event => {
    const row = event.target.closest("tr[data-line]")
    if (row) choose(row)
  })

  const STEPS = {ArrowDown: 1, ArrowUp: -1, Enter: 0, " ": 0}
  root.addEventListener("keydown", event => {
    const at = event.target.closest(".source tr[data-line]")
    if (!at || !(event.key in STEPS)) return
    event.preventDefault()
    const all = rows("source"), row = all[all.indexOf(at) + STEPS[event.key]]
    row?.focus()
    if (row) choose(row)
  })

  model.on("markup", fill)
  model.on("line", mark)
  fill()
}
