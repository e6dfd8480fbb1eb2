// Keys for the whole page, and the sheet that lists them.

const TYPING = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable=true], [role=combobox], [role=option]"
const OPENING = ["Enter", " ", "ArrowDown", "ArrowUp"]
const CLOSED = ".MuiSelect-select[aria-expanded=false]:not([aria-disabled=true])"

// What a letter opens, or closes where it is open.
const PANELS = {p: "profile", g: "gpu"}

// In a figure that has the focus: by what part of what is seen it goes to the side, and how much more is seen then.
const MOVES = {ArrowLeft: [-0.2, 1], ArrowRight: [0.2, 1], "+": [0, 0.5], "=": [0, 0.5], "-": [0, 2], "0": null}

function* views(roots) {
  for (const view of roots) {
    yield view
    yield* views(view.children?.() ?? [])
  }
}

function move(canvas, key) {
  const host = canvas.getRootNode().host
  const figure = [...views(window.Bokeh?.index ?? [])].find(view => view.model.type === "Figure" &&
    (view.el === host || view.shadow_el?.contains(host) || view.canvas_view?.el === host))
  if (!figure || figure.model.x_range.type === "FactorRange") return
  if (MOVES[key] === null) return figure.reset()
  const range = figure.model.x_range
  const log = figure.model.x_scale.type === "LogScale"
  const [to, from] = log ? [Math.log, Math.exp] : [value => value, value => value]
  const [step, factor] = MOVES[key]
  const [start, end] = [to(range.start), to(range.end)]
  const [middle, half] = [(start + end) / 2 + step * (end - start), factor * (end - start) / 2]
  range.setv({start: from(middle - half), end: from(middle + half)})
}

// What takes the focus but does not say what it is: Bokeh's toolbar and canvas.
const TOOLS = ".bk-OnOffButton, .bk-ClickButton, .bk-tool-overflow"

function name(element) {
  const {classList} = element, tool = element.matches(TOOLS)
  element.setAttribute("role", tool ? "button" : "application")
  element.setAttribute("aria-label", tool ? element.title || "More tools" : "Figure: its numbers are in the table")
  if (classList.contains("bk-OnOffButton")) element.setAttribute("aria-pressed", classList.contains("bk-active"))
}

const toTab = () => every("[role=tab][aria-selected=true]").filter(tab => tab.checkVisibility()).at(-1)?.focus()

export function render({model}) {
  const place = document.createElement("div")
  // The text is escaped where it is written.
  place.innerHTML = model.markup
  const [button, dialog] = place.children
  const toggle = () => (dialog.open ? dialog.close() : dialog.showModal())
  button.addEventListener("click", toggle)
  dialog.querySelector("button").addEventListener("click", toggle)

  function pressed(event) {
    // Many keyboards have the brackets behind AltGr, which Windows reports as Ctrl and Alt, or behind Option.
    const bracket = event.key === "[" || event.key === "]"
    const chord = event.metaKey || (event.altKey ? !bracket : event.ctrlKey)
    const at = event.composedPath()[0]
    // Material UI's list hears these keys, but Panel opens it for a click alone.
    if (!chord && OPENING.includes(event.key) && at.matches?.(CLOSED)) return at.click()
    if (chord || event.defaultPrevented) return
    // Now, before the focus moves: a move within one shadow root is heard by nobody outside.
    if (event.key === "Tab") every(`${TOOLS}, .bk-events`).forEach(name)
    if (event.key === "Escape") {
      // An open menu or the sheet closes by itself.
      if (!dialog.open && !every(".MuiPopover-root, .MuiModal-root").length) model.send_msg({clear: true})
    } else if (at.matches?.(TYPING) && !at.matches(CLOSED)) {
      // A closed list has the focus after a choice, and hears no letters.
      return
    } else if (event.key === "?") {
      toggle()
    } else if (dialog.open) {
      return
    } else if (/^[1-9]$/.test(event.key)) {
      model.send_msg({number: Number(event.key)})
    } else if (bracket) {
      model.send_msg({step: event.key === "]" ? 1 : -1})
    } else if (event.key in PANELS) {
      model.send_msg({panel: PANELS[event.key]})
    } else if (at.matches?.(".bk-events") && event.key in MOVES) {
      event.preventDefault()
      move(at, event.key)
    } else if (at.matches?.(".bk-OnOffButton, .bk-ClickButton") && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault()
      at.click()
    }
  }

  // Before everything else on the page, and seen only while it has the focus. It names a place: else it would be outside of all landmarks.
  const link = document.createElement("a")
  link.href = `#${document.querySelector("[data-root-id]")?.id ?? ""}`
  link.className = "skip"
  link.textContent = "Skip to the views"
  link.addEventListener("click", event => {
    event.preventDefault()
    toTab()
  })
  document.body.prepend(link)
  document.addEventListener("keydown", pressed)
  // The tabs are marked once the browser has had a moment for them.
  model.on("msg:custom", () => setTimeout(toTab, 50))
  model.on("remove", () => {
    link.remove()
    document.removeEventListener("keydown", pressed)
  })
  return place
}
