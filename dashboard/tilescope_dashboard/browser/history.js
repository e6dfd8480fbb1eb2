// Back and Forward. Panel pushes the address of each change that the server makes, and hears nothing when the browser goes
// back to an earlier one: here such an address becomes the page's, and only what a person did makes an entry of its own.

const place = () => (window.Bokeh?.documents ?? []).flatMap(shown => shown.roots())
  .find(root => root.type === "panel.models.location.Location")

// The address with one thing as another search has it.
function taking(name, address, search) {
  const url = new URL(address), value = new URLSearchParams(search).get(name)
  if (value !== null) url.searchParams.set(name, value)
  return url
}

export function render({model}) {
  const original = history.pushState, begun = new URLSearchParams(location.search)
  let acted = false, typing = false

  function push(data, title, address) {
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

  function went() {
    const shown = place()
    acted = typing = false
    if (!shown || location.search === shown.search) return
    const url = taking("theme", location.href, shown.search)
    history.replaceState(history.state, "", url)
    shown.search = url.search
    model.send_msg(url.search)
  }

  const act = () => { acted = true }
  history.pushState = push
  for (const name of ["pointerdown", "keydown"]) document.addEventListener(name, act, true)
  window.addEventListener("popstate", went)
  model.on("remove", () => {
    history.pushState = original
    for (const name of ["pointerdown", "keydown"]) document.removeEventListener(name, act, true)
    window.removeEventListener("popstate", went)
  })
  return document.createElement("span")
}
