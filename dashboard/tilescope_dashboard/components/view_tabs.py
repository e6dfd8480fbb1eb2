"""Row of groups of views, and a row of the open group's views. Their script is ``view_tabs.js``."""

from __future__ import annotations

import param

from tilescope_dashboard.components.script import ScriptComponent


class ViewTabs(ScriptComponent):
    """``view`` is the open view's name, bound both ways. A group opens its last open view."""

    groups = param.List(doc="For each group its title, and its views: pairs of a name and a title.")
    apart = param.String(doc="Title of the group that stands apart from the others.")
    view = param.String()
