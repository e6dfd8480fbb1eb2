"""A view more: a figure, a topic's columns and sentence, and one class; the page, its tabs and its files need no other change."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from bokeh.plotting import figure
from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.components.tables import table
from tilescope_dashboard.data.columns import IMPL, Column
from tilescope_dashboard.figures.style import Theme, blank
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics.sentence import Sentence
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.navigation import Navigation

COLUMNS = (IMPL, Column("launches", "launches", "count"))


def listed(rows: pd.DataFrame) -> pd.DataFrame:
    """Launches of each implementation."""
    return rows.groupby("impl")["launch"].nunique().rename("launches").reset_index()


def sentence(counted: pd.DataFrame) -> Sentence:
    """The total in words."""
    return Sentence(f"{counted['launches'].sum()} launches", "As far as a collector numbered them.")


def launches(counted: pd.DataFrame, look: Theme) -> figure:
    """A bar an implementation."""
    plot = blank(look, "launches", y_range=list(counted["impl"]))
    plot.hbar(y=counted["impl"], right=counted["launches"], height=0.5)
    return plot


class Launches(View):
    """The whole of the view."""

    name_in_address, title = "launches", "Launches"

    def build(self) -> list[Any]:
        self.chart, self.table = chart(), table(COLUMNS)
        return [self.chart, self.saved(self.table)]

    def update(self) -> None:
        counted = listed(self.usual)
        self.head.object = html_text.heading(*sentence(counted))
        self.chart.object = launches(counted, self.state.look)
        self.table.fill(counted)


def test_a_view_is_added_in_one_class(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(runs))
    state = State(run="20260102-030405-aaaa", kernel="softmax", view="launches")
    shown = Navigation(state, {"Launches": (Launches,)}).made["launches"]
    assert not shown.trouble.visible
    assert shown.table.filled["impl"].tolist() == sorted(set(shown.usual["impl"]))
    total = shown.table.filled["launches"].sum()
    assert total > 0 and shown.about() == f"Launches. {total} launches"
    state.kernel = "matmul"
    assert shown.fresh and shown.table.filled["impl"].tolist() == sorted(set(shown.usual["impl"]))
