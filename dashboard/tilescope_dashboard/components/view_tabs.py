"""Row of groups of views, and a row of the open group's views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import panel_material_ui as pmui
import param

from tilescope_dashboard.components import layout

#: No scroll buttons: on a phone the row scrolls sideways, and fades out where it goes on.
_FADES = {"maskImage": "linear-gradient(to left, transparent, #000 32px)", "paddingRight": "32px"}
_SCROLLS = {"@media (max-width: 640px)": _FADES}
#: On a phone the tabs have a line of their own.
_ROOM = ":host { min-width: 0; flex: 1 1 700px; } @media (max-width: 640px) { :host { flex: 1 0 100%; } }"
_TAB = {
    "fontSize": 14, "padding": "8px 11px", "minHeight": 38, "minWidth": 0, "color": "text.primary", "opacity": 0.78,
}  # fmt: skip
_GROUPS = {
    **_SCROLLS, "minHeight": 38,
    "& .MuiTab-root": _TAB, "& .MuiTab-root.Mui-selected": {"color": "text.primary", "opacity": 1},
}  # fmt: skip
_APART = {"& .MuiTab-root:first-of-type": {"marginRight": "14px", "borderRight": 1, "borderColor": "divider"}}
_VIEWS = {
    **_SCROLLS, "minHeight": 28, "padding": "2px 8px", "& .MuiTabs-indicator": {"display": "none"},
    "& .MuiTab-root": {**_TAB, "fontSize": 13, "padding": "4px 12px", "minHeight": 28, "borderRadius": 16, "marginRight": "4px"},
    "& .MuiTab-root.Mui-selected": {"color": "text.primary", "opacity": 1, "backgroundColor": "action.selected"},
}  # fmt: skip


class ViewTabs(layout.Part):
    """``view`` is the open view's name, bound both ways. A group opens its last open view.

    ``groups`` maps a title to the group's views: pairs of a name and a title. The first group stands apart if ``apart``.
    """

    view = param.String()

    def __init__(
        self, groups: Mapping[str, Sequence[tuple[str, str]]], *, apart: bool = False, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self._groups = [dict(views) for views in groups.values()]
        self._order = [name for views in self._groups for name in views]
        self._last = [next(iter(views)) for views in self._groups]
        look: dict[str, Any] = {"variant": "scrollable", "scroll_buttons": "false", "sizing_mode": "stretch_width"}
        self._top = pmui.TabMenu(items=list(groups), active=0, sx=_GROUPS | _APART if apart else _GROUPS, **look)
        self._below = pmui.TabMenu(items=[], sx=_VIEWS, **look)
        self._showing = False
        self._top.param.watch(lambda event: self._open(self._last, event.new), "active")
        self._below.param.watch(lambda event: self._open([*self._groups[self._here]], event.new), "active")
        self.layout = layout.column(self._top, self._below, stylesheets=[_ROOM])
        if self.view:
            self._show()

    @property
    def _here(self) -> int:
        return next((at for at, views in enumerate(self._groups) if self.view in views), 0)

    def _open(self, names: Sequence[str], at: int | None) -> None:
        if at is not None and not self._showing:
            self.view = names[at]

    @param.depends("view", watch=True)
    def _show(self) -> None:
        here = self._here
        views = self._groups[here]
        self._last[here], self._showing = self.view, True
        # ``active`` is bound by the items. Bokeh lays the page out anew when a part's ``visible`` changes, not when its styles do.
        hidden = {"display": None if len(views) > 1 else "none"}
        self._below.param.update(items=list(views.values()), active=0, styles=hidden)
        self._below.active = [*views].index(self.view)
        self._top.active = here
        self._showing = False

    @property
    def title(self) -> str:
        """Title of the open view's tab: its group's, where the group has no other view."""
        views = self._groups[self._here]
        return views[self.view] if len(views) > 1 else self._top.items[self._here]

    def beside(self, step: int) -> str:
        """The view so many places after the open one, over all groups and round."""
        return self._order[(self._order.index(self.view) + step) % len(self._order)]

    def of_group(self, number: int) -> str:
        """The last open view of the group with this number, counted from 1; empty if there is none."""
        return self._last[number - 1] if 0 < number <= len(self._last) else ""
