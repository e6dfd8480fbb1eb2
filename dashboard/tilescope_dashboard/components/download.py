"""A button that makes a file when pressed and has the browser save it, or says why it cannot."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable
from typing import Any

import panel_material_ui as pmui

from tilescope_dashboard.components import html_text

LOG = logging.getLogger(__name__)


class Download(pmui.FileDownload):
    """``callback`` is a coroutine that returns the file. Put ``said`` beside the button: it is empty unless saving failed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(embed=False, auto=True, size="small", icon="", **settings)
        self.said = html_text.pane(visible=False)
        self.param.watch(lambda _: self.say(), "filename")

    async def _async_sync_data(self) -> None:
        # The browser saves only changed data, so clear it: the same file can be saved again.
        self.data = None
        self.say()
        try:
            await super()._async_sync_data()
        except Exception as error:  # the person waits for a file
            LOG.exception("%s was not made", self.filename)
            self.say(reason(error))

    def say(self, why: str = "") -> None:
        """Why the file was not saved; empty if it was or was not requested."""
        self.said.param.update(object=html_text.notice("error", "Not saved:", why) if why else "", visible=bool(why))


#: A link looks like text, among text.
_LINK = {"minWidth": 0, "padding": "0 6px", "fontSize": "12px", "fontWeight": 500}


def link(label: str, make: Callable[[], io.BytesIO], name: Callable[[], str], description: str) -> Download:
    """A link that saves the result of ``make``, run in a thread, under the ``name`` at the time of the click."""

    async def made() -> io.BytesIO:
        found.filename = name()
        return await asyncio.to_thread(make)

    found = Download(label=label, callback=made, margin=0, sx=_LINK, description=description)
    # As an argument it warns about its former name.
    found.variant = "text"
    return found


def reason(error: Exception) -> str:
    """The error in one line, with the system's message for errors of files and disks."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    place = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
    return f"{said or type(error).__name__}{place}."
