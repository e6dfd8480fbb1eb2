// Keys in a list that can be searched. Its field hears no key but its own, and nothing but a click leads into it: a letter
// begins a search, an arrow leads from the field to what was found, Esc closes the list.

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

export function render({model}) {
  document.addEventListener("keydown", pressed, true)
  model.on("remove", () => document.removeEventListener("keydown", pressed, true))
  return document.createElement("span")
}
