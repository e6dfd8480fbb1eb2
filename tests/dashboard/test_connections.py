"""Messages between server and page, with the corrections of ``panel_patches.connections``."""

import asyncio
import gc
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.document import Document
from bokeh.document.events import ModelChangedEvent
from bokeh.models import Div
from bokeh.protocol import Protocol
from bokeh.protocol.exceptions import ProtocolError
from bokeh.server.connection import ServerConnection
from bokeh.server.session import ServerSession
from bokeh.server.views.ws import WSHandler
from panel.io import document
from tilescope_dashboard.panel_patches import connections
from tornado.ioloop import IOLoop
from tornado.websocket import WebSocketClosedError, WebSocketHandler


@pytest.fixture(autouse=True, scope="module")
def _installed() -> None:
    connections.install()


class Browser:
    """A connection, which is done with what it is sent when ``done`` is called."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self._under_way: list[asyncio.Future[None]] = []
        self._socket = self
        self.protocol = SimpleNamespace(create=self._message)

    @staticmethod
    def _message(_: str, events: Any) -> SimpleNamespace:
        return SimpleNamespace(header_json="", metadata_json="", content_json=events, _buffers=[])

    def send(self, text_data: Any) -> asyncio.Future[None]:
        self.got += [text_data] if text_data else []
        self._under_way.append(asyncio.get_running_loop().create_future())
        return self._under_way[-1]

    def done(self) -> None:
        for sending in self._under_way:
            sending.set_result(None)
        self._under_way.clear()


async def sent() -> list[Any]:
    """What has come when one thing was written and another is queued in the same turn, before a third."""
    doc, browser = Document(), Browser()
    document.schedule_write_events(doc, [browser], ["first"])
    await asyncio.sleep(0)
    browser.done()
    document.schedule_write_events(doc, [browser], ["second"])
    for _ in range(5):
        await asyncio.sleep(0)
        browser.done()
    return browser.got


async def write_to_closed_page() -> None:
    doc, written = Document(), asyncio.get_running_loop().create_future()
    written.set_exception(WebSocketClosedError())
    document._WRITE_FUTURES[doc] = [written]
    await document._run_write_futures(doc)


def test_pages_get_every_message(caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(sent()) == [["first"], ["second"]]
    assert not asyncio.run(never_retrieved())
    asyncio.run(write_to_closed_page())
    asyncio.run(send_to_closed_page())
    assert not caplog.records
    assert asyncio.run(heard_once_pulled()) == ["new"]


async def send_to_closed_page() -> None:
    """Bokeh's message to a page that has closed."""

    async def send(_: object) -> None:
        raise WebSocketClosedError

    page: Any = SimpleNamespace()
    await WSHandler.send_message(page, SimpleNamespace(send=send))


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


def test_closed_connection_is_closed_once() -> None:
    heard: list[str] = []
    session = SimpleNamespace(
        subscribe=lambda _: None, unsubscribe=lambda _: None, notify_connection_lost=lambda: heard.append("lost")
    )
    socket: Any = SimpleNamespace(close_code=1001, close_reason="")
    socket.connection = ServerConnection(None, socket, None, session)
    socket.application = SimpleNamespace(client_lost=lambda connection: connection.detach_session())
    for _ in range(2):
        WSHandler.on_close(socket)
    assert asyncio.run(connections.handle(socket, object())) is None
    assert heard == ["lost"]


def test_refused_connection_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    socket: Any = SimpleNamespace(request="", _request_summary=lambda: "")

    def logged(error: Exception) -> list[str]:
        caplog.clear()
        WSHandler.log_exception(socket, type(error), error, None)
        return [record.getMessage() for record in caplog.records if record.exc_info]

    assert not logged(ProtocolError("Token is expired."))
    assert caplog.messages == ["a page's connection was refused: Token is expired."]
    assert logged(RuntimeError("ours"))


async def heard_once_pulled() -> list[str]:
    """What a browser hears of that has the page and has not drawn all of it."""
    doc, said, heard = Document(), Div(), []
    doc.add_root(said)
    session = ServerSession("session", doc, io_loop=IOLoop.current())
    await session._handle_pull(SimpleNamespace(header={"msgid": "1"}), SimpleNamespace(protocol=Protocol()))
    doc.on_change(lambda event: heard.append(event.new) if isinstance(event, ModelChangedEvent) else None)
    with document.hold(doc):
        said.text = "new"
    await asyncio.sleep(0.05)  # of a thread of its own it is told at the session's next tick
    return heard
