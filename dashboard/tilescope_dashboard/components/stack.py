"""Things of which one is seen at a time, and which come back as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import panel as pn
import param

from tilescope_dashboard.components.script import ScriptComponent

#: Out of sight, but laid out as wide as it will be seen: what is drawn there need not be drawn again. Once that is done it is
#: left alone until it is seen, whatever else is laid out.
_AWAY = """:host(.away) { display: block; position: absolute; inset-inline: 0; top: 0; height: 0; overflow: hidden;
  visibility: hidden; }
:host(.away.settled) { content-visibility: hidden; }"""


class Shown(ScriptComponent):
    """Name of the place that is seen. Its script is ``stack.js``."""

    shown = param.String(doc="The place's name.")
    asked = param.Integer(doc="How often the browser was asked whether it has drawn all it was sent.")
    drawn = param.Integer(doc="The last of those questions after which it had.")

    _esm = Path(__file__).with_suffix(".js")


class Stack(pn.viewable.Viewer):
    """A place for each of ``names``, of which one is seen.

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
        """Put it in the place called ``name``, if nothing is there yet."""
        if not len(self._places[name]):
            self._places[name].append(thing)

    def drawn(self, then: Callable[[], None]) -> None:
        """Call ``then`` once the browser has drawn what it has been sent and has nothing else to do."""
        self._shown.asked += 1
        number = self._shown.asked

        def told(event: param.parameterized.Event) -> None:
            if event.new >= number:
                self._shown.param.unwatch(watcher)
                then()

        watcher = self._shown.param.watch(told, "drawn")

    def holds(self, name: str) -> bool:
        """Whether something was put in the place called ``name``."""
        return len(self._places[name]) > 0

    def show(self, name: str) -> None:
        """Let the place called ``name`` be seen."""
        if not self._shown.shown:
            for other, place in self._places.items():
                place.css_classes = [f"place-{other}", *(["away"] if other != name else [])]
        self._shown.shown = name

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
