// Fields of a form. A person may go on while the server answers: each word of theirs has a number, and a value of the server's that
// is older than the last word changes nothing.

const STYLE = `
  .fields { display: flex; flex-direction: column; gap: 14px; padding: 4px 10px; font: 14px/1.3 Inter, Roboto, "Helvetica Neue", Arial, sans-serif; }
  [hidden] { display: none !important; }
  fieldset { border: 0; margin: 0; padding: 0; min-width: 0; display: flex; flex-wrap: wrap; gap: 2px 16px; }
  fieldset.many { flex-direction: column; flex-wrap: nowrap; max-height: 360px; overflow: auto; }
  legend, .above { padding: 0; margin: 0 0 4px; font-size: 12px; color: var(--mui-palette-text-secondary, inherit); }
  label.tick { display: flex; align-items: center; gap: 9px; min-height: 28px; cursor: pointer; overflow-wrap: anywhere; }
  label.tick:has(:disabled) { opacity: .6; cursor: default; }
  input[type=checkbox] { appearance: none; box-sizing: border-box; flex: none; width: 18px; height: 18px; margin: 0; cursor: inherit;
    border: 2px solid color-mix(in srgb, currentColor 64%, transparent); border-radius: 3px; display: grid; place-content: center; }
  input[type=checkbox]:checked { background: var(--mui-palette-primary-main, #0072B2); border-color: var(--mui-palette-primary-main, #0072B2); }
  input[type=checkbox]:checked::before { content: ""; width: 10px; height: 10px; background: var(--mui-palette-primary-contrastText, #fff);
    clip-path: polygon(14% 47%, 0 62%, 40% 100%, 100% 20%, 85% 8%, 38% 71%); }
  .line { display: flex; flex-direction: column; }
  input[type=text], select { font: inherit; color: inherit; background: var(--mui-palette-background-default, transparent); box-sizing: border-box;
    width: 100%; min-width: 0; height: 38px; padding: 0 11px; border-radius: 4px; border: 1px solid color-mix(in srgb, currentColor 27%, transparent); }
  input[type=text]::placeholder { color: inherit; opacity: .64; }
  input[type=text]:hover, select:hover { border-color: currentColor; }
  :is(input, select):focus-visible { outline: 3px solid #2a8ac6; outline-offset: 1px; }
  option { background: var(--mui-palette-background-default, #fff); color: var(--mui-palette-text-primary, #000); }
  .helper { font-size: 12px; margin-top: 4px; } .line.wrong input { border-color: #D55E00; }
  .small { font-size: 13px; } .quiet { opacity: .72; }
  .greyed { display: flex; flex-wrap: wrap; gap: 2px 16px; } .greyed + .greyed { margin-top: 8px; } .greyed p { flex-basis: 100%; margin: 0; }
  .greyed label { display: flex; align-items: center; gap: 9px; min-height: 24px; opacity: .64; }
  @media (pointer: coarse) { label.tick { min-height: 40px; } input[type=text], select { height: 44px; font-size: 16px; } }
`

function made(tag, className, text) {
  const element = document.createElement(tag)
  if (className) element.className = className
  if (text !== undefined) element.textContent = text
  return element
}

// A box and what it is called.
function tick(label) {
  const place = made("label", "tick"), box = made("input")
  box.type = "checkbox"
  place.append(box, made("span", "", label))
  return {place, box}
}

let ids = 0

// For each kind what makes a field's element: with ``show``, which takes the field as the server describes it and whether its value
// counts; ``say`` tells the server.
const KINDS = {
  boxes(say) {
    const place = made("fieldset"), title = made("legend")
    let known = "", boxes = []
    place.append(title)
    const show = (field, counts) => {
      title.textContent = field.label
      const options = JSON.stringify(field.options)
      if (options !== known) {
        known = options
        boxes.forEach(({place}) => place.remove())
        boxes = field.options.map(([label, value]) => ({...tick(label), value}))
        place.append(...boxes.map(({place}) => place))
        for (const {box} of boxes)
          box.addEventListener("change", () => say(boxes.filter(({box}) => box.checked).map(({value}) => value)))
        place.classList.toggle("many", field.options.some(([label]) => label.length > 14))
        counts = true
      }
      for (const {box, value} of boxes) {
        box.disabled = field.disabled
        if (counts) box.checked = field.value.includes(value)
      }
    }
    return {place, show}
  },
  box(say) {
    const {place, box} = tick("")
    box.addEventListener("change", () => say(box.checked))
    const show = (field, counts) => {
      place.lastChild.textContent = field.label
      box.disabled = field.disabled
      if (counts) box.checked = field.value
    }
    return {place, show}
  },
  text(say) {
    const place = made("div", "line"), title = made("label", "above"), input = made("input"), helper = made("span", "helper")
    input.type = "text"
    input.autocomplete = "off"
    input.spellcheck = false
    input.id = `native-${ids++}`
    title.htmlFor = input.id
    helper.id = `${input.id}-helper`
    input.setAttribute("aria-describedby", helper.id)
    place.append(title, input, helper)
    input.addEventListener("input", () => say({text: input.value, done: false}))
    input.addEventListener("change", () => say({text: input.value, done: true}))
    let last = ""
    const show = (field, counts) => {
      title.textContent = field.label
      input.placeholder = field.placeholder
      input.disabled = field.disabled
      input.setAttribute("aria-invalid", field.error)
      place.classList.toggle("wrong", field.error)
      helper.textContent = field.helper
      helper.hidden = !field.helper
      // What is being typed is none of the server's yet.
      if (counts && field.value !== last) input.value = field.value
      last = field.value
    }
    return {place, show}
  },
  choice(say) {
    const place = made("div", "line"), title = made("label", "above"), list = made("select")
    list.id = `native-${ids++}`
    title.htmlFor = list.id
    place.append(title, list)
    list.addEventListener("change", () => say(list.value))
    let known = ""
    const show = (field, counts) => {
      title.textContent = field.label
      list.disabled = field.disabled
      const options = JSON.stringify([field.options, field.refused])
      if (options !== known) {
        known = options
        list.replaceChildren(...field.options.map(([label, value]) => {
          const option = made("option", "", label)
          option.value = value
          option.disabled = field.refused.includes(value)
          return option
        }))
        counts = true
      }
      if (counts) list.value = field.value
    }
    return {place, show}
  },
  note() {
    const place = made("div")
    let known = ""
    // The text is escaped where it is written.
    const show = ({markup}) => { if (markup !== known) place.innerHTML = known = markup }
    return {place, show}
  },
}

export function render({model}) {
  const place = made("div", "fields"), style = made("style", "", STYLE)
  const fields = model.shown.map((field, at) => {
    const known = {turn: field.turn}
    const say = value => model.send_msg({at, turn: ++known.turn, value})
    return Object.assign(known, KINDS[field.kind](say))
  })
  const show = () => model.shown.forEach((field, at) => {
    const known = fields[at]
    known.place.hidden = !field.visible
    known.show(field, field.turn >= known.turn)
  })
  place.append(style, ...fields.map(({place}) => place))
  model.on("shown", show)
  show()
  return place
}
