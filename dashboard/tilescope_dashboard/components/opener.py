"""Button that opens and closes something beside or over the views. Its script is ``opener.js``."""

from __future__ import annotations

import param

from tilescope_dashboard.components.script import ScriptComponent


class Opener(ScriptComponent):
    """``panel`` names what is open on the page, empty for nothing, bound both ways; this button opens the one called ``opens``.

    What is opened takes the focus. Esc closes it, and the focus comes back to the button, however it was closed.
    """

    opens = param.String(doc="The name of what it opens.")
    panel = param.String(doc="The name of what is open.")
    text = param.String()
    caption = param.String(doc="What the text is of, above it; without one the button is the page's main one.")
    over = param.Boolean(default=False, doc="It lies over the views: a press elsewhere closes it.")
    within = param.String(doc="Selector of the element that holds what it opens.")
