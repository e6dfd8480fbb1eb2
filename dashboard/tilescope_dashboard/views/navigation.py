"""The row of views, and the one that is being looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param

from tilescope_dashboard.keyboard import Keyboard
from tilescope_dashboard.state import State
from tilescope_dashboard.views.base import View


class Navigation(pn.viewable.Viewer):
    """Tabs over the state's view. A view is made when it is first looked at, and kept."""

    state = param.ClassSelector(class_=State)

    def __init__(self, state: State, views: Mapping[str, type[View]], **settings: Any) -> None:
        super().__init__(state=state, **settings)
        self._views, self._made, self._shown = views, {}, {}
        # The tabs hold nothing themselves: with Bokeh inside, dynamic tabs throw and static ones build every view.
        self._tabs = pmui.Tabs(
            *((view.title, pn.Spacer(height=0)) for view in views.values()),
            active=self._place(),
            sizing_mode="stretch_width",
        )
        self._main = pn.Column(sizing_mode="stretch_width", margin=0)
        self._tabs.param.watch(self._clicked, "active")
        state.param.watch(self._switch, "view")
        self._switch()
        top = pn.Row(
            self._tabs, Keyboard(self._clear, align="center", margin=(0, 8)), sizing_mode="stretch_width", margin=0
        )
        self._layout = pn.Column(top, self._main, sizing_mode="stretch_width", margin=0)

    def _place(self) -> int:
        names = list(self._views)
        return names.index(self.state.view) if self.state.view in names else 0

    def _clicked(self, event: param.parameterized.Event) -> None:
        self.state.view = list(self._views)[event.new]

    def _switch(self, *_: param.parameterized.Event) -> None:
        place = self._place()
        name = list(self._views)[place]
        if name not in self._made:
            self._made[name] = self._views[name](self.state)
            self._shown[name] = pn.Column(self._made[name], sizing_mode="stretch_width", margin=0)
        self._tabs.active = place
        self.state.view = name
        self._made[name].refresh()
        # Hidden, not taken out: the browser keeps what it has drawn, and a view that comes back is there at once.
        for other, column in self._shown.items():
            column.visible = other == name
        if self._shown[name] not in self._main.objects:
            self._main.append(self._shown[name])

    def _clear(self) -> None:
        self._made[list(self._views)[self._place()]].clear()

    def __panel__(self) -> pn.viewable.Viewable:
        return self._layout
