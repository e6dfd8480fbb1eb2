"""Visible ring around the widget that has the keyboard's focus. Its script is ``focus_ring.js``."""

from __future__ import annotations

from typing import Any

from tilescope_dashboard.components.script import ScriptComponent


class FocusRing(ScriptComponent):
    """The same ring in widgets, tables and figures. It takes no space and sends nothing to the server."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"width": 0, "height": 0, "margin": 0, **settings})
