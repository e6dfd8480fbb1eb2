"""Begin and end of a session's page, where Panel 1.9.4 and its Material UI need help."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import panel as pn
import panel_material_ui as pmui
from panel.io.resources import JS_VERSION, LOCAL_DIST
from panel.models.tabulator import THEME_PATH
from tilescope.runs import store

from tilescope_dashboard.data import catalog, run_cache, this_machine
from tilescope_dashboard.panel_patches import (
    callback_checks,
    closed_connection,
    component_paths,
    debounce,
    delivery,
    gone_choices,
    grown_pages,
    known_sheets,
    lost_writes,
    model_defaults,
    page_address,
    page_fonts,
    page_resources,
    parameter_copies,
    pulled_page,
)

#: Objects that are made before the youngest are looked through; a page alone is more than a hundred thousand.
_YOUNG = 20_000
#: The page's HTML: Material UI's, which begins to import its widgets at once.
TEMPLATE = Path(__file__).parents[1] / "templates" / "page.html"
#: Style sheets of tables that Panel does not put into the page's head.
_OF_TABLES = (
    "css/loading.css", "bundled/theme/material.css", f"bundled/datatabulator/{THEME_PATH}tabulator_materialize.min.css",
)  # fmt: skip


@functools.cache
def settle() -> None:
    """Puts the corrections in place, once a process, before its first page is built.

    What has been imported stays and is most of what there is: to look through it for garbage was a fifth of the time that a
    page took, so it is frozen. The kernels are asked for, as the form waits for them.
    """
    catalog.ask()
    if not _serves():
        # A server that warms up, with nobody waiting: Home and Claims are made of what is kept of the recordings.
        for run in store.list_runs():
            run_cache.has_claimed(run.path)
        asyncio.run(this_machine.ask())
    page_fonts.once()
    model_defaults.remember()
    component_paths.remember()
    callback_checks.leave_out()
    parameter_copies.shorten()
    page_resources.remember()
    delivery.complete()
    closed_connection.ignore()
    gone_choices.refuse()
    grown_pages.follow()
    known_sheets.accept()
    lost_writes.forget()
    page_address.mend()
    pulled_page.follow()
    debounce.shorten()
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


def _serves() -> bool:
    """Whether an event loop runs here, as it does once a server answers."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def from_here() -> None:
    """Let the page's styles come from this server, and ``TEMPLATE`` know of the widgets and the sheets that it begins with.

    Panel says so only when it writes the page; what was made before, by a turn of the session that came first, would ask a
    host elsewhere for styles.
    """
    path, known = pn.state.rel_path, pn.state.curdoc.template_variables
    known["dist_url"] = dist = f"{path}/{LOCAL_DIST}" if path else LOCAL_DIST
    known["sheets"] = [f"{dist}{sheet}?v={JS_VERSION}" for sheet in _OF_TABLES]
    # The address has to be, to the letter, the one that the page's model is given.
    known["widgets"] = pmui.Page._render_esm(server=True)


@contextmanager
def not_busy() -> Iterator[None]:
    """What is made within does not follow ``pn.state.busy``.

    A page does, and so the process would know it for ever; and would walk all its models twice an event.
    """
    before = _following()
    yield
    for watcher in _following():
        if watcher not in before:
            pn.state.param.unwatch(watcher)


def _following() -> list[Any]:
    return list(pn.state.param.watchers.get("busy", {}).get("value", []))


def release(context: Any) -> None:
    """Let go of a closed session's page: the root of its notifications is kept, which knows the document with all of it.

    Not in the app's script: its names are gone by the time this is called.
    """
    for root, (_, _, document, _) in list(pn.state._views.items()):
        if document is context._document:
            del pn.state._views[root]
