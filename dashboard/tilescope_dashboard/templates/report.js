// Draws the figures, again when the reader's system changes between light and dark.
const darker = JSON.parse(document.getElementById("darker").textContent)
const dark = matchMedia("(prefers-color-scheme: dark)")
const narrow = matchMedia("(max-width: 640px)")

function fitted(key, value) {
  if (narrow.matches) {
    if (key === "ncols") return Math.min(value, 2)
    // A finger over a figure moves the page.
    if (value?.name === "Toolbar") value.attributes.active_drag = null
  }
  return dark.matches && typeof value === "string" ? (darker[value] ?? value) : value
}

let turn = 0
async function draw() {
  const mine = ++turn
  for (const place of document.querySelectorAll(".figure")) {
    // The browser paints each figure before the next is made.
    await new Promise(done => setTimeout(done))
    if (mine !== turn) return
    place.replaceChildren()
    place.toggleAttribute("data-dark", dark.matches)
    await Bokeh.embed.embed_item(JSON.parse(place.nextElementSibling.textContent, fitted), place)
  }
}

dark.addEventListener("change", draw)
draw()
