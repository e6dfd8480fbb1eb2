"""Ids of the visitor and the tab that a browser keeps, so that a job keeps its owner when the page is reloaded."""

from __future__ import annotations

from typing import Any

import param

from tilescope_dashboard.components.script import Invisible
from tilescope_dashboard.session.scheduling import next_tick, once_loaded


class Visitor(Invisible):
    """``person`` and ``tab`` are random ids that the browser keeps for this site and for this tab of it.

    They are empty until it has told them, and where it keeps nothing. They are secrets: whoever knows them may do what
    the person may. So they stand in no address, which people hand on, and no other session is told them.
    """

    person = param.String()
    tab = param.String()
    opened = param.String(doc="Id of the run of the last job whose result this tab has opened by itself.")

    def _handle_msg(self, data: Any) -> None:
        told = {name: str(data.get(name) or "") for name in ("person", "tab", "opened")}
        # Changes made before the page is loaded would not reach the browser.
        once_loaded(lambda: next_tick(lambda: self._take(told)))

    def _take(self, told: dict[str, str]) -> None:
        self.param.update(**{**told, "opened": self.opened or told["opened"]})
