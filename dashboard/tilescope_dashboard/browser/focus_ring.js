// Material UI, Tabulator and Bokeh each show the focus in a way of their own, some of them hardly. Every widget has a shadow
// root, which no style of the page reaches: each gets this one when the focus first comes into it.

const RING = "outline: 3px solid #2a8ac6 !important; outline-offset: 2px !important;"
const NONE = "outline-color: transparent !important;"
const sheet = new CSSStyleSheet()
sheet.replaceSync(`
  :focus-visible { ${RING} }
  /* A box to tick and a switch are transparent themselves: what is drawn for them is around them. */
  .MuiButtonBase-root:has(> input:focus-visible), .MuiSwitch-root:has(input:focus-visible) { ${RING} }
  .MuiButtonBase-root > input:focus-visible, .MuiSwitch-root .MuiButtonBase-root:has(> input:focus-visible) { ${NONE} }
  /* A field has a frame, with room for its name, which a ring would cross out. */
  .MuiOutlinedInput-root:has(:focus-visible) fieldset { border: 3px solid #2a8ac6 !important; }
  .MuiOutlinedInput-root :focus-visible:not(.MuiButtonBase-root) { ${NONE} }
  /* Neighbours would cover the ring. */
  .MuiToggleButton-root:focus-visible { position: relative; z-index: 1; }
  /* What fills its place would lose the ring at the edges, and in a row of tabs or a list it would be cut. */
  .tabulator-tableholder:focus-visible, .bk-events:focus-visible, .MuiMenuItem-root:focus-visible
  { outline-offset: -3px !important; }
`)
const known = new WeakSet()

// The focus may come from another widget in the same root: then nobody outside of that root hears of it.
function hear(root) {
  if (known.has(root)) return
  known.add(root)
  if (!root.adoptedStyleSheets.includes(sheet)) root.adoptedStyleSheets.push(sheet)
  root.addEventListener("focusin", event => {
    event.composedPath().filter(node => node instanceof ShadowRoot).forEach(hear)
  })
}

export function render() {
  hear(document)
  return document.createElement("span")
}
