"""Row of groups of views, and a row of the views of the group that is seen. Their script is ``view_tabs.js``."""

from __future__ import annotations

from pathlib import Path

import param

from tilescope_dashboard.components.script import ScriptComponent


class ViewTabs(ScriptComponent):
    """``view`` is the name of the one that is seen, bound both ways. A group opens on the view that was seen last of it."""

    groups = param.List(doc="For each group its title, and its views: pairs of a name and a title.")
    apart = param.String(doc="Title of the group that stands apart from the others.")
    view = param.String()

    _esm = Path(__file__).with_suffix(".js")
