"""Files of components, for which nothing is imported.

Panel 1.9.4 imports whatever module the address of a component's file names, before it asks who wants it:
``/components/unittest.__main__/x/css/y`` ended the server. What a page of ours is made of has been imported already, and
only classes of the packages below have files to give.
"""

from __future__ import annotations

import sys

import param
from panel.io.server import ComponentResourceHandler
from tornado.web import HTTPError

_PACKAGES = frozenset({"tilescope_dashboard", "panel", "panel_material_ui"})


class ComponentFiles(ComponentResourceHandler):
    """Gives the files of components that are in use, and answers 404 to every other address."""

    def parse_url_path(self, path: str) -> str:
        """The file that the address is for."""
        module, _, rest = path.partition("/")
        name = rest.partition("/")[0]
        # Not a subclass' lookalike elsewhere: the class has to be at home where its address says.
        found = getattr(sys.modules.get(module), name, None) if module.partition(".")[0] in _PACKAGES else None
        if not (isinstance(found, type) and issubclass(found, param.Parameterized)):
            raise HTTPError(404)
        return super().parse_url_path(path)
