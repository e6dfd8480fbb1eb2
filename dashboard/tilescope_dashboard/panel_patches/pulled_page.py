"""Sends changes to the browser from the moment it has the document.

Panel 1.9.4 drops changes until the browser reports the page idle, on the assumption that the whole document is sent then. It was
sent half a second before. A person who pressed Profile while the figures were drawn never got the form.
"""

from __future__ import annotations

from typing import Any

import panel as pn
from bokeh.server.session import ServerSession

from tilescope_dashboard.session.scheduling import Pulled

_bokehs_pull = ServerSession._handle_pull


def follow() -> None:
    """Install the patch in this process."""
    ServerSession._handle_pull = pull


async def pull(self: ServerSession, message: Any, connection: Any) -> Any:
    """``ServerSession._handle_pull``. From then on Panel sends the document's changes."""
    reply = await _bokehs_pull(self, message, connection)
    pn.state._connected[self.document] = True
    self.document.callbacks.trigger_event(Pulled())
    return reply
