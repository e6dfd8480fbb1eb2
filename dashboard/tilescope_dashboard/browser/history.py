"""Back and Forward of the browser, as changes of the page's address. Its script is ``history.js``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from tilescope_dashboard.components.script import Invisible


class History(Invisible):
    """Adds an entry to the browser's history for each change that a person makes.

    ``went`` is called with the names that an address has which the browser went back, or forward, to: what it does not name is
    as it was when the page was opened.
    """

    def __init__(self, went: Callable[[set[str]], Any], **settings: Any) -> None:
        super().__init__(**settings)
        self._went = went

    def _handle_msg(self, data: Any) -> None:
        self._went(set(parse_qs(str(data).removeprefix("?"), keep_blank_values=True)))
