"""A write that a closed page never got is no error of the server.

Panel 1.9.4 starts the writes of a message all at once and waits for one after the other. A page that closes meanwhile ends the
waiting, and asyncio logs a traceback for each write that nobody waited for: ``Task exception was never retrieved``. A write that
fails at once leaves those before it behind in the same way.
"""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.websocket import WebSocketClosedError, WebSocketHandler

_tornados_write = WebSocketHandler.write_message


def forget() -> None:
    """From here on in this process."""
    # Panel calls it of this class, not of Bokeh's handler.
    WebSocketHandler.write_message = write_message  # type: ignore[method-assign]


def write_message(
    self: WebSocketHandler, message: bytes | str | dict[str, Any], binary: bool = False
) -> asyncio.Future[None]:
    """``WebSocketHandler.write_message``. Who waits for it hears of a closed page, and who does not is not missed."""
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
