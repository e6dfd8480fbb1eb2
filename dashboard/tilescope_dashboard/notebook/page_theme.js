// Tells Python whether the page is dark: JupyterLab and its exports mark the body with an attribute, VS Code with a class.

const EVERY_MS = 1000;
const TRIES = 20;

export function render({ model }) {
  const body = document.body;
  const dark = () => body.dataset.jpThemeLight === "false" || body.classList.contains("vscode-dark");
  const look = () => (dark() ? "dark" : "light");
  let timer = 0;
  let left = 0;

  // The first message may come before the kernel listens, so it is repeated until Python has set the theme.
  const tell = () => {
    clearTimeout(timer);
    if (model.theme !== look() && left-- > 0) {
      model.send_msg(look());
      timer = setTimeout(tell, EVERY_MS);
    }
  };
  const begin = () => {
    left = TRIES;
    tell();
  };
  const observer = new MutationObserver(begin);
  observer.observe(body, { attributes: true, attributeFilter: ["data-jp-theme-light", "class"] });
  model.on("remove", () => {
    observer.disconnect();
    clearTimeout(timer);
  });
  begin();
  return document.createElement("span");
}
