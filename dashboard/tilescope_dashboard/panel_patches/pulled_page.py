"""What changes on a page once its browser has it reaches the browser, from then on and not only once it has drawn everything.

Panel 1.9.4 drops what changes before the browser says that the page is idle: the document would be sent in full later. It was sent
half a second before. Whoever pressed Profile in the moment in which the figures came never got the form.
"""

from __future__ import annotations

from typing import Any

import panel as pn
from bokeh.server.session import ServerSession

from tilescope_dashboard.session.scheduling import Pulled

_bokehs_pull = ServerSession._handle_pull


def follow() -> None:
    """From here on in this process."""
    ServerSession._handle_pull = pull


async def pull(self: ServerSession, message: Any, connection: Any) -> Any:
    """``ServerSession._handle_pull``, after which Panel sends changes of the document."""
    reply = await _bokehs_pull(self, message, connection)
    pn.state._connected[self.document] = True
    self.document.callbacks.trigger_event(Pulled())
    return reply
