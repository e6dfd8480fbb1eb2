"""Keys for the whole page, a sheet that lists them, and a skip link. Their script is ``keyboard.js``."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
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
_ROWS = "".join(f"<dt>{escape(key)}</dt><dd>{escape(does)}</dd>" for key, does in KEYS)
_MARKUP = (
    '<button aria-label="Keys" title="Keys (?)">?</button>'
    f'<dialog aria-label="Keys"><strong>Keys</strong><dl>{_ROWS}</dl><button>Close</button></dialog>'
)


class Keyboard(ScriptComponent):
    """The button of the sheet, and keys for the whole page.

    ``pressed`` gets what a key asks for: ``clear`` for Esc when nothing is open, ``number`` of a group, ``step`` to another view, or
    ``panel`` to open or close.
    """

    markup = param.String(default=_MARKUP)

    def __init__(self, pressed: Callable[[str, Any], None], **settings: Any) -> None:
        super().__init__(**settings)
        self._pressed = pressed

    def _handle_msg(self, data: Any) -> None:
        if isinstance(data, dict):
            for name, value in data.items():
                self._pressed(name, value)

    def focus_tab(self) -> None:
        """Put the focus on the tab of the open view."""
        self._send_msg({"focus": "tab"})
