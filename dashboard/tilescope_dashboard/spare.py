"""Work that can wait until neither the server nor the person asks for anything."""

from __future__ import annotations

import time
from collections.abc import Callable

import panel as pn

#: Seconds between two steps; and the longest, when others keep the server busy.
_PAUSE, _LONGEST = 0.25, 10.0
#: A step that is called later than this has others before it, in seconds.
_LATE = 0.1
#: After a step that took longer no other is taken, in seconds: who asks for something meanwhile would wait for it.
_HEAVY = 2.0


class SpareTime:
    """Takes ``step`` after ``step`` in this session's turns, with pauses, until one returns False or was heavy; longer pauses
    while the server is busy. Without a session nothing is ever done."""

    def __init__(self, step: Callable[[], bool]) -> None:
        self._step, self._doc, self._due, self._pause = step, pn.state.curdoc, 0.0, _PAUSE

    def start(self) -> None:
        """There is something to do."""
        if self._doc is not None and self._doc.session_context is not None and not self._due:
            self._wait()

    def _wait(self) -> None:
        self._due = time.monotonic() + self._pause
        self._doc.add_timeout_callback(self._turn, int(1000 * self._pause))

    def _turn(self) -> None:
        began = time.monotonic()
        busy = began - self._due > _LATE
        self._pause = min(2 * self._pause, _LONGEST) if busy else _PAUSE
        if busy or (self._step() and time.monotonic() - began < _HEAVY):
            self._wait()
        else:
            self._due = 0.0
