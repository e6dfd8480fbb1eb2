// A source and its assembly. A line is chosen by a click or the arrow keys; its lines in the other pane are marked.
export function render({ model, el }) {
  const root = document.createElement("div")
  el.append(root)

  const rows = pane => [...root.querySelectorAll(`.${pane} tr[data-line]`)]

  function mark() {
    const line = String(model.line)
    for (const row of [...rows("source"), ...rows("assembly")]) {
      const chosen = row.dataset.line === line
      row.classList.toggle("chosen", chosen)
      if (row.closest(".source")) {
        row.tabIndex = chosen ? 0 : -1
        row.setAttribute("aria-selected", chosen)
      }
    }
    const own = rows("source")
    if (own.length && !own.some(row => row.tabIndex === 0)) own[0].tabIndex = 0
    const made = root.querySelectorAll(".assembly tr.chosen")
    const status = root.querySelector('[role="status"]')
    if (status) status.textContent = model.line ? `line ${model.line}: ${made.length} lines here` : ""
    return made[0]
  }

  function choose(line, from) {
    model.line = line
    const first = mark()
    // What was clicked stays where it is; the other pane comes to it.
    const target = from === "source" ? first : root.querySelector(".source tr.chosen")
    show(target)
  }

  function show(row) {
    const box = row?.closest(".scroll, .source")
    if (!box) return
    const place = row.getBoundingClientRect(), frame = box.getBoundingClientRect()
    if (place.top < frame.top + 40 || place.bottom > frame.bottom) box.scrollTop += place.top - frame.top - frame.height / 3
  }

  function fill() {
    // The text is escaped where it is written.
    root.innerHTML = model.markup
    show(mark())
    show(root.querySelector(".source tr.chosen"))
  }

  root.addEventListener("click", event => {
    const stage = event.target.closest("[data-stage]")
    if (stage) model.stage = stage.dataset.stage
    const row = event.target.closest("tr[data-line]")
    if (row) choose(Number(row.dataset.line), row.closest(".source") ? "source" : "assembly")
  })

  root.addEventListener("keydown", event => {
    const steps = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }
    const step = steps[event.key]
    const row = event.target.closest(".source tr[data-line]")
    const stage = event.target.closest("[data-stage]")
    if (row && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
      const all = rows("source")
      const next = all[all.indexOf(row) + step]
      if (next) {
        next.focus()
        choose(Number(next.dataset.line), "source")
      }
      event.preventDefault()
    } else if (row && (event.key === "Enter" || event.key === " ")) {
      choose(Number(row.dataset.line), "source")
      event.preventDefault()
    } else if (stage && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      const all = [...root.querySelectorAll("[data-stage]")]
      const next = all[(all.indexOf(stage) + step + all.length) % all.length]
      model.stage = next.dataset.stage
      root.dataset.focus = "stage"
      event.preventDefault()
    }
  })

  model.on("markup", () => {
    fill()
    if (root.dataset.focus) root.querySelector('[data-stage][aria-checked="true"]')?.focus()
    delete root.dataset.focus
  })
  model.on("line", mark)
  fill()
}
