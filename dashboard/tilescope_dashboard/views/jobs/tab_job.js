// Tells Python who this is: two random ids, one kept for the site and one for the tab, which a reload keeps and a new tab has not.
const OPENED = "tilescope-opened"

function kept(storage, name) {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  const found = storage.getItem(name) ?? Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("")
  storage.setItem(name, found)
  return found
}

export function render({model}) {
  try {
    model.on("opened", () => sessionStorage.setItem(OPENED, model.opened))
    const [person, tab] = [kept(localStorage, "tilescope-person"), kept(sessionStorage, "tilescope-tab")]
    model.send_msg({person, tab, opened: sessionStorage.getItem(OPENED) ?? ""})
  } catch {
    // Where a browser keeps nothing, a job is the session's that has started it.
  }
  return document.createElement("span")
}
