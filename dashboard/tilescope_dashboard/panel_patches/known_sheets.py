"""Accepts style sheets that a page sends although the server has them.

Material UI 0.16.6 for Panel adds its theme to a table's style sheets in the browser, which sends the whole list back. For each sheet
that is a model Bokeh logs ``reference already known``, on every page.
"""

from __future__ import annotations

from typing import Any

from bokeh.core.serialization import Deserializer
from bokeh.models import ImportedStyleSheet

_bokehs_decode = Deserializer._decode_object_ref


def decode(self: Deserializer, told: Any) -> Any:
    """``Deserializer._decode_object_ref``, which still warns of any other model that is sent again."""
    known = self._references.get(told["id"])
    return known if isinstance(known, ImportedStyleSheet) else _bokehs_decode(self, told)


def accept() -> None:
    """Install the patch in this process."""
    Deserializer._decode_object_ref = decode  # type: ignore[method-assign]
