"""Notice while the server does not answer. Its script is ``connection.js``."""

from __future__ import annotations

from typing import Any

from tilescope_dashboard.components.script import ScriptComponent


class Connection(ScriptComponent):
    """A line over the page while the connection is lost. It takes no space and sends nothing to the server."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"width": 0, "height": 0, "margin": 0, **settings})
