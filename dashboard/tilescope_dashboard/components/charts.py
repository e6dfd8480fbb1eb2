"""Places for figures on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import panel as pn
import param
from panel.io import hold

from tilescope_dashboard.components import layout
from tilescope_dashboard.figures.style import Content


class Chart(pn.pane.Bokeh):
    """A place for a figure, which it gives a text alternative: its own title, and ``about``.

    The text is put on before the browser gets the figure: a change of one that is being replaced reaches it too late.
    """

    object: Any

    def __init__(self, **settings: Any) -> None:
        self.about: Callable[[], str] = str
        self._parts: tuple[Any, ...] | None = None
        super().__init__(**settings)

    def exchange(self, content: Content, draw: Callable[[Content], Any]) -> None:
        """Show ``content``: in the figure of the last one if that has its parts, which the browser only paints again; else ``draw`` it."""
        if self._parts != content.parts:
            self._parts, self.object = content.parts, draw(content)
            return
        with hold():  # in one message, which the browser paints once
            for drawn in self.object.renderers:
                if drawn.name in content.data:
                    drawn.data_source.selected.indices = []
                    drawn.data_source.data = dict(content.data[drawn.name])
            for name, (start, end) in content.ranges.items():
                getattr(self.object, name).update(start=start, end=end, reset_start=start, reset_end=end)
            if content.rows:
                for item, row in zip(self.object.legend[0].items, content.rows, strict=True):
                    item.index = row
            self._describe()

    @param.depends("object", watch=True)
    def _describe(self) -> None:
        if self.object is not None:
            title, axis = getattr(self.object.title, "text", ""), next(iter(self.object.xaxis), None)
            # A figure without a title is told from the others of its view by what its axis is of.
            axis_label = "" if title else getattr(axis, "axis_label", "") or ""
            said = ". ".join(filter(None, [title, self.about(), axis_label]))
            # What takes the focus in the figure needs a name, but not all of it a second time (``browser/page.js``).
            self.object.html_attributes = {"role": "figure", "aria-label": said, "data-part": title or axis_label}


def chart(width: int = 0) -> Chart:
    """A place for a figure. A view sets its headline first, as that becomes the figure's text alternative.

    With a ``width``, in pixels, it stands beside others (``side_by_side``) and is at least as wide.
    """
    beside: dict[str, Any] = {"min_width": width, "styles": {"flex": f"1 1 {width}px"}} if width else {}
    return Chart(sizing_mode="stretch_width", margin=(4, 8), **beside)


def side_by_side(charts: Iterable[Chart], gap: str = "8px") -> layout.Column:
    """The figures in rows, as many in a row as fit. A hidden one leaves its room to others."""
    # A column that flows in rows: a Row would be as wide as all of them, and a figure in a FlexBox that is out of sight is
    # never drawn.
    return layout.flow(*charts, styles={"gap": gap})
