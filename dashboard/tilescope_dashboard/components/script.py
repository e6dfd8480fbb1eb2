"""Components with a plain JavaScript file."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any, ClassVar

from panel.custom import JSComponent


class ScriptComponent(JSComponent):
    """A component whose script is plain JavaScript: the file beside its module that has the module's name.

    A style sheet of that name is the component's. Panel has every page translate every script from TypeScript, which took a tenth of
    the browser's time for a page, unless ``bundle`` says that this is done. Scripts with the same ``bundle`` are one.
    """

    __abstract = True
    _style: ClassVar[list[str]] = []

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        module = Path(inspect.getfile(cls))
        style = module.with_suffix(".css")
        cls._esm = module.with_suffix(".js").read_text(encoding="utf-8")
        cls._style = [style.read_text(encoding="utf-8")] if style.exists() else []

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"stylesheets": self._style, **settings})

    def _get_properties(self, doc: Any) -> dict[str, Any]:
        properties = super()._get_properties(doc)
        properties["bundle"] = hashlib.sha256(properties["esm"].encode()).hexdigest()
        return properties
