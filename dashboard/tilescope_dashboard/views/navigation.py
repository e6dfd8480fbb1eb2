"""The tabs of views, and the open view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

import panel as pn
import panel_material_ui as pmui

from tilescope_dashboard.browser.page import PageScript
from tilescope_dashboard.components import layout
from tilescope_dashboard.data import url_state
from tilescope_dashboard.session.jobs import shared
from tilescope_dashboard.session.scheduling import IdleWork, next_tick, once_loaded
from tilescope_dashboard.session.state import GPU, IN_ADDRESS, PANELS, State
from tilescope_dashboard.views.base import View

#: A view that is not open is hidden from eyes and ears. One that is put into the page before it is looked at is first laid out at its
#: full width, so that its figures need not be drawn again. Bokeh lays a place out anew when its classes change, not when its styles do.
_AWAY = {"position": "absolute", "inset": "0 0 auto", "height": "0", "overflow": "hidden", "visibility": "hidden"}
_LEFT, _PUT = _AWAY | {"content-visibility": "hidden"}, _AWAY | {"animation": "rest 1ms 2s both"}
_SHOWN = dict.fromkeys(_LEFT | _PUT)
_RESTS = "@keyframes rest { to { content-visibility: hidden; } }"


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
#: The page's theme calls the row above it "Views".
_NAMED = {"components": {"MuiTabs": {"defaultProps": {"aria-label": "Views of the group"}}}}
#: On a phone what stands beside the tabs comes below them.
_WRAPS = "@media (max-width: 640px) { :host { flex-flow: row wrap; } }"


class Navigation(layout.Part):
    """Tabs over the open view: a row of groups, and one of the open group's views, of which a group opens the last. A view is made when
    first opened, or before that in idle time, and kept.

    Parts ``beside`` the tabs and ``below`` them are of every view. The group with the title ``apart`` has the views of all kernels. ``former`` maps former names of views to the state
    that each means today.
    """

    def __init__(
        self, state: State, groups: Mapping[str, Sequence[type[View]]], apart: str = "",
        former: Mapping[str, Mapping[str, str]] | None = None, *, beside: Sequence[Any] = (), below: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self.state, self._former = state, former or {}
        self._views = {view.name_in_address: view for group in groups.values() for view in group}
        self._groups = [[view.name_in_address for view in group] for group in groups.values()]
        #: View by name or by group title, both case-insensitive. A title means the group's first view.
        self._called = {title.casefold(): group[0] for title, group in zip(groups, self._groups, strict=True)}
        self._called |= {name.casefold(): name for name in self._views}
        # Views of one kernel are likely to be opened next, from each other and from Home.
        self._near = [group for group, title in zip(self._groups, groups, strict=True) if title != apart]
        self.made: dict[str, View] = {}
        # Back does not undo a change of theme.
        self._begun = {name: getattr(state, name) for name in IN_ADDRESS if name != "theme"}
        look: dict[str, Any] = {"variant": "scrollable", "scroll_buttons": "false", "sizing_mode": "stretch_width"}
        self._top = pmui.TabMenu(items=list(groups), active=0, sx=_GROUPS | _APART if apart else _GROUPS, **look)
        self._below = pmui.TabMenu(items=[], sx=_VIEWS, theme_config=_NAMED, **look)
        #: The view that is seen, the one whose tab is marked, the number of its group, and the last open view of each group.
        self._shown, self._tab, self._here, self._last = "", "", 0, [group[0] for group in self._groups]
        self._marking = False
        self._top.param.watch(lambda event: self._press(self._last, event.new), "active")
        self._below.param.watch(lambda event: self._press(self._groups[self._here], event.new), "active")
        known = {name: getattr(state, name) for name in ("panel", "theme", "narrow")}
        self.page = PageScript(self._asks, align="start", margin=(4, 8), **known)
        self.page.param.watch(lambda event: next_tick(lambda: setattr(state, "narrow", event.new)), "narrow")
        self.places: dict[str, layout.Column] = {}
        self._tabs = layout.column(self._top, stylesheets=[_ROOM])
        self._every = layout.column(styles={"position": "relative"}, stylesheets=[_RESTS])
        state.param.watch(self._switch, "view")
        state.param.watch(lambda _: next_tick(self._tell_page), ["panel", "theme"])
        self._switch()
        spare = IdleWork(self.prepare, self.page.once_drawn)
        state.param.watch(lambda *_: spare.start(), ["loaded", "kernel", "theme", "narrow", "case", "view"])
        pn.state.onload(spare.start)
        line = {"border-bottom": "1px solid var(--mui-palette-divider)"}
        top = pn.Row(
            self._tabs, *beside, self.page, sizing_mode="stretch_width", margin=0, styles=line, stylesheets=[_WRAPS]
        )
        self.layout = layout.column(top, *below, self._every)

    def _switch(self, *_: Any) -> None:
        asked = self.state.view
        if asked in self._former:
            meant = self._former[asked]
            self.state.param.update(**meant)
            # The browser sends the former name again as the page opens, so write the values into the address again.
            self.state.param.trigger(*(name for name in meant if name != "view"))
            asked = self.state.view
        name = self._called.get(asked.casefold(), self._near[0][0])
        if asked and asked.casefold() not in self._called:
            said = f"not a view: {url_state.shown(asked)}, so this is {self._views[name].title}"
            self.state.ignore(said)
        self.state.view = name
        if name != self._tab:
            self._mark_tab(name)
        self._furnish(name)
        if name != self._shown:
            if self._shown:
                self.places[self._shown].styles = _LEFT
            self.places[name].styles, self._shown = _SHOWN, name

    def _press(self, names: Sequence[str], at: int | None) -> None:
        """Mark the tab, and open its view at the next tick: the last one's, if several were pressed quickly."""
        if at is not None and not self._marking:
            self._mark_tab(names[at])
            next_tick(lambda: setattr(self.state, "view", self._tab))

    def _mark_tab(self, name: str) -> None:
        self._tab, self._marking = name, True
        self._here = here = next(at for at, group in enumerate(self._groups) if name in group)
        self._last[here], titles = name, [self._views[one].title for one in self._groups[here]]
        # ``active`` is bound by the items. Bokeh lays the page out anew when a part's ``visible`` changes, not when its styles do.
        hidden = {"display": None if len(titles) > 1 else "none"}
        self._below.param.update(items=titles, active=0, styles=hidden)
        self._below.active, self._top.active = self._groups[here].index(name), here
        if len(titles) > 1:
            self._add_row()
        self._marking = False

    def _furnish(self, name: str) -> None:
        """Make or update the view. Its tables follow once the browser has drawn its figures, for who still looks at them."""
        self._made(name).refresh()
        self._put(name)
        if self.made[name].waits:
            once_loaded(lambda: self.page.once_drawn(lambda: self.state.view == name and self.made[name].complete()))

    def _made(self, name: str) -> View:
        if name not in self.made:
            self.made[name] = self._views[name](self.state)
        return self.made[name]

    def _put(self, name: str) -> None:
        if name not in self.places:
            self._lay(self._views if self.places else [name])
        if not self.sent(name):
            # The view's parts themselves: a place is a column as well.
            self.places[name].param.update(objects=list(self.made[name].layout), styles=_PUT)

    def _lay(self, names: Iterable[str]) -> None:
        """Make the places of these views. The first has its own alone; with the second come all others, and the row of a group's views:
        whenever a row of models is added to, the theme is put on all of them again, and every table among them lays out the page anew.
        """
        self.places |= {
            name: layout.column(css_classes=[f"place-{name}"], styles=_AWAY)
            for name in names
            if name not in self.places
        }
        self._every.objects = list(self.places.values())
        if len(self.places) > 1:
            self._add_row()

    def _add_row(self) -> None:
        if self._below not in self._tabs:
            self._tabs.append(self._below)

    def sent(self, name: str) -> bool:
        """Whether the view is on the page."""
        return name in self.places and bool(self.places[name].objects)

    def _likely(self) -> Iterator[str]:
        """Views that may be opened next: the others of this group, and the first of each other group; but no live one, which costs time
        while it exists.
        """
        here = next(group for group in self._groups if self.state.view in group)
        first = here if here in self._near else [*self._near[0], *here]
        every = dict.fromkeys([*first, *(group[0] for group in self._near)])
        return (name for name in every if not self._views[name].live)

    def make(self) -> bool:
        """Make a likely view or its figures, without sending it; False if none is left, or a job needs the processor."""
        if any(job.active for job in shared().jobs):
            return False
        for name in self._likely():
            if name not in self.made:
                self._made(name)
            elif not self.made[name].fresh:
                self.made[name].refresh()
            else:
                continue
            return True
        return False

    def prepare(self) -> bool:
        """Do one step towards a likely view; False if none is left, or a job needs the processor."""
        if self.make():
            return True
        if any(job.active for job in shared().jobs):
            return False
        # Its tables follow when it is opened: they are most of a view's elements.
        name = next((name for name in self._likely() if not self.sent(name)), None)
        if name is None:
            return False
        self._put(name)
        return True

    def _tell_page(self) -> None:
        self.page.param.update(panel=self.state.panel, theme=self.state.theme)

    def _asks(self, asked: str, value: Any) -> None:
        """Do what a key asks for, or what the browser went back to: what its address does not name is as the page was opened."""
        state = self.state
        if asked == "went":
            named = parse_qs(str(value).removeprefix("?"), keep_blank_values=True)
            state.param.update(**{name: before for name, before in self._begun.items() if name not in named})
        if asked == "clear" and state.panel and state.panel != GPU:
            next_tick(lambda: setattr(state, "panel", ""))
        elif asked == "clear":
            self.made[state.view].clear()
        elif asked == "panel" and value in PANELS:
            next_tick(lambda: setattr(state, "panel", "" if state.panel == value else value))
        elif asked in ("number", "step") and isinstance(value, int):
            next_tick(lambda: self._turn(asked, value))

    def _turn(self, asked: str, value: int) -> None:
        """Turn to a view from the one that the keys before lead to, which may not have been open when this one was pressed."""
        if asked == "step":
            every = [*self._views]
            self.state.view = every[(every.index(self.state.view) + value) % len(every)]
        elif 0 < value <= len(self._last):
            self.state.view = self._last[value - 1]
        next_tick(self._focus)

    def _focus(self) -> None:
        """Put the focus on the open view's tab; a group of one view has the group's title."""
        several = len(self._groups[self._here]) > 1
        self.page.focus_tab(self._views[self._tab].title if several else self._top.items[self._here])
