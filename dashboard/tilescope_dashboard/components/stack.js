// Shows the one of the places beside this component whose class names it. The others stay as they were laid out, out of sight
// and of the keys' way: were they taken away through Bokeh, every figure of the page would be laid out anew.

// Until what was put into a place has its sizes, in milliseconds, and the browser nothing else to do. Had it none when it is
// shown, every widget in it would have the page laid out once more.
const SETTLING = 2000
// For an idle moment, in milliseconds.
const PATIENCE = 1000
const idle = window.requestIdleCallback ?? setTimeout

export function render({model, view}) {
  const stack = view.parent
  const places = stack.child_views.filter((each) => /\bplace-/.test(each.el.className))
  let seen = null
  const put = () => {
    seen?.classList.add("settled")
    for (const {el} of places) {
      const away = !el.classList.contains(`place-${model.shown}`)
      el.classList.toggle("away", away)
      el.inert = away
      if (!away) seen = el
    }
  }

  // Bokeh lays out the whole page whenever anything on it changes. What nobody sees takes no part in that, and is laid out when
  // it is shown, if anything in it has changed.
  const rests = (place) => place.el.matches(".away.settled")
  const changed = new Set()
  for (const place of places) {
    place.apart = true
    for (const asked of ["invalidate_layout", "compute_layout"]) {
      const usual = place[asked]
      place[asked] = () => (rests(place) ? changed.add(place) : usual.call(place))
    }
  }
  const all = () => Reflect.get(Object.getPrototypeOf(stack), "layoutable_views", stack)
  Object.defineProperty(stack, "layoutable_views", {get: () => all().filter((place) => !rests(place)), configurable: true})

  const filled = new MutationObserver((changes) => {
    for (const {target, addedNodes} of changes) {
      if ([...addedNodes].every((node) => node.matches?.("style, link"))) continue
      setTimeout(() => idle(() => target.host.classList.add("settled")), SETTLING)
    }
  })
  for (const place of places) filled.observe(place.shadow_el, {childList: true})
  model.on("remove", () => filled.disconnect())

  model.on("shown", () => {
    put()
    const laidOut = places.filter((place) => !rests(place) && changed.delete(place))
    if (laidOut.length) stack.invalidate_layout()
  })
  // What was sent before the question is built in turns of its own: two idle moments, one after the other. A page that never rests
  // gets an answer, too.
  const soon = (then) => idle(then, {timeout: PATIENCE})
  model.on("asked", () => soon(() => soon(() => { model.drawn = model.asked })))
  put()
}
