"""Visible ring around what has the keyboard's focus, and ARIA roles of lists. Its script is ``focus.js``."""

from __future__ import annotations

from pathlib import Path

import param

from tilescope_dashboard.components.script import Invisible


class Focus(Invisible):
    """The same ring in widgets, tables and figures."""

    ring = param.String(default=Path(__file__).with_name("ring.css").read_text(encoding="utf-8"), doc="The style.")
