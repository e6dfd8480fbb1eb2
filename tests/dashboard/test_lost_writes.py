"""What Panel leaves behind of a message whose page closes: the fault, and its correction."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.server.connection import ServerConnection
from panel.io import document
from tilescope_dashboard.panel_patches import lost_writes
from tornado.websocket import WebSocketClosedError, WebSocketHandler


class ClosingSocket(WebSocketHandler):
    """A page's socket: the page goes while the first two parts of a message are written, and the third fails at once."""

    def __init__(self) -> None:
        self.ws_connection: Any = self
        self.writes = 0

    def is_closing(self) -> bool:
        return self.writes == 2


async def never_retrieved() -> list[str]:
    """What asyncio complains of when a page closes that is being sent something, and its document is done away with."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    message = SimpleNamespace(header_json="", metadata_json="", content_json="", _buffers=[])
    for closes_at_once in (False, True):
        socket = ClosingSocket()

        async def fails() -> None:
            raise WebSocketClosedError

        def write(_: Any, binary: bool, socket: Any = socket, counts: bool = closes_at_once) -> asyncio.Future[None]:
            socket.writes += counts
            return asyncio.ensure_future(fails())

        socket.ws_connection = SimpleNamespace(is_closing=socket.is_closing, write_message=write)
        page: Any = ServerConnection(None, socket, None, SimpleNamespace(subscribe=lambda _: None))  # type: ignore[arg-type]
        doc = Document()
        document._WRITE_BLOCK[doc], document._WRITE_MSGS[doc] = True, {page: [message]}  # type: ignore[list-item]
        document._dispatch_write_task(doc, document._dispatch_msgs, doc)
        await asyncio.sleep(0)
        for task in document._write_tasks.pop(doc, []):
            task.cancel()
        await asyncio.sleep(0.01)
        gc.collect()
    return complaints


def test_panel_leaves_writes_behind_when_a_page_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebSocketHandler, "write_message", lost_writes._tornados_write)
    assert set(asyncio.run(never_retrieved())) == {"Task exception was never retrieved"}
    lost_writes.forget()
    assert not asyncio.run(never_retrieved())
