// Tells Python who this is: two random ids, one kept for the site and one for the tab, which a reload keeps and a new tab has not.

const PERSON = "tilescope-person"
const TAB = "tilescope-tab"
const OPENED = "tilescope-opened"

function id() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("")
}

function kept(storage, name) {
  const found = storage.getItem(name) ?? id()
  storage.setItem(name, found)
  return found
}

export function render({model}) {
  try {
    model.on("opened", () => sessionStorage.setItem(OPENED, model.opened))
    const opened = sessionStorage.getItem(OPENED) ?? ""
    model.send_msg({person: kept(localStorage, PERSON), tab: kept(sessionStorage, TAB), opened})
  } catch {
    // Where a browser keeps nothing, a job is the session's that has started it.
  }
  return document.createElement("span")
}
