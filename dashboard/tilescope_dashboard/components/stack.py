"""A stack of objects of which one is visible, and the others stay in the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import panel as pn
import param

from tilescope_dashboard.components.script import ScriptComponent

#: Hidden, but laid out at its full width, so that figures drawn there need not be drawn again. Once drawn it is left out of layout
#: until it is shown.
_AWAY = """:host(.away) { display: block; position: absolute; inset-inline: 0; top: 0; height: 0; overflow: hidden;
  visibility: hidden; }
:host(.away.settled) { content-visibility: hidden; }"""


class Shown(ScriptComponent):
    """Name of the visible place. Its script is ``stack.js``."""

    shown = param.String(doc="The place's name.")
    asked = param.Integer(doc="How often the browser was asked whether it has drawn all it was sent.")
    drawn = param.Integer(doc="The last of those questions after which it had.")


class Stack(pn.viewable.Viewer):
    """A place for each of ``names``, one of them visible.

    The places are there from the start: whenever a row of models is added to, the theme is put on all of them again, and every
    table among them lays out the page anew.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._shown = Shown(height=0, margin=0)
        self._places = {name: pn.Column(stylesheets=[_AWAY], sizing_mode="stretch_width", margin=0) for name in names}
        self._layout = pn.Column(
            self._shown, *self._places.values(), sizing_mode="stretch_width", margin=0, styles={"position": "relative"}
        )

    def put(self, name: str, thing: pn.viewable.Viewer) -> None:
        """Put an object into the place ``name``, if it is empty."""
        if not len(self._places[name]):
            self._places[name].append(thing)

    def drawn(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the browser has drawn everything sent so far and is idle."""
        self._shown.asked += 1
        number = self._shown.asked

        def told(event: param.parameterized.Event) -> None:
            if event.new >= number:
                self._shown.param.unwatch(watcher)
                then()

        watcher = self._shown.param.watch(told, "drawn")

    def holds(self, name: str) -> bool:
        """Whether the place ``name`` is filled."""
        return len(self._places[name]) > 0

    def show(self, name: str) -> None:
        """Show the place ``name``."""
        if not self._shown.shown:
            for other, place in self._places.items():
                place.css_classes = [f"place-{other}", *(["away"] if other != name else [])]
        self._shown.shown = name

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
