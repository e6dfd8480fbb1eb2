// Tells Python whether the page is dark: JupyterLab and its exports mark the body with an attribute, VS Code with a class.

const EVERY_MS = 1000;
const TRIES = 20;

export function render({ model }) {
  const body = document.body;
  let seen = "";
  let left = 0;

  // The first message may come before the kernel listens, so it is repeated until Python has set the theme.
  const tell = () => {
    const dark = body.dataset.jpThemeLight === "false" || body.classList.contains("vscode-dark");
    const look = dark ? "dark" : "light";
    if (look !== seen) left = TRIES;
    seen = look;
    if (model.theme !== look && left-- > 0) model.send_msg(look);
  };
  tell();
  const timer = setInterval(tell, EVERY_MS);
  model.on("remove", () => clearInterval(timer));
  return document.createElement("span");
}
