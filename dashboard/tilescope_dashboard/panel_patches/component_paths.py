"""Caches where the files of each component class are.

Panel 1.9.4 and its Material UI look on disk for the files of every class when they write a page, and again for each component on it:
a tenth of the server's time for a page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from panel.custom import ReactiveESM
from panel.util import classproperty
from panel_material_ui.base import MaterialComponent


def remember() -> None:
    """Install the patch in this process."""
    for owner in (ReactiveESM, MaterialComponent):
        for name in ("_bundle_path", "_bundle_css"):
            setattr(owner, name, classproperty(_once(vars(owner)[name].f)))


def _once(look_up: Callable[[type], Any]) -> Callable[[type], Any]:
    found: WeakKeyDictionary[type, Any] = WeakKeyDictionary()

    def of(component: type) -> Any:
        if component not in found:
            found[component] = look_up(component)
        return found[component]

    return of
