"""Base of the views: built once, and brought up to date when looked at."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import panel as pn
import param

from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import Chart
from tilescope_dashboard.components.tables import Table, downloads
from tilescope_dashboard.data.exports import stem
from tilescope_dashboard.session.scheduling import step_by_step
from tilescope_dashboard.session.state import State

LOG = logging.getLogger(__name__)
_ENDED = object()


class View(pn.viewable.Viewer):
    """A view of the state. A subclass has ``name_in_address``, ``title``, ``build()`` and ``update()``.

    ``build`` makes the layout once, with its title in ``_head``; ``update`` fills it from the state. An error in ``update``
    is shown in place. A view that shows one case shows the state's (``elsewhere``, ``choose``). The title of a ``live`` view changes all the time, too often to be read out for its figures.
    """

    state = param.ClassSelector(class_=State)

    name_in_address = ""
    title = ""
    live = False

    _head: pn.pane.HTML

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self.fresh, self._followed = False, ""
        self._trouble = html_text.pane(visible=False)
        self._layout = pn.Column(self._trouble, *self.build(), sizing_mode="stretch_width", margin=0)
        for place in self._layout.select(Chart):
            place.about = self._about
        state.param.watch(self._changed, ["loaded", "kernel", "theme", "narrow", "view", "case"])

    def build(self) -> list[Any]:
        """The view's parts, from top to bottom."""
        raise TypeError(f"{type(self).__name__} has no build")

    def update(self) -> None:
        """Bring every part up to date with the state."""
        raise TypeError(f"{type(self).__name__} has no update")

    def elsewhere(self) -> bool:
        """Whether another case was chosen since this was last asked: then selectors go to it."""
        before, self._followed = self._followed, self.state.case
        return before != self.state.case

    def choose(self, draw: Callable[[], object], **parts: str) -> None:
        """Choose, for all views, the case with these fields of a ``KernelCase``, and ``draw`` unless that already did it."""
        before = self.state.case
        self.state.choose(**parts)
        if self.state.case == before or not self.fresh:
            draw()

    def saved(self, shown: Table, what: str = "", origin: Callable[[], Sequence[str]] | None = None) -> pn.Column:
        """The table and, below it, links that save it.

        The files are called after the view, ``what`` the table holds, and where its numbers come from: the state's
        kernel, run and GPU, unless ``origin`` says otherwise.
        """

        def name() -> str:
            return stem(self.name_in_address, what, *(origin() if origin else self.state.origin))

        return pn.Column(shown, downloads(shown, name), sizing_mode="stretch_width", margin=0)

    def _about(self) -> str:
        """Text alternative of this view's figures."""
        return ". ".join(filter(None, [self.title, "" if self.live else html_text.title_of(self._head.object)]))

    def clear(self) -> None:
        """Choose no row in any table."""
        for shown in self._layout.select(Table):
            shown.selection = []

    def refresh(self) -> None:
        """Update if something changed since the view was last looked at."""
        if self.fresh:
            return
        self.fresh = True
        self._attempt(self.update)

    def gradually(self, steps: Iterator[object]) -> None:
        """Take the steps in turns, for what would keep other sessions waiting; an error in one is shown and ends them."""
        step_by_step(
            lambda: self._attempt(lambda: next(steps, _ENDED)) is not _ENDED,
            urgent=lambda: self.state.view == self.name_in_address,
        )

    def _attempt(self, action: Callable[[], object]) -> object:
        """Return what ``action`` gives; an error in it is shown in place."""
        try:
            result = action()
            self._trouble.visible = False
        except Exception as error:
            LOG.exception("view %s", self.name_in_address)
            said = f"{type(error).__name__}: {error}"
            self._trouble.object = html_text.notice("error", "This view could not be drawn.", said)
            self._trouble.visible = True
            return _ENDED
        return result

    def _changed(self, *events: param.parameterized.Event) -> None:
        if any(event.name != "view" for event in events):
            self.fresh = False
        if self.state.view == self.name_in_address:
            self.refresh()

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
