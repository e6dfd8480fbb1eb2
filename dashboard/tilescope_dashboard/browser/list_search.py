"""ARIA roles of lists, and keys in searchable ones. Its script is ``list_search.js``."""

from __future__ import annotations

from typing import Any

from tilescope_dashboard.components.script import ScriptComponent


class ListSearch(ScriptComponent):
    """A list's options are called so. A letter begins a search, Enter takes the first that is found.

    It takes no room, and Python never hears of it.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"width": 0, "height": 0, "margin": 0, **settings})
