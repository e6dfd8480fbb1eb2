// What Material UI, Tabulator and Bokeh lack for who uses the keyboard: a ring around what has the focus, and the roles of a list's
// options. Every widget has a shadow root, which no style of the page reaches: each is heard from when the focus first comes into it.

export function render({model}) {
  const sheet = new CSSStyleSheet(), known = new WeakSet(), named = new WeakSet()
  sheet.replaceSync(model.ring)

  // The focus may come from another widget in the same root: then nobody outside of that root hears of it.
  function hear(root) {
    if (known.has(root)) return
    known.add(root)
    root.adoptedStyleSheets.push(sheet)
    root.addEventListener("focusin", event => {
      const path = event.composedPath()
      path.filter(node => node instanceof ShadowRoot).forEach(hear)
      const list = path[0].closest?.("[role=listbox]")
      if (list && !named.has(list)) name(list)
    }, true)
  }

  // Material UI for Panel calls what is in a list box items of a menu.
  function name(list) {
    named.add(list)
    const chosen = list.getRootNode().querySelector("[role=combobox]")?.textContent
    for (const item of list.querySelectorAll("[role=menuitem]")) {
      item.setAttribute("role", "option")
      item.setAttribute("aria-selected", item.textContent === chosen)
    }
  }

  hear(document)
  return document.createElement("span")
}
