"""Nothing that a page is sent waits for what is sent next."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from bokeh.document import Document
from panel.io import document
from tilescope_dashboard.panel_patches import delivery


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


def test_what_is_queued_while_the_queue_is_written_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "_dispatch_msgs", delivery._panels_dispatch)
    # Once Panel sends it by itself, the module has had its day.
    assert asyncio.run(sent()) == [["first"]]
    delivery.complete()
    assert asyncio.run(sent()) == [["first"], ["second"]]
