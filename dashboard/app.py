"""The Panel app: ``panel serve dashboard/app.py``. State, views and the page; everything else is in tilescope_dashboard."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping
from typing import Any

import panel as pn
import panel_material_ui as pmui
from tilescope_dashboard.components import html_text, layout
from tilescope_dashboard.data import catalog, this_machine
from tilescope_dashboard.figures.style import DARK, FONT, LIGHT, Theme
from tilescope_dashboard.panel_patches import page_lifetime
from tilescope_dashboard.serving import guard
from tilescope_dashboard.session.access import may_launch
from tilescope_dashboard.session.jobs import shared
from tilescope_dashboard.session.scheduling import IdleWork, next_tick, serves
from tilescope_dashboard.session.state import FIRST, HOME, IN_ADDRESS, PROFILE, State
from tilescope_dashboard.views import kernel_bar
from tilescope_dashboard.views.context import Context
from tilescope_dashboard.views.find import FindDialog
from tilescope_dashboard.views.form.drawer import Drawer
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.gpu import GpuDialog
from tilescope_dashboard.views.groups import APART, FORMER, GROUPS, TITLES
from tilescope_dashboard.views.jobs.job_panel import JobPanel
from tilescope_dashboard.views.navigation import Navigation
from tilescope_dashboard.views.run import RunDialog

LOG = logging.getLogger("tilescope")
#: The page says this while its connection is lost. The session is gone with it; a reload makes a new one, from the address.
LOST = (
    "The connection to the server is lost. The page keeps its content but no longer responds. If the server has ended, start it "
    "again (make serve or tilescope serve), then reload this page."
)
_SX = {
    # Material UI for Panel turns the colours of the bar's widgets around unless it finds these. The bar then has the page's colours.
    ".MuiAppBar-root": {"bgcolor": "primary.contrastText", "color": "primary.main"},
    "& .MuiAppBar-root.header": {"backgroundColor": "background.default", "color": "text.primary"},
    "& .header a, & .header .title": {"color": "inherit !important", "fontSize": "18px"},
    "& .MuiToolbar-root": {"minHeight": f"{kernel_bar.HEIGHT}px !important", "padding": "0 8px 0 12px", "margin": 0},
    # The bar has the drawer's button.
    "& .header .MuiIconButton-edgeEnd": {"display": "none"},
    # The page's own progress stands at 100 % whatever happens, and has no name: a screen reader would tell of it on each page.
    "& .MuiLinearProgress-root": {"display": "none"},
}


def page_theme(colours: Theme) -> dict[str, Any]:
    """The page in a figure's colours: a quiet header, so that the data is the loudest thing on it."""
    header = {"backgroundColor": colours.ground, "color": colours.ink, "backgroundImage": "none", "boxShadow": "none",
              "borderBottom": f"1px solid {colours.line}"}  # fmt: skip
    return {
        "palette": {
            "primary": {"main": colours.accent},
            "background": {"default": colours.ground, "paper": colours.ground},
            "text": {"primary": colours.ink, "secondary": colours.muted},
            "divider": colours.line,
        },
        "typography": {"fontFamily": FONT, "button": {"textTransform": "none", "fontWeight": 600}},
        "shape": {"borderRadius": 4},
        "components": {
            "MuiAppBar": {"styleOverrides": {"root": header}},
            "MuiButtonBase": {
                "styleOverrides": {"root": {"@media (pointer: coarse)": {"minHeight": 40, "minWidth": 40}}}
            },
            # The page's name is its heading; what keeps room below the header says nothing.
            "MuiTypography": {"defaultProps": {"variantMapping": {"h3": "h1", "h5": "div"}}},
            # Else it is lighter than the page in the dark theme, and than what is written on it.
            "MuiDrawer": {
                "styleOverrides": {"paper": {"backgroundImage": "none"}},
                "defaultProps": {"slotProps": {"paper": {"role": "dialog", "aria-label": "Profile"}}},
            },
            "MuiTabs": {"defaultProps": {"aria-label": "Views"}},
            # What a list box holds: Material UI for Panel makes it of items of a menu.
            "MuiMenuItem": {"defaultProps": {"role": "option"}},
        },
    }


def build() -> pmui.Page:
    """One session's page."""
    guard.install()
    page_lifetime.settle()
    page_lifetime.from_here()
    # Where the session of a page has lapsed before its socket came, only these still tell what the page was asked with.
    asked = pn.state.session_args
    known = {
        "view": landing(asked),
        "narrow": phone(pn.state.headers),
        "theme": pn.state.cookies.get("tilescope-theme", "light"),
    }
    state = State(may_launch=may_launch(pn.state.curdoc), bar=True, catalog=catalog.known(), **known)
    location = pn.state.location
    location.sync(state, IN_ADDRESS, on_error=lambda _: state.take(location.search))
    drawer = Drawer(state)
    with page_lifetime.not_busy():
        page = pmui.Page(
            title="Tilescope", site_url="?", template=page_lifetime.TEMPLATE, sx=_SX,
            dark_theme=state.theme == "dark", theme_config={"light": page_theme(LIGHT), "dark": page_theme(DARK)},
            contextbar=[drawer], contextbar_width=320, contextbar_variant="auto", busy_indicator=None,
        )  # fmt: skip
    drawer.follow(page)
    page.param.watch(lambda event: setattr(state, "theme", "dark" if event.new else "light"), "dark_theme")
    state.param.watch(lambda event: next_tick(lambda: setattr(page, "dark_theme", event.new == "dark")), "theme")
    # The browser runs scripts for a while before it asks for what is in the page: made meanwhile, it costs no time.
    fill = functools.partial(fill_main, state, drawer, page)
    if serves():
        next_tick(fill)
    else:
        fill()
    pn.state.on_session_destroyed(page_lifetime.release)
    return page


def landing(asked: Mapping[str, Any]) -> str:
    """The view of an address that names none: Home, unless it names something of a kernel."""
    return FIRST if {"run", "kernel", "case", "compared"} & asked.keys() else HOME


def phone(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that it is a phone's: else all would be drawn again once it has measured the page."""
    return "Mobi" in headers.get("User-Agent", "")


def fill_main(state: State, drawer: Drawer, page: pmui.Page) -> None:
    """Put into the page what it is for."""
    try:
        progress, context, dialogs = JobPanel(state, shared()), Context(state), layout.flow()
        FindDialog(state, TITLES, dialogs)
        for dialog in (GpuDialog, RunDialog):
            dialog(state, dialogs)
        views = Navigation(state, GROUPS, APART, FORMER, beside=[context.brief], below=[context, progress, dialogs])
        page.param.update(header=[kernel_bar.KernelBar(state)], main=list(views.layout))
    except Exception as error:  # else the page would stay empty
        page.main = [start_error(error)]
    else:
        fill_drawer(state, drawer, progress)
        if not serves():  # nobody waits yet: a kernel's first view is made, then its figures
            views.make()
            views.make()


def fill_drawer(state: State, drawer: Drawer, progress: JobPanel) -> None:
    """See that the drawer has its form: with the page where the address asks for it and it is known what can run here, else once
    somebody opens it, or in spare time. The form is many widgets: the numbers are on the page sooner without them.
    """

    def put(*_: Any) -> bool:
        machine = this_machine.known()
        if machine and not drawer.filled:
            form = ProfileForm(state, shared())
            # It comes filled: a widget's options that change while the browser draws it for the first time may be lost.
            form.offer(machine)
            form.param.watch(lambda event: setattr(progress.tab_job, "job", event.new), "started")
            drawer.put(form)
        return False

    if state.panel == PROFILE:
        put()
    spare = IdleWork(put)
    state.param.watch(lambda _: next_tick(put) if state.panel == PROFILE else None, "panel")

    async def learn() -> None:
        await this_machine.ask()
        # A coroutine holds no lock on the document.
        if state.panel == PROFILE:
            next_tick(put)
        else:
            spare.start()
        if not state.catalog:
            await learn_catalog(state)

    pn.state.onload(learn)


async def learn_catalog(state: State) -> None:
    """Wait for the catalog, which is asked for once a process."""
    try:
        # A page that is closed while it waits must not end the question for the others.
        found: dict[str, Any] = {"catalog": await asyncio.shield(asyncio.wrap_future(catalog.ask()))}
    except ValueError as error:
        found = {"catalog_error": str(error)}
    next_tick(lambda: state.param.update(**found))


def start_error(error: BaseException) -> pn.pane.HTML:
    """A notice in place of a page that could not be built."""
    LOG.error("the page could not be built", exc_info=error)
    return html_text.pane(html_text.notice("error", "Tilescope could not start.", f"{type(error).__name__}: {error}"))


def report_callback_error(error: Exception) -> None:
    """An exception in a callback: in the log, and where the person looks."""
    LOG.error("callback failed", exc_info=error)
    if pn.state.notifications:
        said = html_text.plain(f"{type(error).__name__}: {error}")
        # Whoever failed may have had no lock on the document, and then failed for that alone.
        next_tick(functools.partial(pn.state.notifications.error, said))


pn.extension(
    "tabulator", notifications=True, disconnect_notification=LOST, exception_handler=report_callback_error,
    apply_signatures=False,
)  # fmt: skip
try:
    build().servable()
    page_lifetime.rehearse()
except Exception as error:  # a script that raises is served as a blank page
    start_error(error).servable()
