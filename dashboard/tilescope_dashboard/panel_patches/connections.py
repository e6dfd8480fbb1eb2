"""Messages between the server and a page: none is lost while both are there, and none is missed once a page has closed.

Panel 1.9.4 drops changes until the browser reports the page idle, on the assumption that the whole document is sent then. It was sent
half a second before: a user who pressed Profile while the figures were drawn never got the form. It queues changes that it cannot write
at once, and starts a task that writes the queue. A task that finishes clears the flag that a later one relies on, so changes queued in
between stay there until something else changes: a finished job was shown as running until somebody touched the page. It starts all
writes of a message and awaits one after another: when the page closes, it logs a warning for one, and asyncio logs
``Task exception was never retrieved`` for the rest.

Bokeh 3.9.2 handles messages that a page sent just before it closed, and handles a close twice when the pipe breaks as well. Each time it
logs an ``AssertionError``, as the connection has no session left. A page with an expired token, such as one left open overnight,
makes it log a traceback too.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import panel as pn
from bokeh.document import Document
from bokeh.protocol.exceptions import ProtocolError
from bokeh.server.session import ServerSession
from bokeh.server.views import ws
from bokeh.server.views.ws import WSHandler
from panel.io import document
from tornado.websocket import WebSocketClosedError, WebSocketHandler

LOG = logging.getLogger("tilescope")
_pull, _dispatch, _write = ServerSession._handle_pull, document._dispatch_msgs, WebSocketHandler.write_message
_handle, _on_close, _log_exception = WSHandler._handle, WSHandler.on_close, WSHandler.log_exception


def install() -> None:
    ServerSession._handle_pull = pull
    document._dispatch_msgs = dispatch
    # Panel calls the method of this class, not of Bokeh's handler.
    WebSocketHandler.write_message = write_message  # type: ignore[method-assign]
    WSHandler._handle, WSHandler.on_close, WSHandler.log_exception = handle, on_close, log_exception
    for logger in (document.logger, ws.log):
        logger.addFilter(matters)


def matters(record: logging.LogRecord) -> bool:
    """Whether a record of Panel or Bokeh is of anything but a message to a page that has closed."""
    return record.msg != "Failed sending message as connection was closed"


async def pull(self: ServerSession, message: Any, connection: Any) -> Any:
    """``ServerSession._handle_pull``. From then on Panel sends the document's changes."""
    reply = await _pull(self, message, connection)
    pn.state._connected[self.document] = True
    return reply


async def dispatch(doc: Document) -> None:
    """Write the document's queue, and start another task for what was queued meanwhile."""
    await _dispatch(doc)
    if doc in document._WRITE_MSGS and doc not in document._WRITE_BLOCK:
        document._WRITE_BLOCK[doc] = True
        document._dispatch_write_task(doc, dispatch, doc)


def write_message(
    self: WebSocketHandler, message: bytes | str | dict[str, Any], binary: bool = False
) -> asyncio.Future[None]:
    """``WebSocketHandler.write_message``, whose failure counts as retrieved even if nobody awaits it."""
    try:
        writing = _write(self, message, binary)
    except WebSocketClosedError as closed:
        writing = asyncio.get_running_loop().create_future()
        writing.set_exception(closed)
    writing.add_done_callback(lambda done: done.cancelled() or done.exception())
    return writing


async def handle(self: WSHandler, message: Any) -> Any:
    """``WSHandler._handle`` while the connection has a session."""
    return await _handle(self, message) if _is_open(self) else None


def on_close(self: WSHandler) -> None:
    """``WSHandler.on_close``, once."""
    if self.connection is None or _is_open(self):
        _on_close(self)


def log_exception(self: WSHandler, kind: Any, error: Any, trace: Any) -> None:
    """``WSHandler.log_exception``, in one line for a refused connection."""
    if isinstance(error, ProtocolError):
        LOG.warning("a page's connection was refused: %s", error)
    else:
        _log_exception(self, kind, error, trace)


def _is_open(socket: WSHandler) -> bool:
    return socket.connection is not None and socket.connection._session is not None
