"""A figure's drawing apart from its data, so that new data updates the figure instead of replacing it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

#: A renderer's data, by column.
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Drawing:
    """Content of a figure that is not made yet.

    ``columns`` are the data of its renderers, by the renderers' names; ``across`` and ``up`` are its ranges. ``shape`` has
    everything else that drawings may differ in: drawings of the same shape are the same figure with other data. ``build`` makes
    the figure, from a source for each of ``columns``.
    """

    shape: Hashable
    columns: Mapping[str, Columns]
    across: tuple[float, float]
    up: tuple[float, float]
    build: Callable[[Mapping[str, ColumnDataSource]], figure]

    def figure(self) -> figure:
        """Make the figure."""
        plot = self.build({name: ColumnDataSource(dict(columns)) for name, columns in self.columns.items()})
        self._move(plot)
        return plot

    def redraw(self, shown: figure) -> None:
        """Give ``shown``, a figure of a drawing with the same shape, this one's data and ranges. Clears its selection."""
        for renderer in shown.renderers:
            columns = self.columns.get(renderer.name, {})
            if _differ(columns, renderer.data_source.data):
                renderer.data_source.selected.indices = []
                renderer.data_source.data = dict(columns)
        self._move(shown)

    def _move(self, plot: figure) -> None:
        for axis, (start, end) in ((plot.x_range, self.across), (plot.y_range, self.up)):
            axis.update(start=start, end=end, reset_start=start, reset_end=end)


def _differ(columns: Columns, shown: Mapping[str, Any]) -> bool:
    return any(not np.array_equal(column, shown[name]) for name, column in columns.items())
