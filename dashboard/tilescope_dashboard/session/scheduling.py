"""Schedule a session's work: at its next tick, beside it in a thread, after the browser has painted, once the page is loaded, or in
idle time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import panel as pn


def in_session() -> bool:
    """Whether this code runs for a browser's session."""
    return pn.state.curdoc is not None and pn.state.curdoc.session_context is not None


def next_tick(action: Callable[[], Any]) -> None:
    """Call ``action`` at the session's next tick; at once without a session.

    A value set while a browser's message is handled is not sent to that browser.
    """
    if in_session():
        pn.state.curdoc.add_next_tick_callback(action)
    else:
        action()


def serves() -> bool:
    """Whether the server answers requests: its event loop runs. Otherwise it is starting, and nobody waits."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


#: Sessions take turns: they often wait for the same work.
_TURN = threading.Lock()


def beside(work: Callable[[], Any], then: Callable[[], Any]) -> None:
    """Call ``work`` in a thread, and ``then`` at the session's next tick, unless it has ended; without a session both at once."""
    if not in_session():
        work()
        then()
        return
    doc = pn.state.curdoc

    def take_turn() -> None:
        try:
            with _TURN:
                work()
        finally:
            session = doc.session_context
            if session is not None and not session.destroyed:
                doc.add_next_tick_callback(then)

    threading.Thread(target=take_turn, name="tilescope-beside", daemon=True).start()


#: Milliseconds in which the browser paints what was sent before.
_PAINTED = 250


class AfterPaint:
    """An action deferred until the browser has painted, so as not to delay that. Without a session it runs at once."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._waiting: Any = None

    def due(self) -> None:
        """Schedule the action. A second call before it has run postpones it."""
        if not in_session():
            self._action()
            return
        if self._waiting is not None:
            pn.state.curdoc.remove_timeout_callback(self._waiting)
        self._waiting = pn.state.curdoc.add_timeout_callback(self._late, _PAINTED)

    def now(self) -> None:
        """Run the action now if it is scheduled."""
        if self._waiting is not None:
            pn.state.curdoc.remove_timeout_callback(self._waiting)
            self._late()

    def _late(self) -> None:
        self._waiting = None
        self._action()


def once_loaded(action: Callable[[], Any]) -> None:
    """Call ``action`` when the browser has loaded the page; at once if it has, or without a session."""
    if pn.state.curdoc is None or pn.state.loaded:
        action()
    else:
        pn.state.onload(action)


#: Seconds before a page's first step, between two, at most between two while the server is busy, and by which a step is late then.
_FIRST, _USUAL, _LONGEST, _LATE = 1.0, 0.1, 10.0, 0.1


class IdleWork:
    """Calls ``step`` at the session's ticks until it returns False, with pauses between; without a session never.

    Pauses grow while the server is busy, and while no browser is connected. Where there is ``drawn``, a step follows only once the
    browser has drawn the result of the last one (``drawn`` calls its argument then), as a click would wait behind it.
    """

    def __init__(self, step: Callable[[], bool], drawn: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._step, self._drawn, self._doc = step, drawn, pn.state.curdoc
        self._pause, self._due = _FIRST, 0.0

    def start(self) -> None:
        """Begin, unless it has begun."""
        if self._doc is not None and self._doc.session_context is not None and not self._due:
            self._wait()

    def _wait(self) -> None:
        self._due = time.monotonic() + self._pause
        self._doc.add_timeout_callback(self._turn, int(1000 * self._pause))

    def _looked_at(self) -> bool:
        session = getattr(self._doc.session_context, "session", None)
        return session is None or bool(session.connection_count)

    def _turn(self) -> None:
        busy = time.monotonic() - self._due > _LATE or not self._looked_at()
        self._pause = min(2 * self._pause, _LONGEST) if busy else _USUAL
        if busy:
            self._wait()
        elif not self._step():
            self._due = 0.0
        elif self._drawn:
            self._drawn(self._wait)
        else:
            self._wait()
