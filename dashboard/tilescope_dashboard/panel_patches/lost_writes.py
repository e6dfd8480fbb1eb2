"""Keeps writes to a closed page out of the log.

Panel 1.9.4 starts all writes of a message and awaits one after another. When the page closes meanwhile the first failure ends the
waiting, and asyncio logs ``Task exception was never retrieved`` with a traceback for each of the others.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.websocket import WebSocketClosedError, WebSocketHandler

_tornados_write = WebSocketHandler.write_message


def forget() -> None:
    """Install the patch in this process."""
    # Panel calls the method of this class, not of Bokeh's handler.
    WebSocketHandler.write_message = write_message  # type: ignore[method-assign]


def write_message(
    self: WebSocketHandler, message: bytes | str | dict[str, Any], binary: bool = False
) -> asyncio.Future[None]:
    """``WebSocketHandler.write_message``, whose failure counts as retrieved even if nobody awaits it."""
    try:
        writing = _tornados_write(self, message, binary)
    except WebSocketClosedError as closed:
        writing = asyncio.get_running_loop().create_future()
        writing.set_exception(closed)
    writing.add_done_callback(_retrieve)
    return writing


def _retrieve(writing: asyncio.Future[None]) -> None:
    if not writing.cancelled():
        writing.exception()
