// A button that opens something on the page. What is open is one name, which the server keeps; the page's own drawer is opened here
// at once, for the server may be busy with something else.

const STYLE = `
  :host { flex: none; }
  button { font: 600 14px/1.2 Inter, Roboto, "Helvetica Neue", Arial, sans-serif; box-sizing: border-box; height: 36px; border-radius: 4px;
    cursor: pointer; white-space: nowrap; position: relative; }
  .main { padding: 0 18px; border: 0; background: var(--mui-palette-primary-main, #0072B2); color: var(--mui-palette-primary-contrastText, #fff); }
  .main:hover { filter: brightness(1.08); }
  .main[aria-expanded=true] { box-shadow: inset 0 -3px 0 color-mix(in srgb, currentColor 60%, transparent); }
  .field { font-size: 16px; font-weight: 400; padding: 0 30px 0 14px; color: inherit; background: none; max-width: 230px; overflow: visible;
    border: 1px solid color-mix(in srgb, currentColor 27%, transparent); }
  .field:hover, .field[aria-expanded=true] { border-color: currentColor; }
  .field .value { display: block; overflow: hidden; text-overflow: ellipsis; }
  .field .caption { position: absolute; top: -10px; left: 9px; padding: 0 5px; font-size: 10.5px; color: var(--mui-palette-text-secondary, inherit); line-height: 16px;
    background: var(--mui-palette-background-default, #fff); }
  .field::after { content: ""; position: absolute; right: 12px; top: 16px; border: 5px solid transparent; border-top-color: currentColor;
    opacity: .7; }
  @media (pointer: coarse) { button { height: 40px; } }
  button:focus-visible { outline: 3px solid #2a8ac6; outline-offset: 2px; }
`
const FIELDS = "input, [role=combobox], textarea"
// Milliseconds for which a field is waited for before a button will do, and for which anything is; and between two looks.
const PATIENCE = {field: 500, all: 30000, look: 60}

const seen = element => element.checkVisibility({visibilityProperty: true}) && !element.disabled && element.tabIndex >= 0

// Whether a menu, a list or a dialog lies over everything: Esc is for that then.
const covered = () => every(".MuiPopover-root, .MuiDialog-root, dialog[open]", document).length > 0

function focused() {
  let at = document.activeElement
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
  return at
}

// What holds the element, through shadow roots.
function* around(element) {
  for (let at = element; at; at = at.assignedSlot ?? at.parentNode ?? at.host) yield at
}

// What is in the page's own drawer; and the page, whose property it is that the drawer is open.
const DRAWER = "profile"
const page = () => (window.Bokeh?.documents ?? []).flatMap(shown => shown.roots())
  .find(root => "contextbar_open" in (root.data?.attributes ?? {}))

export function render({model}) {
  const place = document.createElement("div")
  const style = document.createElement("style")
  style.textContent = STYLE
  const button = document.createElement("button")
  button.type = "button"
  button.className = model.caption ? "field" : "main"
  const value = document.createElement("span")
  value.className = "value"
  if (model.caption) {
    const caption = document.createElement("span")
    caption.className = "caption"
    caption.textContent = model.caption
    button.append(caption, " ")
  }
  button.append(value)
  button.setAttribute("aria-haspopup", "dialog")
  place.append(style, button)
  let open = model.panel === model.opens

  // To look through the whole page takes long.
  let held = null
  const holder = () => (held = held?.isConnected ? held : every(model.within, document)[0])
  // The page puts its drawer into a landmark of navigation, which has no name, and nothing in it while the drawer is closed.
  every("nav:not([aria-label])", document).forEach(nav => nav.setAttribute("role", "presentation"))
  const write = () => {
    value.textContent = model.text
    if (!model.caption) return
    button.title = model.text
    button.setAttribute("aria-label", `${model.caption} ${model.text}`)
  }

  // What is opened may still be on its way, and comes in any order. Who opened it, from wherever a key was pressed, goes in, and on to
  // an earlier field or from a button to a field as these come, unless they have gone on to something else or done anything meanwhile.
  let touched = 0
  function enter(goes, since = performance.now(), from = button) {
    const waited = performance.now() - since, at = focused()
    if (!open || waited > PATIENCE.all || (goes && (touched > since || (at && at !== from && at !== document.body)))) return
    const place = holder()
    place?.setAttribute("role", "dialog")
    place?.setAttribute("aria-label", model.caption || model.text)
    const field = place && every(FIELDS, place).find(seen)
    const first = field ?? (place && waited > PATIENCE.field ? every("button, a[href]", place).find(seen) : null)
    if (first && !goes) return
    if (first && first !== at) first.focus()
    setTimeout(() => enter(goes, since, first ?? from), PATIENCE.look)
  }

  function show() {
    const is = model.panel === model.opens
    button.setAttribute("aria-expanded", is)
    if (is === open) return
    const at = focused()
    open = is
    if (is) return enter(true, performance.now(), at ?? button)
    // Who has gone on to something else keeps that.
    const left = !at || at === document.body || !at.checkVisibility() || [...around(at)].includes(holder())
    if (left && model.panel === "") button.focus()
  }

  function go(name) {
    model.panel = name
    const shown = page()
    if (shown) shown.data.contextbar_open = name === DRAWER
    show()
  }

  function pressed(event) {
    touched = event.timeStamp
    if (event.key !== "Escape" || !open) return
    const at = event.composedPath()[0]
    // Esc is first of all for a list that is open.
    if (covered() || (at !== button && at.matches?.("[aria-expanded=true]"))) return
    event.preventDefault()
    event.stopPropagation()
    go("")
  }

  function elsewhere(event) {
    touched = event.timeStamp
    const path = event.composedPath()
    if (open && model.over && !path.includes(button) && !path.includes(holder()) && !covered()) go("")
  }

  const toggle = () => go(open ? "" : model.opens)
  // The key sheet's component hears a letter wherever it is pressed.
  const asked = ({detail}) => { if (detail === model.opens) toggle() }

  button.addEventListener("click", toggle)
  document.addEventListener("tilescope-panel", asked)
  document.addEventListener("keydown", pressed, true)
  document.addEventListener("pointerdown", elsewhere, true)
  model.on("panel", show)
  model.on("text", write)
  model.on("remove", () => {
    document.removeEventListener("tilescope-panel", asked)
    document.removeEventListener("keydown", pressed, true)
    document.removeEventListener("pointerdown", elsewhere, true)
  })
  write()
  button.setAttribute("aria-expanded", open)
  enter(false)
  return place
}
