"""Ignores messages of closed connections, and logs a refused connection in one line.

Bokeh 3.9.2 handles messages that a page sent just before it closed, and handles a close twice when the pipe breaks as well. Each time it
logs an ``AssertionError``, as the connection has no session left. A page with an expired token, such as one left open overnight,
makes it log a traceback too.
"""

from __future__ import annotations

import logging
from typing import Any

from bokeh.protocol.exceptions import ProtocolError
from bokeh.server.views.ws import WSHandler

LOG = logging.getLogger("tilescope")

_HANDLE, _ON_CLOSE = WSHandler._handle, WSHandler.on_close
_LOG_EXCEPTION = WSHandler.log_exception


def ignore() -> None:
    """Install the patch in this process."""
    WSHandler._handle = _handle
    WSHandler.on_close = _on_close
    WSHandler.log_exception = _log_exception


async def _handle(self: WSHandler, message: Any) -> Any:
    return await _HANDLE(self, message) if _is_open(self) else None


def _on_close(self: WSHandler) -> None:
    if self.connection is None or _is_open(self):
        _ON_CLOSE(self)


def _log_exception(self: WSHandler, kind: Any, error: Any, trace: Any) -> None:
    if isinstance(error, ProtocolError):
        LOG.warning("a page's connection was refused: %s", error)
    else:
        _LOG_EXCEPTION(self, kind, error, trace)


def _is_open(socket: WSHandler) -> bool:
    return socket.connection is not None and socket.connection._session is not None
