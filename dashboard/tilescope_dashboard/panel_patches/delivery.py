"""Delivers queued changes of a page at once.

Panel 1.9.4 queues changes that it cannot write at once, and starts a task that writes the queue. A task that finishes clears the flag
that a later one relies on, so changes queued in between stay there until something else changes. A finished job was shown as
running until somebody touched the page.
"""

from __future__ import annotations

from bokeh.document import Document
from panel.io import document

_panels_dispatch = document._dispatch_msgs


async def dispatch(doc: Document) -> None:
    """Write the document's queue, and start another task for what was queued meanwhile."""
    await _panels_dispatch(doc)
    if doc in document._WRITE_MSGS and doc not in document._WRITE_BLOCK:
        document._WRITE_BLOCK[doc] = True
        document._dispatch_write_task(doc, dispatch, doc)


def complete() -> None:
    """Install the patch in this process."""
    document._dispatch_msgs = dispatch
