// A button that opens something on the page. The server keeps the name of what is open.

const FIELDS = "input, [role=combobox], textarea"
// Milliseconds for which what is opened is waited for, and between two looks.
const PATIENCE = 30000, LOOK = 60

const seen = element => element.checkVisibility({visibilityProperty: true}) && !element.disabled && element.tabIndex >= 0

// Whether a menu, a list or a dialog lies over everything: Esc is for that then.
const covered = () => every(".MuiPopover-root, .MuiDialog-root, dialog[open]").length > 0

export function render({model}) {
  const button = document.createElement("button"), value = document.createElement("span")
  button.type = "button"
  button.className = model.caption ? "field" : "main"
  button.setAttribute("aria-haspopup", "dialog")
  value.className = "value"
  button.append(value)
  if (model.caption) button.dataset.caption = model.caption

  // To look through the whole page takes long.
  let held = null
  const holder = () => (held = held?.isConnected ? held : every(model.within)[0])
  const isOpen = () => model.panel === model.opens
  const write = () => {
    value.textContent = button.title = model.text
    button.setAttribute("aria-label", `${model.caption} ${model.text}`.trim())
  }

  // What is opened may still be on its way. Whoever opened it goes in, unless they have gone on to something else.
  function enter(from, until) {
    if (!isOpen()) return
    const place = holder(), at = focused()
    place?.setAttribute("role", "dialog")
    place?.setAttribute("aria-label", model.caption || model.text)
    const first = place && every(model.over ? `${FIELDS}, button` : FIELDS, place).find(seen)
    if (first && at === from) first.focus()
    else if (!first && performance.now() < until) setTimeout(enter, LOOK, from, until)
  }

  function show() {
    const is = isOpen(), at = focused(), place = holder()
    if (button.getAttribute("aria-expanded") === String(is)) return
    button.setAttribute("aria-expanded", is)
    if (is) return enter(at, performance.now() + PATIENCE)
    // Who has gone on to something else keeps that.
    const left = at === document.body || !at.checkVisibility() || around(at).includes(place)
    if (left && !model.panel) button.focus()
  }

  function go(name) {
    model.panel = name
    show()
  }

  function pressed(event) {
    if (event.key !== "Escape" || !isOpen()) return
    const at = event.composedPath()[0]
    if (covered() || (at !== button && at.matches?.("[aria-expanded=true]"))) return
    event.preventDefault()
    event.stopPropagation()
    go("")
  }

  function elsewhere(event) {
    const path = event.composedPath()
    if (isOpen() && model.over && !path.includes(button) && !path.includes(holder()) && !covered()) go("")
  }

  button.addEventListener("click", () => go(isOpen() ? "" : model.opens))
  document.addEventListener("keydown", pressed, true)
  document.addEventListener("pointerdown", elsewhere, true)
  model.on("panel", show)
  model.on("text", write)
  model.on("remove", () => {
    document.removeEventListener("keydown", pressed, true)
    document.removeEventListener("pointerdown", elsewhere, true)
  })
  write()
  // The page puts its drawer into a landmark of navigation, which has no name.
  every("nav:not([aria-label])").forEach(nav => nav.setAttribute("role", "presentation"))
  button.setAttribute("aria-expanded", isOpen())
  enter(null, performance.now() + PATIENCE)
  return button
}
