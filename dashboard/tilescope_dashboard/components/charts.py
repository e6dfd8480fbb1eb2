"""Places for figures on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import panel as pn
import param
from bokeh.model import Model
from bokeh.models import ColumnDataSource, LegendItem, Range1d
from panel.io import hold

from tilescope_dashboard.components import layout


class Chart(pn.pane.Bokeh):
    """A place for a figure, which it gives a text alternative: its own title, and ``about``.

    The text is put on before the browser gets the figure: a change of one that is being replaced reaches it too late.
    """

    object: Any

    def __init__(self, **settings: Any) -> None:
        self.about: Callable[[], str] = str
        self._parts: tuple[list[Model], Any] = [], None
        super().__init__(**settings)

    def exchange(self, plot: Any) -> None:
        """Show ``plot``. If it has the parts of the last one, that takes its data and ranges: the browser only paints it again."""
        (shown, before), (models, now) = self._parts, _parts(plot)
        if self.object is None or not shown or self.object is not shown[0] or before != now:
            self._parts, self.object = (models, now), plot
            return
        with hold():  # in one message, which the browser paints once
            for model, other in zip(shown, models, strict=True):
                if isinstance(model, ColumnDataSource):
                    model.selected.indices = []
                    model.data = dict(other.data)
                elif isinstance(model, Range1d):
                    model.update(start=other.start, end=other.end, reset_start=other.start, reset_end=other.end)
                elif isinstance(model, LegendItem):
                    model.index = other.index
            self._describe()

    @param.depends("object", watch=True)
    def _describe(self) -> None:
        if self.object is not None:
            title, axis = getattr(self.object.title, "text", ""), next(iter(self.object.xaxis), None)
            # A figure without a title is told from the others of its view by what its axis is of.
            said = filter(None, [title, self.about(), "" if title else getattr(axis, "axis_label", "")])
            self.object.html_attributes = {"role": "figure", "aria-label": ". ".join(said)}


#: What figures of the same parts differ in.
_APART = {ColumnDataSource: {"data", "selected"}, Range1d: {"start", "end"}, LegendItem: {"index"}}


def _parts(plot: Model) -> tuple[list[Model], Any]:
    """The figure's models, and their properties but ``_APART``, where a model stands as its place in the list once it was listed."""
    models: list[Model] = []

    def listed(value: Any) -> Any:
        if isinstance(value, Model):
            if value in models:
                return models.index(value)
            models.append(value)
            left_out = _APART.get(type(value), set())
            given = value.properties_with_values(include_defaults=False)
            return type(value), {name: listed(given[name]) for name in given if name not in left_out}
        if isinstance(value, Mapping):
            return {name: listed(one) for name, one in value.items()}
        return [listed(one) for one in value] if isinstance(value, list | tuple) else value

    return models, listed(plot)


def chart() -> Chart:
    """A place for a figure. A view sets its headline first, as that becomes the figure's text alternative."""
    return Chart(sizing_mode="stretch_width", margin=(4, 8))


def side_by_side(charts: Iterable[Chart], width: int, gap: str = "8px") -> layout.Column:
    """The figures in rows, each at least ``width`` pixels wide, as many in a row as fit. A hidden one leaves its room to others."""
    # A column that flows in rows: a Row would be as wide as all of them, and a figure in a FlexBox that is out of sight is
    # never drawn.
    every = list(charts)
    for place in every:
        place.param.update(min_width=width, styles={"flex": f"1 1 {width}px"})
    return layout.flow(*every, styles={"gap": gap})
