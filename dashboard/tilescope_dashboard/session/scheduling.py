"""Run work of a session later: at its next tick, step by step, after the browser has painted, or once its page is there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import panel as pn
from bokeh.events import DocumentEvent


class Pulled(DocumentEvent):
    """The browser has been sent the page, and will draw it now (``panel_patches.pulled_page``)."""

    event_name = "pulled"


def in_session() -> bool:
    """Whether a browser shows what is made here, now or soon."""
    return pn.state.curdoc is not None and pn.state.curdoc.session_context is not None


def next_tick(action: Callable[[], Any]) -> None:
    """Call ``action`` at the session's next tick; at once without a session.

    What is set while a browser's message is handled does not reach the browser.
    """
    if in_session():
        pn.state.curdoc.add_next_tick_callback(action)
    else:
        action()


#: Between two steps of what takes many, in milliseconds: others are answered meanwhile. The longer one where nobody waits
#: for what comes of them.
_BREATH, _LONG_BREATH = 5, 250
#: Sessions in which such steps are being taken.
_STEPPING: weakref.WeakSet[Any] = weakref.WeakSet()


def stepping() -> bool:
    """Whether a session that is still there works ``step_by_step``."""
    contexts = [doc.session_context for doc in _STEPPING]
    return any(context is not None and not context.destroyed for context in contexts)


def step_by_step(step: Callable[[], bool], urgent: Callable[[], bool]) -> None:
    """Call ``step`` until it returns False, each time in a tick of its own; without a session in one go.

    ``urgent`` says, before each step, whether somebody waits for the result: pauses are shorter then.
    """
    if not in_session():
        while step():
            pass
        return
    doc = pn.state.curdoc

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


class AfterPaint:
    """An action that is put off until the browser has painted, which it would hold up. Without a session it is not put off."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._waiting: Any = None

    def due(self) -> None:
        """Do it later, once: who asks for more before it is done waits for what is painted then, and it for that."""
        if not in_session():
            self._action()
            return
        if self._waiting is not None:
            pn.state.curdoc.remove_timeout_callback(self._waiting)
        self._waiting = pn.state.curdoc.add_timeout_callback(self._late, _PAINTED)

    def now(self) -> None:
        """Do it, if it is due."""
        if self._waiting is not None:
            pn.state.curdoc.remove_timeout_callback(self._waiting)
            self._late()

    def _late(self) -> None:
        self._waiting = None
        self._action()


def once_loaded(action: Callable[[], Any]) -> None:
    """Call ``action`` when the browser has the page; at once where it has it already, or there is none."""
    if pn.state.curdoc is None or pn.state.loaded:
        action()
    else:
        pn.state.onload(action)
