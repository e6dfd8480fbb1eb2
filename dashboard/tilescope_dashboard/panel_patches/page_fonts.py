"""Removes the second style sheet of Material UI's fonts.

Material UI 0.16.6 for Panel declares its fonts in its bundle's style sheet, and again in a second one without ``unicode-range``. So a
browser tried the Vietnamese, Greek and Cyrillic files before the Latin one: 17 files, and the page's own font came seconds after
its text.
"""

from __future__ import annotations

from panel_material_ui.base import FONT_CSS


def once() -> None:
    """Install the patch in this process. The bundle's sheet has all that the other has."""
    FONT_CSS.clear()
