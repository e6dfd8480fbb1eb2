"""Places for figures on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import panel as pn
import param
from bokeh.plotting import figure

from tilescope_dashboard.figures.redraw import look, take_over
from tilescope_dashboard.turns import in_turn


class Chart(pn.pane.Bokeh):
    """A place for a figure, which it gives a text alternative: its own title, and ``about``.

    The text is put on before the browser gets the figure: a change of one that is being replaced reaches it too late.
    """

    def __init__(self, **settings: Any) -> None:
        self.about: Callable[[], str] = str
        self._look: tuple | None = None
        super().__init__(**settings)

    def show(self, made: figure) -> figure:
        """Show the figure; what is shown already takes over its data where nothing else differs. Gives the one that is shown."""
        before, self._look = self._look, look(made)
        if self.object is not None and self._look == before:
            in_turn(partial(_hand_over, self.object, made))
            self._describe()
        else:
            self.object = made
        return self.object

    @param.depends("object", watch=True)
    def _describe(self) -> None:
        if self.object is not None:
            said = filter(None, [getattr(self.object.title, "text", ""), self.about()])
            self.object.html_attributes = {"role": "figure", "aria-label": ". ".join(said)}


def _hand_over(shown: figure, made: figure) -> None:
    with pn.io.hold():  # in one message, or the browser draws after each
        take_over(shown, made)


def chart() -> Chart:
    """A place for a figure. A view writes its headline first: it is what the figure's text alternative says."""
    return Chart(sizing_mode="stretch_width", margin=(4, 8))


def side_by_side(charts: Iterable[Chart], width: int, gap: str = "8px") -> pn.Column:
    """The figures in rows, each at least ``width`` pixels wide; as many in a row as there is room for."""
    # A column that flows in rows: a Row would be as wide as all of them, and a figure in a FlexBox that is out of sight is
    # never drawn.
    return pn.Column(
        *(pn.Column(place, min_width=width, styles={"flex": f"1 1 {width}px"}, margin=0) for place in charts),
        sizing_mode="stretch_width", margin=0, styles={"flex-flow": "row wrap", "gap": gap},
    )  # fmt: skip
