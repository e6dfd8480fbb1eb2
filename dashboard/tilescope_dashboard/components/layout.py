"""What pages are made of: parts, and columns of them."""

from __future__ import annotations

from typing import Any

import bokeh.models
import panel as pn
from panel.layout.base import ListPanel


class Part(pn.viewable.Viewer):
    """A part of a page. A subclass makes its ``layout``."""

    layout: Any

    def __panel__(self) -> pn.viewable.Viewable:
        return self.layout


class Column(ListPanel):
    """Bokeh's column. Panel's own also follows its scrolling, and has a button for that which takes room."""

    _bokeh_model = bokeh.models.Column
    _direction = "vertical"
    _stylesheets = pn.Row._stylesheets


def column(*parts: Any, **settings: Any) -> Column:
    """Parts from top to bottom, as wide as the page."""
    return Column(*parts, **{"sizing_mode": "stretch_width", "margin": 0, **settings})


def flow(*parts: Any, wrap: str = "wrap", **settings: Any) -> Column:
    """A column that flows as a row and keeps its parts' own widths."""
    return column(*parts, **{**settings, "styles": {"flex-flow": f"row {wrap}", **settings.get("styles", {})}})


def beside(*parts: Any) -> pn.FlexBox:
    """Fields in a row, which continues below where the page is too narrow."""
    return pn.FlexBox(*parts, gap="4px", align_items="center", sizing_mode="stretch_width")
