"""When something is done: in a turn of the session's own, or once its page is there."""

from __future__ import annotations

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


def once_loaded(action: Callable[[], Any]) -> None:
    """Do it when the browser has the page; at once where there is no page that is still to come."""
    if pn.state.curdoc is None or pn.state.loaded:
        action()
    else:
        pn.state.onload(action)
