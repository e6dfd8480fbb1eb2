// What the page's widgets lack for who uses the keyboard: keys for the whole page and the sheet that lists them, a ring around what has
// the focus, roles, and the way into the drawer and back; and the browser's Back and Forward. It also tells the server when all that
// was sent is drawn.

const TYPING = "input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable=true], [role=combobox], [role=option]"
const OPENING = ["Enter", " ", "ArrowDown", "ArrowUp"]
const CLOSED = ".MuiSelect-select[aria-expanded=false]:not([aria-disabled=true])"
const STOPS = "a[href], button, input, select, textarea, summary, [tabindex]"
// What a letter opens, or closes where it is open.
const PANELS = {p: "profile", g: "gpu", r: "run", "/": "find"}
// In a figure that has the focus: by what part of what is seen it goes to the side, and how much more is seen then.
const MOVES = {ArrowLeft: [-0.2, 1], ArrowRight: [0.2, 1], "+": [0, 0.5], "=": [0, 0.5], "-": [0, 2], "0": null}
// What takes the focus but does not say what it is: Bokeh's toolbar and canvas.
const TOOLS = ".bk-OnOffButton, .bk-ClickButton, .bk-tool-overflow"
// Milliseconds for which the drawer's form is waited for, and between two looks; and for an idle moment of the browser.
const PATIENCE = 30000, LOOK = 60, REST = 1000

// What fits the selector in the root, in its order, through all shadow roots: every widget has one of its own.
function every(selector, root = document) {
  const found = []
  for (const element of root.querySelectorAll("*")) {
    if (element.matches(selector)) found.push(element)
    if (element.shadowRoot) found.push(...every(selector, element.shadowRoot))
  }
  return found
}

function focused() {
  let at = document.activeElement
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
  return at ?? document.body
}

// Calls `then` with what `find` finds, as soon as it finds anything. Where it finds null, nobody waits any longer.
function once(find, then, until = performance.now() + PATIENCE) {
  const found = find()
  if (found) then(found)
  else if (found !== null && performance.now() < until) setTimeout(once, LOOK, find, then, until)
}

function move(canvas, key) {
  const host = canvas.getRootNode().host
  const figure = window.Bokeh?.index.query_one(view => view.model.type === "Figure" && view.canvas_view?.el === host)
  if (!figure || figure.model.x_range.type === "FactorRange") return
  if (MOVES[key] === null) return figure.reset()
  const range = figure.model.x_range
  const [to, from] = figure.model.x_scale.type === "LogScale" ? [Math.log, Math.exp] : [value => value, value => value]
  const [step, factor] = MOVES[key], [start, end] = [to(range.start), to(range.end)]
  const middle = (start + end) / 2 + step * (end - start), half = factor * (end - start) / 2
  range.setv({start: from(middle - half), end: from(middle + half)})
}

function nameTools() {
  every(`${TOOLS}, .bk-events`).forEach(nameTool)
  // Material UI puts the page's drawer, and a list of files, into landmarks of navigation, which have no names.
  every("nav:not([aria-label])").forEach(nav => nav.setAttribute("role", "presentation"))
}

// Tools of one kind are one button, whose title names each of them.
const told = title => title.replace(/^(.+?)( \1)+$/, "$1")

function nameTool(element) {
  const tool = element.matches(TOOLS)
  element.setAttribute("role", tool ? "button" : "application")
  let figure = element
  while (figure && !figure.matches("[role=figure]")) figure = figure.parentElement ?? figure.getRootNode().host
  element.setAttribute("aria-label", tool ? told(element.title) || "More tools" : figure?.dataset.part || figure?.ariaLabel || "Figure")
  if (element.matches(".bk-OnOffButton")) element.setAttribute("aria-pressed", element.classList.contains("bk-active"))
}

// Material UI for Panel does not say which option of a list is chosen.
function nameOptions(list) {
  const chosen = list.getRootNode().querySelector("[role=combobox]")?.textContent
  list.querySelectorAll("[role=option]").forEach(item => item.setAttribute("aria-selected", item.textContent === chosen))
}

// Every widget has a shadow root, which no style of the page reaches: each is heard from when the focus first comes into it. The focus
// may come from another widget in the same root: then nobody outside of that root hears of it.
function ring(style) {
  const sheet = new CSSStyleSheet()
  sheet.replaceSync(style)
  const hear = root => {
    if (root.adoptedStyleSheets.includes(sheet)) return
    root.adoptedStyleSheets.push(sheet)
    root.addEventListener("focusin", event => {
      const path = event.composedPath(), list = path[0].closest?.("[role=listbox]")
      path.filter(node => node instanceof ShadowRoot).forEach(hear)
      if (list) nameOptions(list)
    }, true)
  }
  hear(document)
}

const usable = element => element.checkVisibility({visibilityProperty: true}) && !element.disabled && element.tabIndex >= 0
const openers = () => every("[data-panel]")
const drawerButton = () => openers().find(button => button.dataset.panel === PANELS.p)

// The drawer's form may still be on its way. Who opened the drawer goes in, unless they have gone on to something else.
const drawer = (model, from) => once(() => {
  const [place] = every(".contextbar"), button = drawerButton()
  openers().forEach(opener => opener.setAttribute("aria-expanded", opener.dataset.panel === model.panel))
  if (!button) return false
  return model.panel === PANELS.p ? place && every("input, [role=combobox], textarea", place).find(usable) : null
}, field => focused() === from && field.focus())

// Material UI keeps the focus in a dialog only where no widget has a shadow root.
function stay(event) {
  const place = every(".MuiDialog-paper").find(paper => paper.checkVisibility())
  const inside = place ? every(STOPS, place).filter(usable) : []
  const at = focused(), [first, last] = event.shiftKey ? [inside.at(-1), inside[0]] : [inside[0], inside.at(-1)]
  if (!first || (at !== last && at !== place && place.matches(":focus-within"))) return
  event.preventDefault()
  first.focus()
}

const openTab = () => every("[role=tab][aria-selected=true]").filter(tab => tab.checkVisibility()).at(-1)

// The address with one thing as another search has it.
function taking(name, address, search) {
  const url = new URL(address), value = new URLSearchParams(search).get(name)
  if (value !== null) url.searchParams.set(name, value)
  return url
}

// Back and Forward. Panel pushes the address of each change that the server makes, and hears nothing when the browser goes
// back to an earlier one: here such an address becomes the page's, and only what a person did makes an entry of its own.
function keepHistory(went) {
  const original = history.pushState, begun = new URLSearchParams(location.search)
  let acted = false, typing = false
  history.pushState = (data, title, address) => {
    const url = new URL(address, location.href)
    // Nothing is as good as not named, where the page was opened so.
    for (const [name, value] of [...url.searchParams]) if (!value && !begun.has(name)) url.searchParams.delete(name)
    if (url.href === location.href) return
    const only = name => taking(name, location.href, url.search).href === url.href
    // A theme is no place that one goes back from. Letters that are typed one after the other are one change.
    const typed = only("find")
    if (acted && !only("theme") && !(typed && typing)) original.call(history, data, title, url)
    else history.replaceState(data, title, url)
    if (acted) typing = typed
    // What follows from the same act, as another kernel's run does, belongs to its entry.
    acted = false
  }
  for (const name of ["pointerdown", "keydown"]) document.addEventListener(name, () => { acted = true }, true)
  window.addEventListener("popstate", () => {
    const shown = Bokeh.documents.flatMap(one => one.roots()).find(root => root.type === "panel.models.location.Location")
    acted = typing = false
    if (!shown || location.search === shown.search) return
    const url = taking("theme", location.href, shown.search)
    history.replaceState(history.state, "", url)
    shown.search = url.search
    went(url.search)
  })
}

export function render({model}) {
  const place = document.createElement("div")
  // The text is escaped where it is written.
  place.innerHTML = model.markup
  const [, button, dialog] = place.children
  // Until when letters are for the palette, which is on its way; and those that were typed meanwhile.
  let writing = 0, typed = ""
  // What had the focus when a key last turned to a view, and what the server then answered.
  let turning = null, answer = null
  // The panel that is open, and what had the focus when somebody asked for it.
  let open = model.panel, from = null
  const toggle = () => (dialog.open ? dialog.close() : dialog.showModal())
  button.addEventListener("click", toggle)

  function ask(panel) {
    // Now: a dialog may take the focus before the answer is heard.
    if (!open) from = focused()
    if (panel === PANELS["/"] && model.panel !== panel) writing = performance.now() + PATIENCE
    model.send_msg({panel})
  }

  // Writes what was typed meanwhile into the palette's field, once that has the focus.
  function hand() {
    if (!writing || !focused().matches("input[role=combobox]")) return false
    document.execCommand("insertText", false, typed)
    return rest()
  }

  function rest() {
    writing = 0
    typed = ""
    return true
  }

  // A button that opens a panel or closes it, or a title that links to its entry in the glossary.
  function clicked(event) {
    const at = name => event.composedPath().find(node => node.dataset?.[name]), opener = at("panel"), link = at("term")
    if (opener) ask(opener.dataset.panel)
    if (!link) return
    event.preventDefault()
    dialog.querySelector("details").open = true
    dialog.showModal()
    dialog.querySelector(`[data-entry="${CSS.escape(link.dataset.term)}"]`).focus()
  }

  function pressed(event) {
    // Many keyboards have the brackets behind AltGr, which Windows reports as Ctrl and Alt, or behind Option.
    const bracket = event.key === "[" || event.key === "]"
    const chord = event.metaKey || (event.altKey ? !bracket : event.ctrlKey)
    const at = event.composedPath()[0]
    // Material UI's list hears these keys, but Panel opens it for a click alone.
    if (!chord && OPENING.includes(event.key) && at.matches?.(CLOSED)) return at.click()
    if (chord || event.defaultPrevented) return
    // Now, before the focus moves: a move within one shadow root is heard by nobody outside.
    if (event.key === "Tab") nameTools(), stay(event)
    if (event.key === "Escape") {
      // An open menu or the sheet closes by itself.
      if (!dialog.open && !every(".MuiPopover-root, .MuiModal-root").length) model.send_msg({clear: true})
    } else if (at.matches?.(TYPING) && !at.matches(CLOSED)) {
      // A closed list has the focus after a choice, and hears no letters.
      hand()
    } else if (performance.now() < writing) {
      // Enter would press what has the focus still.
      if (event.key !== "Tab") event.preventDefault()
      if (event.key !== "Backspace" && event.key.length > 1) return
      typed = event.key === "Backspace" ? typed.slice(0, -1) : typed + event.key
    } else if (event.key === "?") {
      toggle()
    } else if (dialog.open) {
      return
    } else if (bracket || /^[1-9]$/.test(event.key)) {
      turning = focused()
      model.send_msg(bracket ? {step: event.key === "]" ? 1 : -1} : {number: Number(event.key)})
    } else if (event.key in PANELS) {
      event.preventDefault()
      ask(PANELS[event.key])
    } else if (at.matches?.(".bk-events") && event.key in MOVES) {
      event.preventDefault()
      move(at, event.key)
    } else if (at.matches?.(TOOLS) && (event.key === "Enter" || event.key === " ")) {
      // Bokeh hears Enter alone, and the browser scrolls by a space.
      event.preventDefault()
      if (event.key === " ") at.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}))
      setTimeout(() => nameTool(at))
    }
  }

  document.querySelector(".skip").addEventListener("click", event => (event.preventDefault(), openTab()?.focus()))
  document.addEventListener("keydown", pressed)
  document.addEventListener("click", clicked)
  ring(model.ring)
  keepHistory(search => model.send_msg({went: search}))
  // Who closes a dialog or the drawer comes back to where they were.
  const back = () => once(() => (open ? null : !every(".MuiDialog-root:focus-within").length), () => {
    if (focused() === document.body || every(".contextbar:focus-within").length)
      (from && from !== document.body ? from : drawerButton())?.focus()
    from = null
  })
  model.on("panel", () => {
    drawer(model, focused())
    if (!open) from ??= focused()
    open = model.panel
    setTimeout(back, LOOK)
    if (open === PANELS["/"]) once(() => (open === PANELS["/"] ? hand() : null), () => {})
    else rest()
  })
  drawer(model, null)
  const phone = matchMedia("(max-width: 899.95px)"), measure = () => { model.narrow = phone.matches }
  phone.addEventListener("change", measure)
  measure()
  model.on("theme", () => {
    if (model.theme === window.theme) return
    localStorage.setItem("tilescope-theme", model.theme)
    window.themed(model.theme)
  })
  // The answer may come before the browser has drawn the tabs: one that was open is then still marked. Who turned to a view goes to its
  // tab, unless they have gone on to something else.
  model.on("msg:custom", asked => {
    answer = asked
    once(() => {
      const tab = openTab(), at = focused()
      if (asked !== answer || (at !== turning && at !== document.body)) return null
      return tab?.textContent === asked.tab && tab
    }, tab => (turning = tab).focus())
  })
  // What was sent before the question is built in turns of its own: two idle moments, one after the other. A page that never rests
  // gets an answer, too.
  const idle = then => (window.requestIdleCallback ?? setTimeout)(then, {timeout: REST})
  model.on("asked", () => idle(() => idle(() => (nameTools(), model.drawn = model.asked))))
  return place
}
