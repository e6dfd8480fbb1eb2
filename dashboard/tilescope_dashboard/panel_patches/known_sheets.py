"""A style sheet that a page sends whole, though the server knows it, is that one.

Material UI 0.16.6 for Panel puts its theme on a table's style sheets in the browser, which sends them all back: of those that
are models Bokeh says ``reference already known``, once a table and sheet, in the log of every page.
"""

from __future__ import annotations

from typing import Any

from bokeh.core.serialization import Deserializer
from bokeh.models import ImportedStyleSheet

_bokehs_decode = Deserializer._decode_object_ref


def decode(self: Deserializer, told: Any) -> Any:
    """``Deserializer._decode_object_ref``, which warns of every other model that is sent again."""
    known = self._references.get(told["id"])
    return known if isinstance(known, ImportedStyleSheet) else _bokehs_decode(self, told)


def accept() -> None:
    """From here on in this process."""
    Deserializer._decode_object_ref = decode  # type: ignore[method-assign]
