"""Background work of a session, done while the server and the person are idle."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import panel as pn

from tilescope_dashboard.session.scheduling import stepping

#: Seconds between two steps, at most while the server is busy, and before a page's first step.
_PAUSE, _LONGEST, _FIRST = 0.25, 10.0, 1.0
#: Seconds between two steps while the browser draws the page, for other requests.
_BREATH = 0.03
#: Seconds by which a delayed step shows that the server is busy.
_LATE = 0.1
#: Seconds of one step after which the work stops, as a request would wait for a step like it.
_HEAVY = 2.0
#: Seconds without a step after a person's input, as more is likely to follow.
_REST = 1.5
#: Widget properties that only a person changes.
_ASKED_BY = ("value", "view", "indices")


class IdleWork:
    """Calls ``step`` at the session's ticks while it is idle, until it returns False or takes ``_HEAVY`` seconds.

    Pauses grow while the server is busy. No step is taken for a while after the person's input, nor before the browser has drawn the
    result of the last one (``drawn`` calls its argument then), as a click would wait behind it. Without a session nothing is done.
    ``at_once`` is for work on the server alone while the browser draws the page: it begins at once, with short pauses.
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
        """Begin, unless it has begun."""
        if self._doc is not None and self._doc.session_context is not None and not self._due:
            self._wait()

    def _noticed(self, event: Any) -> None:
        """Note a person's input. The browser also sends changes of its own, such as a figure's size."""
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
