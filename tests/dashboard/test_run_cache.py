"""What is computed of a run is computed once, and nobody changes it for the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal
from tilescope.table import case_table
from tilescope_dashboard.data import frames
from tilescope_dashboard.data.run_cache import open_cached, usual
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.source import Source
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

RUN = "20260102-030405-aaaa"


def test_a_kernels_usual_rows_are_made_once_a_run(runs: Path) -> None:
    loaded = open_cached(runs / RUN)
    rows = usual(loaded, "matmul")
    assert usual(loaded, "matmul") is rows
    assert usual(loaded, "softmax") is not rows
    assert set(usual(loaded, "softmax")["kernel"]) == {"softmax"}
    assert_frame_equal(rows, frames.default_configs(loaded.table[loaded.table["kernel"] == "matmul"]))
    assert (loaded.table.loc[loaded.table["kernel"] == "matmul", "config"] != "").any()
    assert rows["config"].nunique() == 1


def test_views_share_them_and_leave_them_as_they_are(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(runs))
    state = State(run=RUN, kernel="softmax")
    rows = usual(state.loaded, "softmax")
    before = rows.copy(deep=True)
    gathered: list[int] = []
    inner = case_table._gather
    monkeypatch.setattr(case_table, "_gather", lambda table: gathered.append(id(table)) or inner(table))
    monkeypatch.setattr(case_table, "_last", ())
    for view in (Roofline, Traffic, Timeline, Occupancy, Source):
        shown = view(state)
        shown.refresh()
        assert not shown._trouble.visible
    assert_frame_equal(rows, before)
    assert gathered.count(id(rows)) == 1
