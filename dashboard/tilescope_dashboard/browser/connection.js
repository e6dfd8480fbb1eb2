// Bokeh tells the page when its websocket has closed. The session is gone with it: a reload makes a new one, from the address.

const STYLE = `
  .tilescope-connection { position: fixed; inset: auto 0 0 0; width: auto; margin: 0; border: 0; display: flex; flex-wrap: wrap;
    gap: 8px 20px; align-items: center; justify-content: center; padding: 12px 20px; background: #8c1d18; color: #fff;
    font: 14px/1.5 Inter, Roboto, "Helvetica Neue", Arial, sans-serif; box-shadow: 0 -4px 20px rgb(0 0 0 / .3); }
  .tilescope-connection.back { background: #14532d; }
  .tilescope-connection code { font: 600 13px ui-monospace, Menlo, Consolas, monospace; }
  .tilescope-connection button { font: inherit; font-weight: 600; line-height: 1; padding: 9px 16px; border: 0; border-radius: 4px; cursor: pointer;
    background: #fff; color: #14532d; }
  .tilescope-connection button:focus-visible { outline: 3px solid #fff; outline-offset: 2px; }
  /* Panel's own line says less, in another corner. */
  [id^="reconnect-notification-"] { display: none !important; }
`
// Our own words: no text from outside is in them.
const LOST = `<span><b>The connection to the server is lost.</b> What you see stays, but nothing on this page answers any more.
  If the server has ended, start it again (<code>make serve</code> or <code>tilescope serve</code>), then reload this page.</span>`
const BACK = `<span><b>The server is back.</b> Reload this page to go on: its address keeps the run, the kernel and the view.</span>`
const EVERY = 2000

// A file that the server hands to everyone and makes nothing for, unlike a page.
async function answers() {
  const script = document.querySelector("script[src*='static/js/bokeh']")
  try {
    return (await fetch(script?.src ?? location.href, {method: "HEAD", cache: "no-store"})).ok
  } catch {
    return false
  }
}

export function render({model, view}) {
  const bar = document.createElement("div")
  bar.setAttribute("role", "alert")
  bar.className = "tilescope-connection"
  // Above everything, a phone's drawer too.
  bar.popover = "manual"
  const style = document.createElement("style")
  style.textContent = STYLE
  document.head.append(style)
  let asking = null

  function found() {
    bar.classList.add("back")
    bar.innerHTML = BACK
    const button = document.createElement("button")
    button.textContent = "Reload"
    button.addEventListener("click", () => location.reload())
    bar.append(button)
  }

  async function ask() {
    asking = await answers() ? found() : setTimeout(ask, EVERY)
  }

  function forget() {
    clearTimeout(asking)
    bar.remove()
  }

  view.model.document.on_event("connection_lost", () => {
    clearTimeout(asking)
    bar.classList.remove("back")
    bar.innerHTML = LOST
    document.body.append(bar)
    bar.showPopover()
    asking = setTimeout(ask, EVERY)
  })
  view.model.document.on_event("client_reconnected", forget)
  model.on("remove", () => {
    forget()
    style.remove()
  })
  return document.createElement("span")
}
