"""Caches the scripts and style sheets of a page's head.

For each page Panel 1.9.4 visits every class of models and components and looks for files on disk: a fifteenth of the server's time for
a page. The result depends only on the classes and on the server's address. Scripts that no page here uses are left out.
"""

from __future__ import annotations

from typing import Any

from bokeh.model import Model
from panel.io import server
from panel.io.state import state

_panels_bundle = server.bundle_resources
#: Parts of their addresses: figures drawn by WebGL, and tables' dates.
UNUSED = ("bokeh-gl", "luxon")
_bundles: dict[tuple[Any, ...], Any] = {}


def bundle_resources(roots: Any, resources: Any, **settings: Any) -> Any:
    """``panel.io.resources.bundle_resources`` without ``UNUSED``, cached. The result must not be modified."""
    extensions = None if state._extensions is None else tuple(state._extensions)
    where = resources.mode, resources.root_url, state.rel_path, state.base_url
    key = (*where, extensions, len(Model.model_class_reverse_map), tuple(sorted(settings.items())))
    if key not in _bundles:
        found = _bundles[key] = _panels_bundle(roots, resources, **settings)
        found.js_files = [file for file in found.js_files if not any(name in str(file) for name in UNUSED)]
    return _bundles[key]


def install() -> None:
    server.bundle_resources = bundle_resources
