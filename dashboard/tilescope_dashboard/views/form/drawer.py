"""The drawer beside the views: the profile form, and its placeholder."""

from __future__ import annotations

from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.session.scheduling import next_tick
from tilescope_dashboard.session.state import PROFILE, State


class Drawer(layout.Part):
    """What the page has in its drawer, bound to the state both ways. ``put`` gives it the form, without which it is not ``filled``."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state, self.filled, self.layout = state, False, layout.column(margin=(8, 0))

    def _show(self, content: Any) -> None:
        close = pmui.Button(label="Close", variant="text", size="small", width=72, margin=(2, 4), align="center")
        close.on_click(lambda _: next_tick(lambda: setattr(self.state, "panel", "")))
        title = html_text.pane(html_text.heading("Profile"))
        self.layout.objects = [pn.Row(title, close, sizing_mode="stretch_width", margin=0), content]

    def follow(self, page: pmui.Page) -> None:
        """Open or close the page's drawer as the state says."""

        def put() -> None:
            if self.state.panel == PROFILE and not self.layout.objects:
                self._show(html_text.pane(html_text.notice("info", "Finding out what can run here…")))
            page.contextbar_open = self.state.panel == PROFILE
            # Panel makes some texts visible by themselves, even in a closed drawer.
            self.layout.styles = {"content-visibility": "visible" if page.contextbar_open else "hidden"}

        def told(event: param.parameterized.Event) -> None:
            if event.new != (self.state.panel == PROFILE):
                next_tick(lambda: setattr(self.state, "panel", PROFILE if event.new else ""))

        put()
        self.state.param.watch(lambda _: next_tick(put), "panel")
        page.param.watch(told, "contextbar_open")

    def put(self, form: pn.viewable.Viewer) -> None:
        self.filled = True
        self._show(form)
