"""Notice while the server does not answer. Its script is ``connection.js``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilescope_dashboard.components.script import ScriptComponent


class Connection(ScriptComponent):
    """A line over the page while the connection is lost. It takes no space and sends nothing to the server."""

    _esm = Path(__file__).with_suffix(".js")

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"width": 0, "height": 0, "margin": 0, **settings})
