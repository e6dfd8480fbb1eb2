"""Lays out the part of a page that has changed, at its full height. For the page's HTML: it runs before Bokeh draws anything.

Bokeh 3.9.2 lays out the whole page, every figure on it, whenever anything on it changes, and each time that a widget gets its size:
tens of times while a page opens. It fails with ``Assertion failed`` where a figure was replaced meanwhile. It makes nothing higher
than what holds it, up to the page itself, so a figure longer than the screen was squeezed into it, its rows upon each other.
"""

from __future__ import annotations

from pathlib import Path

SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
