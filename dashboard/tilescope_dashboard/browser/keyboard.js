// Keys for the whole page, the sheet that lists them, and a link past the bar.

const STYLE = `
  button { font: 600 14px/1 inherit; width: 30px; height: 30px; border-radius: 50%; cursor: pointer; color: inherit;
    background: transparent; border: 1px solid color-mix(in srgb, currentColor 40%, transparent); }
  dialog { font: 14px/1.6 Inter, Roboto, "Helvetica Neue", Arial, sans-serif; max-width: 440px; padding: 20px 24px; border: 0;
    border-radius: 8px; box-shadow: 0 8px 40px rgb(0 0 0 / .4); }
  dialog::backdrop { background: rgb(0 0 0 / .4); }
  strong { display: block; font-size: 18px; margin: 0 0 12px; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 18px; margin: 0; }
  dt { font-weight: 650; white-space: nowrap; } dd { margin: 0; }
  dialog button { width: auto; height: auto; border-radius: 4px; padding: 8px 14px; margin-top: 16px; }
  @media (pointer: coarse) { button { min-width: 40px; min-height: 40px; } }
  :focus-visible { outline: 3px solid #2a8ac6; outline-offset: 2px; }
`
const TYPING = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable=true], [role=combobox], [role=option]"
const OPENING = ["Enter", " ", "ArrowDown", "ArrowUp"]
const CLOSED = ".MuiSelect-select[aria-expanded=false]:not([aria-disabled=true])"

// A view that is asked for: the one before (-1) or after (1) the one that is seen, or that of the group with this number.
const ask = detail => document.dispatchEvent(new CustomEvent("tilescope-view", {detail}))

// What a letter opens, or closes where it is open.
const PANELS = {p: "profile", g: "gpu"}
const toggle = detail => document.dispatchEvent(new CustomEvent("tilescope-panel", {detail}))

// A link that is seen only while it has the focus, before everything else on the page.
function skipping() {
  const link = document.createElement("a")
  // A link that leads nowhere would be content outside of all landmarks.
  link.href = `#${document.querySelector("[data-root-id]")?.id ?? ""}`
  link.textContent = "Skip to the views"
  const hidden = "position:fixed;left:-999px;top:8px;z-index:9999"
  const seen = "position:fixed;left:8px;top:8px;z-index:9999;padding:10px 16px;background:#0072B2;color:#fff;font:600 14px sans-serif"
  link.style.cssText = hidden
  link.addEventListener("focus", () => { link.style.cssText = seen })
  link.addEventListener("blur", () => { link.style.cssText = hidden })
  link.addEventListener("click", event => {
    event.preventDefault()
    every("[role=tab][aria-selected=true]").find(tab => tab.checkVisibility())?.focus()
  })
  return link
}

function sheet(keys) {
  const dialog = document.createElement("dialog")
  dialog.setAttribute("aria-label", "Keys")
  const title = document.createElement("strong")
  title.textContent = "Keys"
  const list = document.createElement("dl")
  for (const [key, does] of keys) {
    const [term, text] = [document.createElement("dt"), document.createElement("dd")]
    term.textContent = key
    text.textContent = does
    list.append(term, text)
  }
  const close = document.createElement("button")
  close.textContent = "Close"
  close.addEventListener("click", () => dialog.close())
  dialog.append(title, list, close)
  return dialog
}

// The ground that the page has now, in whichever theme.
function show(dialog, beside) {
  const ink = getComputedStyle(beside).color
  const light = ink.match(/[\d.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) < 384
  dialog.style.cssText = light ? "background:#fff;color:#1b1f24" : "background:#232a32;color:#eef1f4"
  dialog.showModal()
}

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
  if (!figure) return
  if (MOVES[key] === null) return figure.reset()
  const range = figure.model.x_range
  if (range.type === "FactorRange") return
  const log = figure.model.x_scale.type === "LogScale"
  const [to, from] = log ? [Math.log, Math.exp] : [value => value, value => value]
  const [step, factor] = MOVES[key]
  const [start, end] = [to(range.start), to(range.end)]
  const [middle, half] = [(start + end) / 2 + step * (end - start), factor * (end - start) / 2]
  range.setv({start: from(middle - half), end: from(middle + half)})
}

// What takes the focus but does not say what it is: Bokeh's toolbar and canvas.
const NAMELESS = ".bk-OnOffButton, .bk-ClickButton, .bk-tool-overflow, .bk-events"

function name(element) {
  const {classList} = element
  if (element.matches(".bk-OnOffButton, .bk-ClickButton, .bk-tool-overflow")) {
    element.setAttribute("role", "button")
    element.setAttribute("aria-label", element.title || "More tools")
    if (classList.contains("bk-OnOffButton")) element.setAttribute("aria-pressed", classList.contains("bk-active"))
  } else {
    element.setAttribute("role", "application")
    element.setAttribute("aria-label", "Figure: its numbers are in the table")
  }
}

export function render({model}) {
  const place = document.createElement("div")
  const style = document.createElement("style")
  style.textContent = STYLE
  const button = document.createElement("button")
  button.textContent = "?"
  button.setAttribute("aria-label", "Keys")
  button.title = "Keys (?)"
  const dialog = sheet(model.keys)
  button.addEventListener("click", () => show(dialog, button))
  place.append(style, button, dialog)

  function pressed(event) {
    // Many keyboards have the brackets behind AltGr, which Windows reports as Ctrl and Alt, or behind Option.
    const bracket = event.key === "[" || event.key === "]"
    const chord = event.metaKey || (event.altKey ? !bracket : event.ctrlKey)
    const at = event.composedPath()[0]
    // Material UI's list hears these keys, but Panel opens it for a click alone.
    if (!chord && OPENING.includes(event.key) && at.matches?.(CLOSED)) return at.click()
    if (chord || event.defaultPrevented) return
    // Now, before the focus moves: a move within one shadow root is heard by nobody outside.
    if (event.key === "Tab") every(NAMELESS).forEach(name)
    if (event.key === "Escape") {
      // An open menu or the sheet closes by itself.
      if (!dialog.open && !every(".MuiPopover-root, .MuiModal-root").length) model.send_msg("clear")
    } else if (at.matches?.(TYPING) && !at.matches(CLOSED)) {
      // A closed list has the focus after a choice, and hears no letters.
      return
    } else if (event.key === "?") {
      dialog.open ? dialog.close() : show(dialog, button)
    } else if (dialog.open) {
      return
    } else if (/^[1-9]$/.test(event.key)) {
      ask({number: Number(event.key)})
    } else if (bracket) {
      ask({step: event.key === "]" ? 1 : -1})
    } else if (event.key in PANELS) {
      toggle(PANELS[event.key])
    } else if (at.matches?.(".bk-events") && event.key in MOVES) {
      event.preventDefault()
      move(at, event.key)
    } else if (at.matches?.(".bk-OnOffButton, .bk-ClickButton") && (event.key === "Enter" || event.key === " ")) {
      event.preventDefault()
      at.click()
    }
  }
  const link = skipping()
  document.body.prepend(link)
  document.addEventListener("keydown", pressed)
  model.on("remove", () => {
    link.remove()
    document.removeEventListener("keydown", pressed)
  })
  return place
}
