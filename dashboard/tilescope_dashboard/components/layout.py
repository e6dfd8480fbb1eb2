"""What pages are made of: parts, and columns of them."""

from __future__ import annotations

from typing import Any

import panel as pn


class Part(pn.viewable.Viewer):
    """A part of a page. A subclass makes its ``layout``."""

    layout: Any

    def __panel__(self) -> pn.viewable.Viewable:
        return self.layout


def column(*parts: Any, **settings: Any) -> pn.Column:
    """Parts from top to bottom, as wide as the page."""
    return pn.Column(*parts, **{"sizing_mode": "stretch_width", "margin": 0, **settings})


def flow(*parts: Any, wrap: str = "wrap", **settings: Any) -> pn.Column:
    """A column that flows as a row and keeps its parts' own widths. Its button that scrolls would take room."""
    return column(
        *parts,
        **{
            **settings,
            "styles": {"flex-flow": f"row {wrap}", **settings.get("styles", {})},
            "stylesheets": [".scroll-button { display: none; }", *settings.get("stylesheets", [])],
        },
    )


def beside(*parts: Any) -> pn.FlexBox:
    """Fields in a row, which continues below where the page is too narrow."""
    return pn.FlexBox(*parts, gap="4px", align_items="center", sizing_mode="stretch_width")
