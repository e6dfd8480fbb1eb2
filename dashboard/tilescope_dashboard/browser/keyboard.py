"""Keys for the whole page, a sheet that lists them, and a skip link. Their script is ``keyboard.js``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import param

from tilescope_dashboard.components.script import ScriptComponent

#: Keys and their actions, as the sheet lists them.
KEYS = (
    ("?", "show or hide this sheet"),
    ("1 … 9", "go to a group of views, counted from the left"),
    ("[ ]", "go to the view before or after this one"),
    ("p, g", "open or close the profile form, or the GPU"),
    ("Tab, Shift Tab", "go to the next control, or back"),
    ("← →", "in a row of views: the one beside it; Enter opens it"),
    ("↑ ↓", "in a table: choose a row; Enter opens one that leads elsewhere"),
    ("← →, + −, 0", "in a figure: move along it, closer, farther, all of it"),
    ("Esc", "close what is open, or choose no row"),
)


class Keyboard(ScriptComponent):
    """The button of the sheet, and keys for the whole page. ``clear`` is called for Esc when nothing is open."""

    keys = param.List(doc="Pairs of keys and what they do.")

    def __init__(self, clear: Callable[[], None], **settings: Any) -> None:
        super().__init__(keys=[list(pair) for pair in KEYS], **settings)
        self._clear = clear

    def _handle_msg(self, data: Any) -> None:
        if data == "clear":
            self._clear()
