"""Serves components' files without importing anything.

Panel 1.9.4 imports any module that the address of a component's file names, before it checks who asks:
``/components/unittest.__main__/x/css/y`` ended the server. The components of our pages are imported already, and only classes of the
packages below have files.
"""

from __future__ import annotations

import sys

import param
from panel.io.server import ComponentResourceHandler
from tornado.web import HTTPError

_PACKAGES = frozenset({"tilescope_dashboard", "panel", "panel_material_ui"})


class ComponentFiles(ComponentResourceHandler):
    """Serves the files of imported components, and answers 404 to every other address."""

    def parse_url_path(self, path: str) -> str:
        """The file that the address names. Raises HTTPError 404."""
        module, _, rest = path.partition("/")
        name = rest.partition("/")[0]
        found = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] in _PACKAGES else None
        if not (isinstance(found, type) and issubclass(found, param.Parameterized)):
            raise HTTPError(404)
        return super().parse_url_path(path)
