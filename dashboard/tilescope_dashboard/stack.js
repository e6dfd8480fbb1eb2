// Shows the one of the places beside this component whose class names it. The others stay laid out, out of sight and of the
// keys' way: were they taken away through Bokeh, every figure of the page would be laid out anew.
export function render({model, el}) {
  const beside = () => el.getRootNode().host?.parentNode?.children ?? []
  const put = () => {
    for (const place of beside()) {
      if (!/\bplace-/.test(place.className)) continue
      const away = !place.classList.contains(`place-${model.shown}`)
      place.classList.toggle("away", away)
      place.inert = away
    }
  }
  model.on("shown", put)
  put()
}
