"""What takes many turns of a session keeps no other waiting."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import panel as pn
import pytest
from tilescope.models import recorded_claims
from tilescope.runs import store
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.session.scheduling import step_by_step, stepping
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.claims import Claims


class Page:
    """A document that a browser shows, as far as it is asked for here; its turns are taken by hand."""

    def __init__(self) -> None:
        self.session_context = SimpleNamespace(destroyed=False, request=SimpleNamespace(arguments={}))
        self.turns: list[Callable[[], Any]] = []
        self.pauses: list[int] = []

    def add_timeout_callback(self, turn: Callable[[], Any], after: int) -> None:
        self.turns.append(turn)
        self.pauses.append(after)

    def take_turns(self) -> int:
        """All that come, one after the other; how many there were."""
        taken = 0
        while self.turns:
            self.turns.pop(0)()
            taken += 1
        return taken


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    page = Page()
    monkeypatch.setattr(type(pn.state), "curdoc", property(lambda self: page))
    return page


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recording's claims were read or kept before, as with runs of somebody's own."""
    monkeypatch.setattr(run_cache, "_CLAIMED", {})
    monkeypatch.setattr(recorded_claims, "kept", lambda folder: None)


def test_steps_are_one_a_turn_or_at_once(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([True, True, False, True])
    step_by_step(lambda: next(left), lambda: True)
    assert stepping()
    assert page.take_turns() == 3
    assert list(left) == [True]
    assert not stepping()
    # Who leaves amid it holds nothing up.
    step_by_step(lambda: True, lambda: True)
    assert stepping()
    page.session_context.destroyed = True
    assert not stepping()
    page.session_context.destroyed = False
    monkeypatch.setattr(type(pn.state), "curdoc", None)
    left = iter([True, True, False, True])
    step_by_step(lambda: next(left), lambda: True)
    assert list(left) == [True]


def claims_of_few() -> Claims:
    """The view of claims where there are six recordings: each takes a turn, and as much time as it has cases."""
    state = State(view="claims")
    state.runs = [run for run in state.runs if run.recorded and len(run.kernels) < 4][:6]
    return Claims(state)


@pytest.mark.usefixtures("nothing_kept")
def test_claims_are_read_a_recording_a_turn_and_once_for_all(page: Page) -> None:
    shown = claims_of_few()
    shown.refresh()
    assert "Reading" in shown.head.object
    assert not shown.body.visible
    # Made ready ahead it leaves the server long pauses, until somebody looks at it.
    shown.state.view = "overview"
    page.turns.pop(0)()
    shown.state.view = "claims"
    # A turn more shows them.
    assert 1 + page.take_turns() == 6 + 1 == 7
    assert page.pauses[0] == page.pauses[3] < page.pauses[1]
    assert shown.body.visible
    assert "Measured on NVIDIA H200" in shown.caption.object
    assert len(shown.table.filled) > 4
    again = claims_of_few()
    again.refresh()
    assert again.table.filled.equals(shown.table.filled)
    assert not page.turns


@pytest.mark.usefixtures("nothing_kept")
def test_unreadable_recording_ends_the_reading(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "_open", refuse)
    shown = Claims(State(view="claims"))
    shown.refresh()
    assert page.take_turns() == 1
    assert "the run is damaged" in shown.trouble.object
    assert shown.trouble.visible


@pytest.mark.usefixtures("nothing_kept")
def test_superseded_reading_is_not_shown(page: Page) -> None:
    shown = claims_of_few()
    shown.refresh()
    before = page.turns.pop()
    shown.fresh = False
    shown.refresh()
    before()
    assert page.take_turns() == 6 + 1
    assert shown.body.visible


def refuse(path: Path) -> None:
    raise store.StoreError("the run is damaged")
