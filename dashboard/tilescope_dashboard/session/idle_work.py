"""Work for the time in which neither the server nor the person asks for anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import panel as pn

from tilescope_dashboard.session.scheduling import stepping

#: Seconds between two steps; the longest, when others keep the server busy; and before the first one of a page.
_PAUSE, _LONGEST, _FIRST = 0.25, 10.0, 1.0
#: Between two steps while the browser draws the page, in seconds: others are answered meanwhile.
_BREATH = 0.03
#: A step that is called later than this has others before it, in seconds.
_LATE = 0.1
#: After a step that took longer no other is taken, in seconds: who asks for something meanwhile would wait for it.
_HEAVY = 2.0
#: After the person asked for something more is likely to follow, in seconds: until then no step is taken.
_REST = 1.5
#: A widget's properties that only a person changes.
_ASKED_BY = ("value", "view", "indices")


class IdleWork:
    """Calls ``step`` at ticks of the session while it is idle, until it returns False or takes long.

    Pauses between steps grow while the server is busy. After input from the person no step is taken for a while, nor before the
    browser has drawn what came of the last one, where ``drawn`` calls what it is given then: a click would wait for all that
    was sent before it. Without a session nothing is done. ``at_once`` is for work of the server's alone, while the browser draws
    the page: it begins without a pause and makes hardly any.
    """

    def __init__(
        self,
        step: Callable[[], bool],
        drawn: Callable[[Callable[[], None]], None] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        self._step, self._doc, self._due = step, pn.state.curdoc, 0.0
        self._pause, self._usual = (_BREATH, _BREATH) if at_once else (_FIRST, _PAUSE)
        self._drawn, self._drawing, self._asked = drawn, False, -_REST
        if self._doc is not None:
            self._doc.on_change(self._noticed)

    def start(self) -> None:
        """There is something to do."""
        if self._doc is not None and self._doc.session_context is not None and not self._due:
            self._wait()

    def _noticed(self, event: Any) -> None:
        """A widget's new value that came from the browser. How large a figure has become comes from there as well."""
        if getattr(event, "setter", None) is not None and getattr(event, "attr", "") in _ASKED_BY:
            self._asked = time.monotonic()

    def _wait(self) -> None:
        self._due = time.monotonic() + self._pause
        self._doc.add_timeout_callback(self._turn, int(1000 * self._pause))

    def _turn(self) -> None:
        began = time.monotonic()
        busy = began - self._due > _LATE or stepping() or self._drawing
        resting = began - self._asked < _REST
        self._pause = min(2 * self._pause, _LONGEST) if busy else self._usual
        if busy or resting or (self._take() and time.monotonic() - began < _HEAVY):
            self._wait()
        else:
            self._due = 0.0

    def _take(self) -> bool:
        """Take a step; False if it was the last."""
        more = self._step()
        if more and self._drawn:
            self._drawing = True
            self._drawn(self._rested)
        return more

    def _rested(self) -> None:
        self._drawing = False
