"""A connection that has been let go of is spoken of no more.

Bokeh 3.9.2 hands on what a page sent just before it closed, and hears of its end twice where the close and the broken pipe both
come: each time an ``AssertionError`` stands in the server's log, as the connection has no session any more.
"""

from __future__ import annotations

from typing import Any

from bokeh.server.views.ws import WSHandler

_HANDLE, _ON_CLOSE = WSHandler._handle, WSHandler.on_close


def ignore() -> None:
    """From here on in this process."""
    # Bokeh declares both as methods that are not to be exchanged.
    WSHandler._handle = _handle  # type: ignore[method-assign]
    WSHandler.on_close = _on_close  # type: ignore[method-assign]


async def _handle(self: WSHandler, message: Any) -> Any:
    return await _HANDLE(self, message) if _is_open(self) else None


def _on_close(self: WSHandler) -> None:
    if self.connection is None or _is_open(self):
        _ON_CLOSE(self)


def _is_open(socket: WSHandler) -> bool:
    return socket.connection is not None and socket.connection._session is not None
