// What fits the selector in the root, looked for through all shadow roots: every widget has one of its own.
function every(selector, root = document) {
  const found = [...root.querySelectorAll(selector)]
  for (const element of root.querySelectorAll("*"))
    if (element.shadowRoot) found.push(...every(selector, element.shadowRoot))
  return found
}
