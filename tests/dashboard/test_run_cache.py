"""What is computed of a run is computed once, and nobody changes it for the others."""

from collections import OrderedDict
from pathlib import Path

import pytest
from pandas.testing import assert_frame_equal
from tilescope.runs.changes import Problem
from tilescope.table import case_table
from tilescope_dashboard.data import frames, run_cache
from tilescope_dashboard.data.run_cache import open_cached, usual
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.source import Source
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

RUN = "20260102-030405-aaaa"
SMALL = Problem("softmax", "forward", "0x8")


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


def test_what_is_looked_at_outlasts_what_is_not_and_old_answers_about_code(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cache, "_KEPT", OrderedDict())
    monkeypatch.setattr(run_cache, "_MOST_KEPT", 4)
    loaded, now, asked = open_cached(runs / RUN), [0.0], []
    monkeypatch.setattr(run_cache.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(run_cache.changes, "changed_problems", lambda run: asked.append(now[0]) or {SMALL})
    for number in range(9):
        now[0] = 3.0 * number
        assert run_cache.kept(loaded, "looked at", lambda number=number: number) == 0
        assert run_cache.kept(loaded, number, lambda: "once") == "once"
        assert run_cache.changed_kernels(loaded) == ["softmax"]
    assert asked == [0.0, 6.0, 12.0, 18.0, 24.0]
    assert [place[-1] for place in run_cache._KEPT] == [7, "looked at", 8, "changed"]


def test_what_another_thread_drops_meanwhile_is_returned(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "_KEPT", OrderedDict())
    monkeypatch.setattr(run_cache, "_MOST_KEPT", 0)
    assert run_cache.kept(open_cached(runs / RUN), "dropped", lambda: 1) == 1


def test_changed_sizes_are_those_of_a_kernel_that_has_others(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "_KEPT", OrderedDict())
    loaded = open_cached(runs / RUN)
    of_matmul = loaded.table.loc[loaded.table["kernel"] == "matmul", "workload"].unique()
    changed = {
        SMALL,
        Problem("softmax", "backward", "0x8"),
        *(Problem("matmul", "forward", size) for size in of_matmul),
    }
    monkeypatch.setattr(run_cache.changes, "changed_problems", lambda run: changed)
    assert run_cache.changed_sizes(loaded, "softmax") == ["0x8"]
    # All of matmul has changed, and nothing of layer_norm.
    assert run_cache.changed_sizes(loaded, "matmul") == run_cache.changed_sizes(loaded, "layer_norm") == []
