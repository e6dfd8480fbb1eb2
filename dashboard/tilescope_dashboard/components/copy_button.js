// A button that copies a text and says so.

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    // A page that did not come by HTTPS or from this machine has no clipboard but this.
    const area = document.body.appendChild(document.createElement("textarea"))
    area.value = text
    area.select()
    const done = document.execCommand("copy")
    area.remove()
    return done
  }
}

export function render({model}) {
  const place = document.createElement("div"), button = document.createElement("button"), said = document.createElement("span")
  said.setAttribute("role", "status")
  const write = () => {
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
  place.append(button, said)
  return place
}
