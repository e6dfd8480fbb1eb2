"""The listing of runs."""

from pathlib import Path

from tilescope.runs.store import Summary
from tilescope_dashboard.data.library import listing


def test_a_run_is_listed_with_its_kind_and_what_is_wrong_with_it() -> None:
    runs = [
        Summary("a", Path("a"), started="2026-01-02T03:04:05", title="mine", kernels=("softmax", "matmul"), measured=True),
        Summary("b", Path("b"), complete=False, failures=2),
        Summary("c", Path("c"), recorded=True, measured=True),
        Summary("d", Path("d"), error="run.json cannot be read"),
    ]  # fmt: skip
    shown = listing(runs)
    assert list(shown["started"]) == ["2026-01-02 03:04", "b", "c", "d"]
    assert list(shown["what"]) == ["measured", "predicted", "recorded", ""]
    assert list(shown["state"]) == ["", "not complete, 2 failed", "", "run.json cannot be read"]
    assert shown["kernels"][0] == "softmax, matmul"
    assert list(shown["title"]) == ["mine", "b", "c", "d"]


def test_no_runs_is_an_empty_frame_with_its_columns() -> None:
    assert len(listing([])) == 0
    assert "state" in listing([])
