"""Scripts and style sheets of a page's head, gathered once and not once a page.

Panel 1.9.4 goes through every class of models and of components that there is, and looks for files on disk, to write a page's
head: a fifteenth of the server's time for a page. What comes of it changes only with the classes, and with the server's address.
"""

from __future__ import annotations

from typing import Any

from bokeh.model import Model
from panel.io import server
from panel.io.state import state

_panels_bundle = server.bundle_resources
_bundles: dict[tuple[Any, ...], Any] = {}


def bundle_resources(roots: Any, resources: Any, **settings: Any) -> Any:
    """``panel.io.resources.bundle_resources`` of a page. Nobody may change what it gives."""
    extensions = None if state._extensions is None else tuple(state._extensions)
    where = resources.mode, resources.root_url, state.rel_path, state.base_url
    key = (*where, extensions, len(Model.model_class_reverse_map), tuple(sorted(settings.items())))
    if key not in _bundles:
        _bundles[key] = _panels_bundle(roots, resources, **settings)
    return _bundles[key]


def remember() -> None:
    """From here on in this process."""
    server.bundle_resources = bundle_resources
