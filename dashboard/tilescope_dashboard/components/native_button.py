"""An HTML button, drawn together with the page. Its script is ``native_button.js``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import param

from tilescope_dashboard.components.script import ScriptComponent


class NativeButton(ScriptComponent):
    """``pressed`` is called when a person presses it. Messages of a ``disabled`` button are ignored."""

    label = param.String()
    main = param.Boolean(default=False, doc="The one thing to do where it stands, and as wide as that.")
    disabled = param.Boolean(default=False)

    def __init__(self, pressed: Callable[[], Any], **settings: Any) -> None:
        super().__init__(**settings)
        self._pressed = pressed

    def _handle_msg(self, said: Any) -> None:
        if not self.disabled:
            self._pressed()
