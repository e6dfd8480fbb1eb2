"""Where another run has what the open one lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tilescope.runs import store
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.missing import Missing, having, rows_of
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

RUN, PREDICTED, INJECTED = "20260102-030405-aaaa", "20260102-030406-bbbb", "20260102-030407-cccc"
pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame.reset_index")


@pytest.fixture
def made(runs: Path, monkeypatch: pytest.MonkeyPatch) -> list[store.Summary]:
    """The runs that were made up, without what is recorded."""
    monkeypatch.setenv("TILESCOPE_RUNS", str(runs))
    return store.list_runs([runs])


@pytest.mark.parametrize(
    "view", [Overview, Advice, Roofline, Traffic, Timeline, Occupancy], ids=lambda view: view.name_in_address
)
def test_a_view_without_the_kernel_offers_the_run_that_has_it(view: type[View], made: list[store.Summary]) -> None:
    state = State(run=INJECTED, kernel="softmax", view=view.name_in_address, runs=made)
    state.runs = made
    shown = view(state)
    shown.refresh()
    nowhere: Missing = shown._missing  # type: ignore[attr-defined]
    assert "Another run has this: <b>synthetic run</b>" in nowhere._text.object
    assert nowhere._button in nowhere._layout.objects
    nowhere._button.param.trigger("clicks")
    assert (state.run, state.kernel) == (RUN, "softmax")
    assert nowhere._layout.objects == []


def test_nothing_is_offered_where_no_run_has_it(made: list[store.Summary]) -> None:
    state = State(run=RUN, kernel="in_no_run", view="traffic")
    state.runs = made
    traffic, overview = Traffic(state), Overview(state)
    traffic.refresh()
    assert traffic._missing._layout.objects == []
    assert not traffic._body.visible
    overview.refresh()
    assert "No run says anything about it yet" in overview._missing._text.object
    assert overview._missing._button not in overview._missing._layout.objects


def test_the_open_run_is_never_the_other_one(made: list[store.Summary]) -> None:
    state = State(run=RUN, kernel="matmul")
    state.runs = made
    nowhere = Missing(state)
    nowhere.seek(rows_of())
    assert nowhere._layout.objects == []
    assert having(made, "matmul", lambda run, kernel: True)


def test_a_choice_in_traffic_outlives_the_theme(made: list[store.Summary]) -> None:
    state = State(run=RUN, kernel="softmax", view="traffic")
    shown = Traffic(state)
    shown.refresh()
    problems = list(shown._problem.widget.options.values())
    other = next(problem for problem in problems if problem != shown._problem.value)
    shown._problem.widget.value = other
    state.theme = "dark"
    assert shown._problem.value == other
    state.kernel = "matmul"
    state.kernel = "softmax"
    assert shown._problem.value in problems
