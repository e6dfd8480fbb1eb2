"""Delivery of what changes on a page, now and not only when something else changes.

Panel 1.9.4 queues what it cannot write at once, and starts a task that writes the queue. A task that has just written takes
away the mark by which the next knows that there is something for it: what was queued in the turn before that stays, until
something else is queued. A job that had ended was still shown as running, for as long as nobody touched the page.
"""

from __future__ import annotations

from bokeh.document import Document
from panel.io import document

_panels_dispatch = document._dispatch_msgs


async def dispatch(doc: Document) -> None:
    """Write what is queued for the document's browsers, and see that somebody does what was queued meanwhile."""
    await _panels_dispatch(doc)
    if doc in document._WRITE_MSGS and doc not in document._WRITE_BLOCK:
        document._WRITE_BLOCK[doc] = True
        document._dispatch_write_task(doc, dispatch, doc)


def complete() -> None:
    """From here on in this process."""
    document._dispatch_msgs = dispatch
