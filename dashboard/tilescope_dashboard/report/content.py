"""Content of a report, whatever it is written as. Frozen values; the renderers turn them into HTML or Markdown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pandas as pd
from bokeh.plotting import figure
from tilescope.models import baseline
from tilescope.models.advice import Finding
from tilescope.table.run import Run

from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.figures.style import Theme
from tilescope_dashboard.topics.sentence import Sentence
from tilescope_dashboard.topics.source import LineColumn

#: Makes a figure in a theme. Only HTML asks for it.
MakeFigure = Callable[[Theme], figure]


@dataclass(frozen=True)
class Table:
    """A frame and what is shown of it, with the names of implementations. A column that the frame lacks is absent."""

    rows: pd.DataFrame
    columns: tuple[Column, ...]

    def cells(self, most: int) -> list[list[str]]:
        """The first ``most`` rows as text."""
        rows = self.rows.reindex(columns=[c.name for c in self.columns]).head(most)
        for name in {"impl", "baseline_impl"}.intersection(rows):
            rows[name] = rows[name].map(lambda impl: baseline.called(impl, {}), na_action="ignore")
        return [[column.text(record[column.name]) for column in self.columns] for record in rows.to_dict("records")]


@dataclass(frozen=True)
class Listing:
    """Lines of a file in ``spans``, both ends included, with values of one launch's lines (``line_values``) beside them.

    ``text`` is empty where it was not kept: then there are no spans.
    """

    file: str
    text: str
    rows: pd.DataFrame
    columns: tuple[LineColumn, ...]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Part:
    """A title, a sentence, and any of: figures, numbered points, a table, findings, a listing of source.

    ``wide`` figures have long labels: on a phone they are moved sideways, not squeezed.
    """

    title: str
    text: str = ""
    drawings: tuple[MakeFigure, ...] = ()
    table: Table | None = None
    findings: tuple[Finding, ...] = ()
    listing: Listing | None = None
    wide: bool = False
    points: tuple[str, ...] = ()

    def named(self, look: Theme) -> Part:
        """The part with ``look``'s names of implementations in its table and its figures."""
        table = self.table and replace(self.table, rows=look.named(self.table.rows))
        return replace(self, table=table, drawings=tuple(partial(_named, make, look) for make in self.drawings))


def _named(make: MakeFigure, names: Theme, look: Theme) -> figure:
    return make(replace(look, declared=names.declared))


@dataclass(frozen=True)
class KernelPart:
    """One kernel of a run. ``reached`` says what its largest case reached, and why, or what failed; ``largest`` has every implementation's
    times at that size."""

    name: str
    about: str
    reached: Sentence
    largest: Table
    advice: tuple[Part, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class RunPart:
    """One run: its kernels, what one must know before believing it, and where it was made.

    ``overview`` has its cases. A model's step has none: ``overview`` has its time, and ``model`` the rest.
    """

    run: Run
    warnings: tuple[str, ...]
    overview: Part
    kernels: tuple[KernelPart, ...]
    environment: tuple[tuple[str, str], ...]
    roofs: Table
    model: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Changes from ``baseline`` to ``candidate``. ``obstacles`` say why no times are compared; ``changes`` what else differs.

    ``part`` is None where they have no case in common.
    """

    baseline: str
    candidate: str
    verdict: str
    obstacles: tuple[str, ...]
    changes: tuple[str, ...]
    part: Part | None


@dataclass(frozen=True)
class Report:
    """Comparisons first, then each run."""

    title: str
    comparisons: tuple[Comparison, ...]
    runs: tuple[RunPart, ...]
