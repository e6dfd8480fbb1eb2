"""What is computed of a run is computed once, and nobody changes it for the others."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from pandas.testing import assert_frame_equal
from tilescope.runs import store
from tilescope.runs.changes import Problem
from tilescope_dashboard.data import frames, run_cache
from tilescope_dashboard.data.run_cache import open_cached, usual

from .conftest import RUN

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


def test_kept_result_is_computed_once_a_run(runs: Path) -> None:
    loaded, made = store.open_run(runs / RUN), []
    for key in ("a", "a", "b"):
        run_cache.kept(loaded, key, lambda: made.append(1) or len(made))
    assert run_cache.kept(loaded, "a", lambda: 3) == 1
    assert run_cache.kept(store.open_run(runs / RUN), "a", lambda: 3) == 3


def test_changed_kernels_are_asked_for_every_5_seconds(
    runs: Path, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    loaded, asked = store.open_run(runs / RUN), []
    monkeypatch.setattr(run_cache.changes, "changed_problems", lambda run: asked.append(clock.now) or {SMALL})
    for number in range(9):
        clock.now = 3.0 * number
        assert run_cache.changed_kernels(loaded) == ["softmax"]
    assert asked == [0.0, 6.0, 12.0, 18.0, 24.0]


def test_changed_sizes_are_those_of_a_kernel_that_has_others(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = store.open_run(runs / RUN)
    of_matmul = loaded.table.loc[loaded.table["kernel"] == "matmul", "workload"].unique()
    changed = {
        SMALL, Problem("softmax", "backward", "0x8"), *(Problem("matmul", "forward", size) for size in of_matmul),
    }  # fmt: skip
    monkeypatch.setattr(run_cache.changes, "changed_problems", lambda run: changed)
    assert run_cache.changed_sizes(loaded, "softmax") == ["0x8"]
    # All of matmul has changed, and nothing of layer_norm.
    assert run_cache.changed_sizes(loaded, "matmul") == run_cache.changed_sizes(loaded, "layer_norm") == []
