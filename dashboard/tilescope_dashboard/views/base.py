"""What the views share: they are built once, and brought up to date when they are looked at."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import panel as pn
import param

from tilescope_dashboard import words
from tilescope_dashboard.state import State

LOG = logging.getLogger(__name__)


class View(pn.viewable.Viewer):
    """A view of the state. A subclass has ``name_in_address``, ``title``, ``build()`` and ``update()``.

    ``build`` makes the layout once; ``update`` fills it from the state. An error in ``update`` is shown in place.
    """

    state = param.ClassSelector(class_=State)

    name_in_address = ""
    title = ""

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._fresh = False
        self._trouble = words.pane(visible=False)
        self._layout = pn.Column(self._trouble, *self.build(), sizing_mode="stretch_width", margin=0)
        state.param.watch(self._changed, ["loaded", "kernel", "theme", "narrow", "view"])

    def build(self) -> list[Any]:
        """The view's parts, from top to bottom."""
        raise TypeError(f"{type(self).__name__} has no build")

    def update(self) -> None:
        """Bring every part up to date with the state."""
        raise TypeError(f"{type(self).__name__} has no update")

    def refresh(self) -> None:
        """Update if something changed since the view was last looked at."""
        if self._fresh:
            return
        self._fresh = True
        try:
            self.update()
            self._trouble.visible = False
        except Exception as error:
            LOG.exception("view %s", self.name_in_address)
            said = f"{type(error).__name__}: {error}"
            self._trouble.object = words.notice("error", "This view could not be drawn.", said)
            self._trouble.visible = True

    def _changed(self, *events: param.parameterized.Event) -> None:
        if any(event.name != "view" for event in events):
            self._fresh = False
        if self.state.view == self.name_in_address:
            self.refresh()

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


def chart() -> pn.pane.Bokeh:
    """A place for a figure."""
    return pn.pane.Bokeh(sizing_mode="stretch_width", margin=(4, 8))


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
