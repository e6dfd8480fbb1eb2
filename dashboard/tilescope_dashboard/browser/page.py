"""What the page does in the browser beside its widgets: keys, the sheet of keys and terms, the focus, a skip link, its history."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import param
from param.parameterized import no_instance_params

from tilescope_dashboard.components.script import ScriptComponent
from tilescope_dashboard.data.meanings import MEANINGS

#: What the palette is for, its button's name and its title.
FINDS = "Find a kernel, a run, a view or an action"
#: Keys and their actions, as the sheet lists them.
KEYS = (
    ("?", "show or hide the keys and the glossary"),
    ("1 … 9", "go to a group of views, counted from the left"),
    ("[ ]", "go to the view before or after this one"),
    ("p, g, r", "open or close the profile form, the GPU, or what can be done with this run"),
    ("/", f"{FINDS[0].lower()}{FINDS[1:]}"),
    ("Tab, Shift Tab", "go to the next control, or back"),
    ("← →", "in a row of views: the one beside it; Enter opens it"),
    ("↑ ↓", "in a table: choose a row; Enter opens one that leads elsewhere"),
    ("← →, + −, 0", "in a figure: move along it, closer, farther, all of it"),
    ("Esc", "close what is open, or choose no row"),
)
_ROWS = "".join(f"<dt>{escape(key)}</dt><dd>{escape(does)}</dd>" for key, does in KEYS)
_TERMS = "".join(
    f'<dt data-entry="{escape(term)}" tabindex="-1">{escape(term)}</dt><dd>{escape(said)}</dd>'
    for term, said in sorted(MEANINGS.items(), key=lambda one: one[0].casefold())
)
_MARKUP = (
    # The title is the name: beside a text it would be read as well.
    f'<button class="find" data-panel="find" title="{FINDS} (/)"><span aria-hidden="true">Find /</span></button>'
    '<button title="Keys and glossary (?)"><span aria-hidden="true">?</span></button>'
    f'<dialog aria-label="Keys and glossary"><form method="dialog"><button>Close</button></form><strong>Keys</strong><dl>{_ROWS}</dl>'
    f"<details><summary>Glossary of columns and numbers</summary><dl>{_TERMS}</dl></details></dialog>"
)


@no_instance_params  # else each has copies of its forty parameters
class PageScript(ScriptComponent):
    """The button of the sheet, and a script for the whole page.

    ``asks`` gets what a key asks for: ``clear`` for Esc when no menu is open, ``number`` of a group, ``step`` to another view, or
    ``panel`` to open or close; and ``went`` with the query that the browser went back, or forward, to. Each change that a person
    makes is an entry of its history.
    """

    markup = param.String(default=_MARKUP)
    ring = param.String(
        default=Path(__file__).with_name("ring.css").read_text(encoding="utf-8"), doc="Style of the focus."
    )
    panel = param.String(doc="What is open beside the views: the focus goes into the drawer, and back.")
    theme = param.String(doc="The page's theme: what a user chose is kept in the browser.")
    narrow = param.Boolean(doc="The page is as narrow as a phone.")
    asked = param.Integer(doc="How often the browser was asked whether it has drawn all it was sent.")
    drawn = param.Integer(doc="The last of those questions after which it had.")

    def __init__(self, asks: Callable[[str, Any], None], **settings: Any) -> None:
        super().__init__(**settings)
        self._asks = asks

    def _handle_msg(self, data: Any) -> None:
        if isinstance(data, dict):
            for name, value in data.items():
                self._asks(name, value)

    def focus_tab(self, title: str) -> None:
        """Put the focus on the open view's tab, once the browser has drawn it with this title."""
        self._send_msg({"tab": title})

    def once_drawn(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the browser has drawn everything sent so far and is idle."""
        self.asked += 1
        number = self.asked

        def told(event: param.parameterized.Event) -> None:
            if event.new >= number:
                self.param.unwatch(watcher)
                then()

        watcher = self.param.watch(told, "drawn")
