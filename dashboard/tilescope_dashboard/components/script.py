"""Components with a plain JavaScript file."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path
from typing import Any

from panel.custom import JSComponent

#: What every component's script may call.
_EVERY = Path(__file__).with_name("every.js").read_text(encoding="utf-8")


class ScriptComponent(JSComponent):
    """A component whose script is plain JavaScript: the file beside its module that has the module's name, after ``every.js``.

    Panel has every page translate every script from TypeScript, which took a tenth of the browser's time for a page, unless it is
    told by ``bundle`` that this is done. Scripts with the same are one.
    """

    __abstract = True

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls._esm = Path(inspect.getfile(cls)).with_suffix(".js")

    def _get_properties(self, doc: Any) -> dict[str, Any]:
        properties = super()._get_properties(doc)
        properties["esm"] = f"{_EVERY}\n{properties['esm']}"
        properties["bundle"] = hashlib.sha256(properties["esm"].encode()).hexdigest()
        return properties
