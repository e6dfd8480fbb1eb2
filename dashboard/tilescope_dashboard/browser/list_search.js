// Roles in a list, and keys in one that can be searched. Material UI calls items of a menu what in a list box are options. The
// field of a search hears no key but its own, and nothing but a click leads into it: a letter begins a search, an arrow leads from
// the field to what was found, Esc closes the list.

const FIELD = "input[placeholder='Search...']"

function field(at) {
  return at.closest?.("[role=listbox], .MuiMenu-list")?.querySelector(FIELD)
}

function pressed(event) {
  const at = event.composedPath()[0]
  const search = field(at)
  if (!search || event.ctrlKey || event.metaKey || event.altKey) return
  const list = at.closest("[role=listbox], .MuiMenu-list")
  if (at !== search) {
    if (event.key.length !== 1 || event.key === " ") return
    event.stopPropagation()
    search.focus()  // the letter goes where the focus is
  } else if (event.key === "ArrowDown") {
    event.preventDefault()
    event.stopPropagation()
    search.closest("li").nextElementSibling?.focus()
  } else if (event.key === "Escape") {
    event.stopPropagation()
    list.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape", bubbles: true, composed: true}))
  }
}

const heard = new WeakSet(), named = new WeakSet()

// The focus goes to a list from its own field, in one shadow root: nobody outside of that root hears of it.
function hear(root) {
  if (heard.has(root)) return
  heard.add(root)
  root.addEventListener("focusin", event => {
    const path = event.composedPath()
    path.filter(node => node instanceof ShadowRoot).forEach(hear)
    const list = path[0].closest?.("[role=listbox]")
    if (list) name(list)
  }, true)
}

function name(list) {
  if (named.has(list)) return
  named.add(list)
  const options = () => {
    const chosen = list.getRootNode().querySelector("[role=combobox]")?.textContent
    for (const item of list.querySelectorAll("[role=menuitem]")) {
      const isField = item.querySelector("input:not([type=checkbox])")
      item.setAttribute("role", isField ? "presentation" : "option")
      if (!isField) item.setAttribute("aria-selected", item.textContent === chosen)
    }
  }
  options()
  // A search leaves other ones.
  new MutationObserver(options).observe(list, {childList: true, subtree: true})
}

export function render({model}) {
  hear(document)
  document.addEventListener("keydown", pressed, true)
  model.on("remove", () => document.removeEventListener("keydown", pressed, true))
  return document.createElement("span")
}
