"""Shortens the wait before a widget's change is sent to the server.

Panel 1.9.4 waits 50 ms, which suits a slider being dragged. No view has a slider.
"""

from __future__ import annotations

from panel.reactive import Syncable

#: Milliseconds for which changes of one widget are collected.
_TOGETHER = 5


def shorten() -> None:
    """Install the patch in this process."""
    Syncable._debounce = _TOGETHER
