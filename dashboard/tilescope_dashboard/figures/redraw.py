"""A figure that only has other data than the one that is shown need not be drawn, laid out and sent anew."""

from __future__ import annotations

from typing import Any

from bokeh.core.property.vectorization import Field
from bokeh.models import HoverTool, SaveTool
from bokeh.plotting import figure


def look(plot: figure) -> tuple:
    """All of a figure but what ``take_over`` hands over, as far as the project's figures over numbers differ in it.

    To be asked for before a browser has the figure, whose theme changes it.
    """
    return (
        plot.background_fill_color,
        [tool.filename for tool in plot.tools if isinstance(tool, SaveTool)],
        [(type(tool), tool.tooltips) for tool in _hovers(plot)],
        [(axis.axis_label, type(axis)) for axis in plot.axis],
        [(legend.ncols, [item.label for item in legend.items]) for legend in plot.legend],
        [(type(axis_range)) for axis_range in (plot.x_range, plot.y_range)],
        [(renderer.name, type(renderer.glyph), _style(renderer.glyph)) for renderer in plot.renderers],
    )


def take_over(shown: figure, made: figure) -> None:
    """Give ``shown`` the data and the ranges of ``made``, whose ``look`` is the same, and what is looked up in the browser."""
    for old, new in zip(shown.renderers, made.renderers, strict=True):
        for field, other in zip(_fields(old.glyph), _fields(new.glyph), strict=True):
            _look_up(field.transform, other.transform)
        old.data_source.selected.indices = []
        old.data_source.data = dict(new.data_source.data)
    for old, new in zip(_hovers(shown), _hovers(made), strict=True):
        for name, formatter in old.formatters.items():
            _look_up(formatter, new.formatters[name])
    for old, new in ((shown.x_range, made.x_range), (shown.y_range, made.y_range)):
        old.update(start=new.start, end=new.end, reset_start=new.start, reset_end=new.end)


def _style(glyph: Any) -> dict[str, Any]:
    """A glyph's properties; of one that is looked up, only which column it is looked up by."""
    return {
        name: value.field if isinstance(value, Field) else value
        for name, value in glyph.properties_with_values(include_defaults=False).items()
    }


def _fields(glyph: Any) -> list[Field]:
    values = glyph.properties_with_values(include_defaults=False)
    return [value for _, value in sorted(values.items()) if isinstance(value, Field)]


def _hovers(plot: figure) -> list[HoverTool]:
    return [tool for tool in plot.tools if isinstance(tool, HoverTool)]


def _look_up(old: Any, new: Any) -> None:
    """What a transform or a formatter looks up, where there is one."""
    if hasattr(old, "args") and old.args != new.args:
        old.args = new.args
