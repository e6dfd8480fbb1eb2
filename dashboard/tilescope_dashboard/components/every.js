// What fits the selector in the root, looked for through all shadow roots: every widget has one of its own.
function every(selector, root = document) {
  const found = [...root.querySelectorAll(selector)]
  for (const element of root.querySelectorAll("*"))
    if (element.shadowRoot) found.push(...every(selector, element.shadowRoot))
  return found
}

function focused() {
  let at = document.activeElement
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
  return at ?? document.body
}

// The element and what holds it, through shadow roots.
function around(element) {
  const found = []
  for (let at = element; at; at = at.parentNode ?? at.host) found.push(at)
  return found
}
