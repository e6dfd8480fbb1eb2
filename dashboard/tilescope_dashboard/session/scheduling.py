"""When something is done: in a turn of the session's own, in many, or once its page is there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import panel as pn


def in_turn(action: Callable[[], Any]) -> None:
    """Do it in a turn of this session's own: what is set within a browser's message does not reach the browser."""
    doc = pn.state.curdoc
    if doc is None or doc.session_context is None:
        action()
    else:
        doc.add_next_tick_callback(action)


#: Between two steps of what takes many, in milliseconds: others are answered meanwhile. The longer one where nobody waits
#: for what comes of them.
_BREATH, _LONG_BREATH = 5, 250
#: Sessions in which such steps are being taken.
_STEPPING: weakref.WeakSet[Any] = weakref.WeakSet()


def stepping() -> bool:
    """Whether any session that is still there is at something that takes many steps."""
    contexts = [doc.session_context for doc in _STEPPING]
    return any(context is not None and not context.destroyed for context in contexts)


def in_turns(step: Callable[[], bool], urgent: Callable[[], bool]) -> None:
    """Take the step again and again, each in a turn of its own, until it returns False; at once where there is no browser.

    ``urgent`` is asked before each whether somebody waits for the last.
    """
    doc = pn.state.curdoc
    if doc is None or doc.session_context is None:
        while step():
            pass
        return

    def turn() -> None:
        if step():
            later()
        else:
            _STEPPING.discard(doc)

    def later() -> None:
        doc.add_timeout_callback(turn, _BREATH if urgent() else _LONG_BREATH)

    _STEPPING.add(doc)
    later()


#: Until the browser has painted what was sent before, in milliseconds.
_PAINTED = 250


class Behind:
    """An action that waits until the browser has painted what is looked at: what is done behind it would hold that up.

    Where there is no browser it does not wait.
    """

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action, self._due = action, False

    def due(self) -> None:
        """Do it later; asked for again meanwhile, it is done once."""
        doc = pn.state.curdoc
        if doc is None or doc.session_context is None:
            self._action()
        elif not self._due:
            self._due = True
            doc.add_timeout_callback(self.now, _PAINTED)

    def now(self) -> None:
        """Do it, if it is due."""
        if self._due:
            self._due = False
            self._action()


def once_loaded(action: Callable[[], Any]) -> None:
    """Do it when the browser has the page; at once where there is no page that is still to come."""
    if pn.state.curdoc is None or pn.state.loaded:
        action()
    else:
        pn.state.onload(action)
