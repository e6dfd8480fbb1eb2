"""Notice of data that the open run lacks for a view: the run that has it, or how to make one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from html import escape
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from tilescope.runs import store

from tilescope_dashboard.components import html_text
from tilescope_dashboard.data.recordings import Found, having, rows_of
from tilescope_dashboard.data.run_cache import open_cached
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import State

__all__ = ["Missing", "having", "named", "rows_of"]


class Missing(pn.viewable.Viewer):
    """A line that says where to find it, with a button that opens that run; empty where nothing is missing."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._text = html_text.pane()
        self._other: store.Summary | None = None
        # Put in and taken out: a change of ``visible`` alone may get lost.
        self._layout = pn.Column(sizing_mode="stretch_width", margin=0)

    def say(self, markup: str, other: store.Summary | None = None) -> None:
        """Show ``markup``, which must already be escaped, with a button for the ``other`` run; empty, it is nothing."""
        self._text.object, self._other = markup, other
        self._layout.objects = [self._text, *([self._button] if other else [])] if markup else []

    def seek(
        self,
        found: Found,
        about: Callable[[store.LoadedRun, str], str] | None = None,
        otherwise: str = "",
        what: str = "this",
    ) -> None:
        """Offer the run in which ``found`` finds ``what`` the open one lacks of the state's kernel.

        ``about`` describes that run further, by default by its collectors. ``otherwise`` is shown where there is no such run,
        unless the open one was made of another tool's file.
        """
        kernel = self.state.kernel
        other = having([run for run in self.state.runs if run.id != self.state.run], kernel, found)
        if other is None:
            self.say(_of_file(self.state.loaded) or otherwise)
        else:
            apart = about(open_cached(other.path), kernel) if about else ", ".join(other.sources)
            self.say(f"<p>Another run has {what}: {named(other, apart)}.</p>", other)

    @functools.cached_property
    def _button(self) -> pmui.Button:
        button = pmui.Button(label="Open that run", variant="outlined", size="small", width=140)
        button.on_click(lambda _: next_tick(self._open))
        return button

    def _open(self) -> None:
        if self._other is not None:
            self.state.param.update(run=self._other.id, kernel=self.state.kernel)

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout


def _of_file(loaded: store.LoadedRun | None) -> str:
    """What is said in a run that was made of another tool's file: its kernels are declared nowhere, so no command makes more of it."""
    tool = str(loaded.run.settings.get("tool", "")) if loaded else ""
    return f"<p>This run is a file of {escape(tool)}, which does not have it.</p>" if tool else ""


def named(run: store.Summary, *about: str) -> str:
    """The run as an offer names it, with its GPU and what else it is ``about``; escaped."""
    kind = "recorded" if run.recorded else "made"
    return (
        f"<b>{escape(run.title or run.id)}</b>, {kind} {escape(run.started[:10])} "
        f'<span class="quiet">({escape("; ".join([run.device, *about]))})</span>'
    )
