"""Button that copies a text to the clipboard. Its script is ``copy_button.js``."""

from __future__ import annotations

from typing import Any

import param

from tilescope_dashboard.components.script import ScriptComponent


class CopyButton(ScriptComponent):
    """Copies ``text`` when pressed, in the browser alone. The tooltip shows it."""

    label = param.String(doc="What stands on the button.")
    text = param.String(doc="What is copied.")

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"margin": (4, 8), **settings})
