"""Material UI's fonts once, each with the letters that are in it.

Material UI 0.16.6 for Panel has its fonts in its bundle's style sheet, and again in a second one, which does not say which letters
each file has. A browser looked for every letter in the Vietnamese file, in the Greek and the Cyrillic ones, one after the other, and
in the Latin one last: 17 files, and the page's own letters seconds after its text.
"""

from __future__ import annotations

from panel_material_ui.base import FONT_CSS


def once() -> None:
    """From here on in this process. The bundle's sheet has all that is in the other."""
    FONT_CSS.clear()
