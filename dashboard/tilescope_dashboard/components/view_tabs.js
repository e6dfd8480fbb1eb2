// Two rows of tabs: groups of views, and below it the views of the group that is seen where it has several. The key sheet's
// component asks for views by an event on the document, for it hears keys wherever they are pressed.

const STYLE = `
  :host > div { width: 100%; font: 600 14px/1.2 Inter, Roboto, "Helvetica Neue", Arial, sans-serif; }
  [role=tablist] { display: flex; gap: 2px; overflow-x: auto; scrollbar-width: none; position: relative; }
  [hidden] { display: none; }
  .groups { border-bottom: 1px solid color-mix(in srgb, currentColor 16%, transparent); }
  button { font: inherit; color: inherit; background: none; border: 0; border-radius: 4px; cursor: pointer; white-space: nowrap;
    padding: 12px 11px; min-height: 40px; opacity: .78; }
  button:hover { opacity: 1; background: color-mix(in srgb, currentColor 7%, transparent); }
  .groups button { border-radius: 4px 4px 0 0; border-bottom: 3px solid transparent; }
  [aria-selected=true] { opacity: 1; }
  .groups [aria-selected=true] { border-bottom-color: var(--mui-palette-primary-main, #2a8ac6); }
  .groups .apart { margin-right: 14px; position: relative; }
  .apart::after { content: ""; position: absolute; right: -9px; top: 12px; bottom: 12px; border-right: 1px solid color-mix(in srgb, currentColor 30%, transparent); }
  .views { font-size: 13px; padding: 6px 8px 2px; gap: 4px; }
  .views button { padding: 7px 12px; min-height: 32px; border-radius: 16px; }
  .views [aria-selected=true] { background: color-mix(in srgb, currentColor 13%, transparent); }
  button:focus-visible { outline: 3px solid #2a8ac6; outline-offset: -3px; opacity: 1; }
  @media (pointer: coarse) { .views button { min-height: 40px; } }
  @media (max-width: 640px) { .groups, .views { padding-right: 32px; mask-image: linear-gradient(to left, transparent, #000 32px); } }
`

function row(name, label) {
  const list = document.createElement("div")
  list.className = name
  list.setAttribute("role", "tablist")
  list.setAttribute("aria-label", label)
  return list
}

export function render({model}) {
  const place = document.createElement("div")
  const style = document.createElement("style")
  style.textContent = STYLE
  const top = row("groups", "Views")
  const groups = model.groups.map(([title, views]) => ({title, names: views.map(([name]) => name), last: views[0][0]}))
  const order = groups.flatMap(group => group.names)

  function tab(list, text, open) {
    const button = document.createElement("button")
    button.setAttribute("role", "tab")
    button.textContent = text
    button.addEventListener("click", open)
    list.append(button)
    return button
  }

  for (const [at, group] of groups.entries()) {
    group.tab = tab(top, group.title, () => go(group.last))
    if (group.title === model.apart) group.tab.classList.add("apart")
    group.row = row("views", group.title)
    group.tabs = model.groups[at][1].map(([name, title]) => tab(group.row, title, () => go(name)))
  }
  place.append(style, top, ...groups.map(group => group.row))

  const chosen = () => groups.find(group => group.names.includes(model.view)) ?? groups[0]

  function select(button, is) {
    button.setAttribute("aria-selected", is)
    button.tabIndex = is ? 0 : -1
    if (is) reveal(button)
  }

  function reveal(button) {
    const list = button.parentElement
    if (list.scrollWidth > list.clientWidth)
      list.scrollTo({left: button.offsetLeft - (list.clientWidth - button.offsetWidth) / 2})
  }

  function show() {
    const seen = chosen()
    if (seen.names.includes(model.view)) seen.last = model.view
    for (const group of groups) {
      group.row.hidden = group !== seen || group.tabs.length < 2
      select(group.tab, group === seen)
      group.tabs.forEach((button, at) => select(button, group.names[at] === seen.last))
    }
  }

  // What was asked for is marked at once: the server may take longer to show it.
  function go(name) {
    model.view = name
    show()
  }

  function asked({detail: {number, step}}) {
    const at = order.indexOf(chosen().last)
    const name = number ? groups[number - 1]?.last : order.at((at + step) % order.length)
    if (!name) return
    go(name)
    const {tab: own, tabs, row: below, names} = chosen()
    const button = below.hidden ? own : tabs[names.indexOf(name)]
    button.focus()
  }

  function beside(event) {
    const tabs = [...event.target.parentElement.querySelectorAll("button")]
    const steps = {ArrowRight: 1, ArrowLeft: -1, Home: -tabs.indexOf(event.target), End: -1 - tabs.indexOf(event.target)}
    if (!(event.key in steps)) return
    event.preventDefault()
    tabs.at((tabs.indexOf(event.target) + steps[event.key]) % tabs.length).focus()
  }

  place.addEventListener("keydown", beside)
  document.addEventListener("tilescope-view", asked)
  model.on("view", show)
  // Before it is laid out nothing can be scrolled into sight.
  const sized = new ResizeObserver(() => place.querySelectorAll("[aria-selected=true]").forEach(reveal))
  sized.observe(place)
  model.on("remove", () => {
    document.removeEventListener("tilescope-view", asked)
    sized.disconnect()
  })
  show()
  return place
}
