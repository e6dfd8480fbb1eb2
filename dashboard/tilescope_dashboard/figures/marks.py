"""A roofline's points for a figure: numbers and codes, with a list of the categories that the codes index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from tilescope.table.schema import CASE_COLUMNS

#: Most points that are all drawn. Of more, one per cell is drawn, with so many cells per decade across and up. There are fewer up, as a
#: figure is wide and spans more decades of flop/s than of flop/byte. A cell is about 6 by 3 pixels, a mark 13.
_MOST, _ACROSS, _UP = 2_500, 60, 20
#: Cells on either side of 1: 34 decades, more than flop/byte or flop/s need.
_REACH = 2_048


class Style(NamedTuple):
    """The properties that a mark's shape, colour and outline encode."""

    impl: str
    kind: str
    level: str
    predicted: bool


@dataclass(frozen=True, eq=False)
class Categories:
    """The values of the codes in ``Marks``, in the order of codes. A function is empty for a whole call."""

    styles: Sequence[Style]
    cases: Sequence[tuple[str, ...]]
    functions: Sequence[str]
    pipes: Sequence[str]


@dataclass(frozen=True)
class Marks:
    """The points to draw.

    ``numbers`` has a row a point: ``intensity`` (flop/byte), ``height`` (flop/s), ``gpu_time`` (s), ``executed`` (operations
    over those needed) and ``memory_roof`` (byte/s) as floats, NaN where absent; ``above_roof``; the point's ``row`` in the original
    frame; the codes of its ``style``, ``case``, ``function`` and ``pipe`` in ``categories`` (-1 for an unknown pipe); and
    ``joined``, which is equal for points of one call or launch. A point without a time has the height of the roofs.
    """

    numbers: pd.DataFrame
    categories: Categories

    def where(self, chosen: pd.Series) -> Marks:
        """The marks of the chosen rows, renumbered."""
        kept = self.numbers[chosen.to_numpy()].reset_index(drop=True)
        return Marks(kept.assign(row=np.arange(len(kept), dtype=np.int32)), self.categories)

    def seen(self) -> Marks:
        """The visible points: all of up to ``_MOST``, or else one of equal style in each cell of a fine grid.

        A mark is several cells wide, so it hides the points that are left out.
        """
        if len(self.numbers) <= _MOST:
            return self
        cell = self.numbers["style"].to_numpy(np.int64)
        for name, a_decade in (("intensity", _ACROSS), ("height", _UP)):
            cell = 2 * _REACH * cell + _cells(self.numbers[name].to_numpy(), a_decade)
        _, first = np.unique(cell, return_index=True)
        return Marks(self.numbers.iloc[np.sort(first)], self.categories)

    def styles(self) -> list[Style]:
        """The distinct styles."""
        return [self.categories.styles[number] for number in np.unique(self.numbers["style"])]


def marks(points: pd.DataFrame) -> Marks:
    """The marks of ``tilescope.models.roofline.points``, in their order."""
    predicted = points["performance"].isna()
    styles, style_values = _numbered(points.assign(predicted=predicted), list(Style._fields))
    cases, case_values = _numbered(points, ["impl", "pass", "workload"])
    functions, function_values = _numbered(points.assign(function=points["function"].fillna("")), ["function"])
    pipes, pipe_values = pd.factorize(points["pipe"])
    numbers = pd.DataFrame({
        "intensity": _floats(points["intensity"]),
        "height": _floats(points["performance"].fillna(points["attainable"])),
        "gpu_time": _floats(points["gpu_time"]),
        "executed": _floats(points["executed_ratio"]),
        "memory_roof": _floats(points["memory_roof"]),
        "above_roof": points["above_roof"].to_numpy(bool),
        "row": np.arange(len(points), dtype=np.int32),
        "style": styles, "case": cases, "function": functions, "pipe": pipes,
        "joined": _numbered(points, [*CASE_COLUMNS, "launch"])[0],
    })  # fmt: skip
    found = Categories(
        [Style(*value) for value in style_values], case_values, [name for (name,) in function_values], list(pipe_values)
    )
    return Marks(numbers, found)


def _numbered(points: pd.DataFrame, columns: list[str]) -> tuple[np.ndarray, list[tuple]]:
    """Each row's index into the distinct values of ``columns``, and those values in order of appearance."""
    numbers = points.groupby(columns, dropna=False, sort=False).ngroup()
    values = points[columns].drop_duplicates().itertuples(index=False, name=None)
    return numbers.to_numpy(dtype=np.int32), list(values)


def _floats(values: pd.Series) -> np.ndarray:
    return values.to_numpy(dtype=float, na_value=float("nan"))


def _cells(values: np.ndarray, a_decade: int) -> np.ndarray:
    """Index of each value's cell on a logarithmic scale; 0 for values that have none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        cell = np.floor(np.log10(values) * a_decade)
    return np.where(np.isfinite(cell), np.clip(cell, 1 - _REACH, _REACH - 1) + _REACH, 0).astype(np.int64)
