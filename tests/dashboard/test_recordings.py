"""The best recording for each question, and measurements joined from all of them."""

from pathlib import Path

import pandas as pd
import pytest
from tilescope.runs import store
from tilescope_dashboard.data import best_run, recordings
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.data.measurements import measurements, newest
from tilescope_dashboard.data.recordings import ANYTHING, COUNTERS, MEASURED_LINES, SWEEP, Question

from .conftest import PREDICTED, RUN


@pytest.mark.parametrize(
    ("kernel", "question", "run"),
    [
        ("softmax", ANYTHING, RUN), ("softmax", COUNTERS, RUN), ("matmul", SWEEP, RUN), ("softmax", SWEEP, None),
        ("softmax", MEASURED_LINES, None), ("in_no_run", ANYTHING, None),
    ],
)  # fmt: skip
def test_run_answers_a_question(made: list[store.Summary], kernel: str, question: Question, run: str | None) -> None:
    found = recordings.best(made, kernel, question)
    assert (found.summary.id if found else None) == run


def test_a_run_on_the_chosen_gpu_comes_first(made: list[store.Summary]) -> None:
    other = store.Summary(
        "x", Path("nowhere"), device="Another GPU", measured=True, kernels=("softmax",), sources=("ncu",)
    )
    # The other one cannot be read.
    for device in ("", "Another GPU", "Synthetic GPU"):
        found = recordings.best([other, *made], "softmax", COUNTERS, device)
        assert found and found.summary.id == RUN
    assert recordings.best([other], "softmax", COUNTERS) is None


def code(monkeypatch: pytest.MonkeyPatch, changed: set[str], sizes: list[str]) -> None:
    """Runs whose kernel has changed since: those of these names, at these sizes or at all."""
    standing = KernelCase("", "forward", "4096x4096-bf16")
    facts = {
        "open_cached": lambda path: path, "changed_sizes": lambda path, kernel: sizes,
        "changed_kernels": lambda path: ["own"] if path.name in changed else ["another"],
        "representative": lambda path, kernel: standing,
    }  # fmt: skip
    for name, fact in facts.items():
        monkeypatch.setattr(best_run, name, fact)


@pytest.mark.parametrize(
    ("changed", "sizes", "best"),
    [
        (set(), [], "fuller"), ({"fuller"}, [], "current"), ({"fuller", "current"}, [], "sweep"), ({"sweep"}, [], "fuller"),
        ({"fuller"}, ["0x4096-bf16"], "fuller"), ({"fuller"}, ["4096x4096-bf16"], "current"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("recorded", [False, True])
def test_best_run_prefers_current_code(
    monkeypatch: pytest.MonkeyPatch, recorded: bool, changed: set[str], sizes: list[str], best: str
) -> None:
    """But a recording with counters before a sweep, which says nothing of most questions."""
    facts = {"kernels": ("own",), "measured": True, "recorded": recorded}
    sweep = store.Summary("sweep", Path("sweep"), sources=("torch_profiler",), **facts)
    current = store.Summary("current", Path("current"), sources=("events", "ncu"), failures=1, **facts)
    fuller = store.Summary("fuller", Path("fuller"), sources=("check", "events", "ncu"), cases=9, **facts)
    code(monkeypatch, changed, sizes)
    found = best_run.best_run([sweep, current, fuller], "own")
    assert found and found.id == ("fuller" if recorded and best == "sweep" else best)


def test_a_run_without_the_collector_is_not_read(made: list[store.Summary], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "open_cached", lambda path: pytest.fail(f"read {path}"))
    predicted = [run for run in made if run.id == PREDICTED]
    assert recordings.best(predicted, "softmax", COUNTERS) is None


def test_measurements_are_timed_cases_with_origin(made: list[store.Summary]) -> None:
    every = recordings.every(made, "softmax")
    assert [one.summary.id for one in every] == [RUN, PREDICTED]
    rows = measurements(every, "softmax")
    assert set(rows["run_id"]) == {RUN}
    assert set(rows["origin"]) == {"synthetic run, measured 2026-01-02 on Synthetic GPU"}
    assert rows["kernel"].eq("softmax").all()
    # The same run a second time, later: of each case the newest is kept.
    later = rows.assign(started="2027", origin="later")
    kept = newest(pd.concat([rows, later], ignore_index=True))
    assert len(kept) == len(rows)
    assert set(kept["origin"]) == {"later"}
    swept = later.assign(config="BLOCK=1", origin="swept")
    assert set(newest(pd.concat([rows, swept], ignore_index=True))["origin"]) == set(rows["origin"])
