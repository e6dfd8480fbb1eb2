// A button: the main one of its place in the page's colour, or a word to press.

const STYLE = `
  :host { flex: none; }
  button { font: 600 14px/1.2 Inter, Roboto, "Helvetica Neue", Arial, sans-serif; box-sizing: border-box; min-height: 36px; padding: 0 14px;
    border: 0; border-radius: 4px; cursor: pointer; color: var(--mui-palette-primary-main, #0072B2); background: none; }
  button:hover { background: color-mix(in srgb, currentColor 9%, transparent); }
  .main { width: 100%; color: var(--mui-palette-primary-contrastText, #fff); background: var(--mui-palette-primary-main, #0072B2); }
  .main:hover { background: var(--mui-palette-primary-main, #0072B2); filter: brightness(1.08); }
  button:disabled { color: inherit; opacity: .5; cursor: default; filter: none; background: color-mix(in srgb, currentColor 12%, transparent); }
  button:focus-visible { outline: 3px solid #2a8ac6; outline-offset: 2px; }
  @media (pointer: coarse) { button { min-height: 40px; } }
`

export function render({model}) {
  const place = document.createElement("div"), style = document.createElement("style"), button = document.createElement("button")
  style.textContent = STYLE
  button.type = "button"
  button.className = model.main ? "main" : ""
  const show = () => {
    button.textContent = model.label
    button.disabled = model.disabled
  }
  button.addEventListener("click", () => model.send_msg("pressed"))
  for (const name of ["label", "disabled"]) model.on(name, show)
  place.append(style, button)
  show()
  return place
}
