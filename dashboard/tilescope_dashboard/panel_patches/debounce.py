"""A shorter wait before the server acts on a change.

Panel 1.9.4 waits for 50 ms, which is right for a slider that is dragged. No view has one.
"""

from __future__ import annotations

from panel.reactive import Syncable

#: In milliseconds: what of a widget changes together reaches the server within this.
_TOGETHER = 5


def shorten() -> None:
    """From here on in this process."""
    Syncable._debounce = _TOGETHER
