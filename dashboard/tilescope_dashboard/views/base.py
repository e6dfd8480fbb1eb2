"""What the views share: they are built once, and brought up to date when they are looked at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import panel as pn
import param

from tilescope_dashboard import words
from tilescope_dashboard.files import stem
from tilescope_dashboard.state import State
from tilescope_dashboard.tables import Table, downloads

LOG = logging.getLogger(__name__)


class View(pn.viewable.Viewer):
    """A view of the state. A subclass has ``name_in_address``, ``title``, ``build()`` and ``update()``.

    ``build`` makes the layout once, with a headline ``_head``; ``update`` fills it from the state. An error in ``update``
    is shown in place. The headline of a ``live`` view changes all the time, too often to be read out for its figures.
    """

    state = param.ClassSelector(class_=State)

    name_in_address = ""
    title = ""
    live = False

    _head: pn.pane.HTML

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self.fresh = False
        self._trouble = words.pane(visible=False)
        self._layout = pn.Column(self._trouble, *self.build(), sizing_mode="stretch_width", margin=0)
        for place in self._layout.select(Chart):
            place.about = self._about
        state.param.watch(self._changed, ["loaded", "kernel", "theme", "narrow", "view"])

    def build(self) -> list[Any]:
        """The view's parts, from top to bottom."""
        raise TypeError(f"{type(self).__name__} has no build")

    def update(self) -> None:
        """Bring every part up to date with the state."""
        raise TypeError(f"{type(self).__name__} has no update")

    def saved(self, shown: Table, what: str = "", origin: Callable[[], Sequence[str]] | None = None) -> pn.Column:
        """The table and, below it, links that save it.

        The files are called after the view, ``what`` the table holds, and where its numbers come from: the state's
        kernel, run and GPU, unless ``origin`` says otherwise.
        """

        def name() -> str:
            return stem(self.name_in_address, what, *(origin() if origin else self.state.origin))

        return pn.Column(shown, downloads(shown, name), sizing_mode="stretch_width", margin=0)

    def _about(self) -> str:
        """What a figure of this view shows, for who cannot see it."""
        return ". ".join(filter(None, [self.title, "" if self.live else words.headline(self._head.object)]))

    def clear(self) -> None:
        """Choose no row in any table."""
        for shown in self._layout.select(Table):
            shown.selection = []

    def refresh(self) -> None:
        """Update if something changed since the view was last looked at."""
        if self.fresh:
            return
        self.fresh = True
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
            self.fresh = False
        if self.state.view == self.name_in_address:
            self.refresh()

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


class Chart(pn.pane.Bokeh):
    """A place for a figure, which it gives a text alternative: its own title, and ``about``.

    The text is put on before the browser gets the figure: a change of one that is being replaced reaches it too late.
    """

    def __init__(self, **settings: Any) -> None:
        self.about: Callable[[], str] = str
        super().__init__(**settings)

    @param.depends("object", watch=True)
    def _describe(self) -> None:
        if self.object is not None:
            said = filter(None, [getattr(self.object.title, "text", ""), self.about()])
            self.object.html_attributes = {"role": "figure", "aria-label": ". ".join(said)}


def chart() -> Chart:
    """A place for a figure. A view writes its headline first: it is what the figure's text alternative says."""
    return Chart(sizing_mode="stretch_width", margin=(4, 8))


def side_by_side(charts: Iterable[Chart], width: int, gap: str = "8px") -> pn.Column:
    """The figures in rows, each at least ``width`` pixels wide; as many in a row as there is room for."""
    # A column that flows in rows: a Row would be as wide as all of them, and a figure in a FlexBox that is out of sight is
    # never drawn.
    return pn.Column(
        *(pn.Column(place, min_width=width, styles={"flex": f"1 1 {width}px"}, margin=0) for place in charts),
        sizing_mode="stretch_width", margin=0, styles={"flex-flow": "row wrap", "gap": gap},
    )  # fmt: skip


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
