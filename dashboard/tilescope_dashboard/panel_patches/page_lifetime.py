"""Start and end of a session's page, as Panel 1.9.4 and its Material UI need it."""

from __future__ import annotations

import asyncio
import functools
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import panel as pn
import panel_material_ui as pmui
import param
from bokeh.core.has_props import _default_resolver
from bokeh.model import Model
from bokeh.util.warnings import BokehUserWarning
from panel.io import server
from panel.io.resources import JS_VERSION, LOCAL_DIST, Resources
from panel.models.tabulator import THEME_PATH
from panel.reactive import Syncable
from panel_material_ui.base import FONT_CSS, MaterialComponent
from tilescope.runs import store

from tilescope_dashboard.data import catalog, run_cache, this_machine
from tilescope_dashboard.panel_patches import (
    callback_checks,
    connections,
    gone,
    grown_pages,
    model_defaults,
    page_address,
    page_resources,
)  # fmt: skip
from tilescope_dashboard.session.scheduling import serves

_PATCHES = (
    callback_checks, connections, gone, grown_pages, model_defaults, page_address, page_resources,
)  # fmt: skip
#: Allocations before the youngest generation is collected. A page alone makes over 100,000 objects.
_YOUNG = 20_000
#: Milliseconds for which changes of one widget are collected. Panel's 50 suit a slider being dragged; no view has one.
_TOGETHER = 5
#: The page's HTML: Material UI's, changed to import its widgets at once.
TEMPLATE = Path(__file__).parents[1] / "templates" / "page.html"
#: Lays out the part of a page that has changed, at its full height. For the page's HTML: it runs before Bokeh draws anything.
#: Bokeh 3.9.2 lays out the whole page, every figure on it, whenever anything on it changes: tens of times while a page opens. It fails
#: with ``Assertion failed`` where a figure was replaced meanwhile. It makes nothing higher than what holds it, up to the page itself, so
#: a figure longer than the screen was squeezed into it, its rows upon each other.
PAGE_LAYOUT = Path(__file__).with_name("page_layout.js").read_text(encoding="utf-8")
#: Material UI's components on the pages. Bokeh sends every page the definitions of all components' models: the other hundred were half
#: of the message, and an eighth of the server's time for a page.
USED = frozenset((
    "AutocompleteInput", "Button", "CheckBoxGroup", "CheckButtonGroup", "Checkbox", "Dialog", "FileDownload", "MenuList", "MultiChoice",
    "NotificationArea", "Page", "RadioButtonGroup", "Select", "Switch", "TabMenu", "TextAreaInput", "TextInput", "Toggle",
))  # fmt: skip
#: Style sheets of tables that Panel does not put into the page's head.
_OF_TABLES = (
    "css/loading.css", "bundled/theme/material.css", f"bundled/datatabulator/{THEME_PATH}tabulator_materialize.min.css",
)  # fmt: skip


@functools.cache
def settle() -> None:
    """Install the patches, once per process, before its first page is built.

    Also freezes all objects that exist by then, as collecting garbage among imported modules took a fifth of a page's time, and asks
    the worker for the kernels, which the profile form waits for.
    """
    catalog.ask()
    if not serves():
        # The server is warming up and nobody waits: fill the caches that Home and Claims read.
        for run in store.list_runs():
            run_cache.has_claimed(run.path)
        asyncio.run(this_machine.ask())
    # Material UI declares its fonts a second time, for all letters: a browser would ask for 17 files before the Latin one.
    FONT_CSS.clear()
    for patch in _PATCHES:
        patch.install()
    kinds = [kind for kind in param.descendents(MaterialComponent) if kind.__module__.startswith(pmui.__name__)]
    unused = {kind._data_model.__qualified_model__: kind._data_model for kind in kinds if kind.__name__ not in USED}
    for name in unused.keys() & Model.model_class_reverse_map.keys():
        _default_resolver.remove(unused[name])  # type: ignore[attr-defined]
    # Material UI's theme sends a table's style sheets back, those that the server has among them.
    warnings.filterwarnings("ignore", "reference already known", BokehUserWarning)
    Syncable._debounce = _TOGETHER
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def rehearse() -> None:
    """While the server starts, do with its page what is slow only for the first: list the files of its head, and write its models."""
    if not serves():
        server.bundle_resources(pn.state.curdoc.roots, Resources(mode="server", root_url="/"))
        pn.state.curdoc.to_json()


def from_here() -> None:
    """Set where the page's styles come from, and the widgets, sheets and script that ``TEMPLATE`` loads first.

    Panel sets the former only when it writes the page. Components built earlier, in a callback of the session, would load their styles
    from another host.
    """
    path, known = pn.state.rel_path, pn.state.curdoc.template_variables
    known["dist_url"] = dist = f"{path}/{LOCAL_DIST}" if path else LOCAL_DIST
    known["page_layout"] = PAGE_LAYOUT
    known["sheets"] = [f"{dist}{sheet}?v={JS_VERSION}" for sheet in _OF_TABLES]
    # This must equal the address in the page's model, or the browser loads the module twice.
    known["widgets"] = pmui.Page._render_esm(server=True)


@contextmanager
def not_busy() -> Iterator[None]:
    """Components made inside do not follow ``pn.state.busy``.

    A page that follows it is never freed, and all its models are walked twice per event.
    """
    before = _following()
    yield
    for watcher in _following():
        if watcher not in before:
            pn.state.param.unwatch(watcher)


def _following() -> list[Any]:
    return list(pn.state.param.watchers.get("busy", {}).get("value", []))


def release(context: Any) -> None:
    """Free a closed session's page: Panel keeps the root of its notifications, which refers to the whole document.

    Not in the app's script, whose globals are cleared before this is called.
    """
    for root, (_, _, document, _) in list(pn.state._views.items()):
        if document is context._document:
            del pn.state._views[root]
