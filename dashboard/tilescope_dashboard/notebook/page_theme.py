"""Theme of the notebook's page, light or dark. Figures are drawn in Python, which cannot see it."""

from __future__ import annotations

from typing import Any

import param

from tilescope_dashboard.components.script import ScriptComponent


class PageTheme(ScriptComponent):
    """Invisible. ``theme`` follows that of the notebook's page, also when it is changed later."""

    theme: Any = param.Selector(default="light", objects=["light", "dark"])

    def _handle_msg(self, data: Any) -> None:
        if data in ("light", "dark"):
            self.theme = data
