"""Button that copies a text to the clipboard, in the browser alone."""

from __future__ import annotations

import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard.components import html_text, layout

#: A page that did not come by HTTPS or from this machine has no clipboard but that of a marked text.
_COPY = """
const text = button.data.description.slice(button.data.label.length + 2)
const say = copied => { said.text = copied ? "Copied." : "The browser refused. Select the text and copy it by hand." }
const marked = () => {
  const area = document.body.appendChild(document.createElement("textarea"))
  area.value = text
  area.select()
  say(document.execCommand("copy"))
  area.remove()
}
navigator.clipboard ? navigator.clipboard.writeText(text).then(() => say(true), marked) : marked()
"""


class CopyButton(layout.Part):
    """Copies the text that its tooltip shows, and says so. Hidden without a text."""

    def __init__(self) -> None:
        super().__init__()
        self.button = pmui.Button(variant="outlined", size="small", margin=(4, 8))
        self._said = html_text.pane(styles={"align-self": "center"})
        self._said.margin = 0
        self.layout = pn.Row(self.button, self._said, margin=0)
        self.button.js_on_click(args={"button": self.button, "said": self._said}, code=_COPY)

    def offer(self, label: str, text: str) -> None:
        """Copy this text from now on."""
        self.layout.visible = bool(text)
        # The tooltip is the button's name for a screen reader, and has the label for that.
        self.button.param.update(label=label, description=f"{label}: {text}" if text else "")
        self._said.param.trigger("object")
