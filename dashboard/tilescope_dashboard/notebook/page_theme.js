// Tells Python whether the page is dark: JupyterLab and its exports mark the body with an attribute, VS Code with a class.
const EVERY_MS = 1000, TRIES = 20

export function render({model}) {
  let left = TRIES
  // The theme may change, and the first message may come before the kernel listens, which may never do.
  const tell = () => {
    const {dataset, classList} = document.body
    const look = dataset.jpThemeLight === "false" || classList.contains("vscode-dark") ? "dark" : "light"
    if (model.theme === look) left = TRIES
    else if (left-- > 0) model.send_msg(look)
  }
  tell()
  const timer = setInterval(tell, EVERY_MS)
  model.on("remove", () => clearInterval(timer))
  return document.createElement("span")
}
