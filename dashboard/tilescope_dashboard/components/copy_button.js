// A button that copies a text and says so.

const STYLE = `
  button { font: 600 13px/1 Inter, Roboto, "Helvetica Neue", Arial, sans-serif; padding: 8px 12px; border-radius: 4px;
    cursor: pointer; color: inherit; background: transparent;
    border: 1px solid color-mix(in srgb, currentColor 40%, transparent); }
  @media (pointer: coarse) { button { min-height: 40px; } }
  :focus-visible { outline: 3px solid #2a8ac6; outline-offset: 2px; }
`

// A page that did not come by HTTPS or from this machine has no clipboard but this.
function by_selection(text) {
  const area = document.createElement("textarea")
  area.value = text
  area.style.cssText = "position:fixed;left:-999px"
  document.body.append(area)
  area.select()
  const done = document.execCommand("copy")
  area.remove()
  return done
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return by_selection(text)
  }
}

export function render({model}) {
  const place = document.createElement("div")
  const style = document.createElement("style")
  style.textContent = STYLE
  const button = document.createElement("button")
  const said = document.createElement("span")
  said.setAttribute("role", "status")
  said.style.cssText = "margin-left:8px;font:13px Inter,Roboto,sans-serif"
  function write() {
    button.textContent = model.label
    button.title = model.text
    said.textContent = ""
  }
  button.addEventListener("click", async () => {
    said.textContent = (await copied(model.text)) ? "Copied." : `The browser refuses to copy: ${model.text}`
    button.focus()
  })
  model.on(["label", "text"], write)
  write()
  place.append(style, button, said)
  return place
}
