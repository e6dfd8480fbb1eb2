"""What takes long keeps no session waiting."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from panel.io.state import set_curdoc
from tilescope.models import recorded_claims
from tilescope.runs import store
from tilescope_dashboard.data import run_cache
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.claims import Claims

from .conftest import opened


class Page:
    """A document that a browser shows, as far as it is asked for here; its ticks are taken by hand."""

    def __init__(self) -> None:
        self.session_context = SimpleNamespace(request=SimpleNamespace(arguments={}), destroyed=False)
        self.ticks: queue.Queue[Callable[[], Any]] = queue.Queue()
        self.add_next_tick_callback = self.ticks.put

    def tick(self) -> None:
        self.ticks.get(timeout=120)()


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page()
    with set_curdoc(page):
        yield page


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No recording's claims were read or kept before, as with runs of somebody's own."""
    monkeypatch.setattr(run_cache, "_CLAIMED", {})
    monkeypatch.setattr(recorded_claims, "kept", lambda folder: None)


def claims_of_few() -> Claims:
    """The view of claims where there are six recordings, which take long to read."""
    state = State(view="claims")
    state.runs = [run for run in state.runs if run.recorded and len(run.kernels) < 4][:6]
    return Claims(state)


@pytest.mark.usefixtures("nothing_kept")
def test_claims_are_read_beside_the_session_and_once_for_all(page: Page) -> None:
    shown = claims_of_few()
    shown.refresh()
    assert "Reading" in shown.head.object
    assert not shown.body.visible
    page.tick()
    assert shown.body.visible
    assert "Measured on NVIDIA H200" in shown.caption.object
    assert len(shown.table.filled) > 4
    again = claims_of_few()
    again.refresh()
    assert again.table.filled.equals(shown.table.filled)
    assert page.ticks.empty()


@pytest.mark.usefixtures("nothing_kept")
def test_a_page_that_was_closed_meanwhile_is_left_alone(page: Page) -> None:
    page.session_context.destroyed = True
    claims_of_few().refresh()
    for thread in threading.enumerate():
        if thread.name == "tilescope-beside":
            thread.join(120)
    assert page.ticks.empty()


@pytest.mark.usefixtures("nothing_kept")
def test_unreadable_recording_is_told(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cache, "_open", refuse)
    shown = opened(Claims)
    page.tick()
    assert "could not be drawn" in shown.head.object and "the run is damaged" in shown.head.object
    assert "Claims" in shown.head.object or "Reading" in shown.head.object


@pytest.mark.usefixtures("nothing_kept")
def test_superseded_reading_is_not_shown(page: Page) -> None:
    shown = claims_of_few()
    shown.refresh()
    former = page.ticks.get(timeout=120)
    shown.state.runs = shown.state.runs[1:]
    run_cache._CLAIMED.clear()
    shown.fresh = False
    shown.refresh()
    former()
    assert not shown.body.visible
    page.tick()
    assert shown.body.visible


@pytest.mark.usefixtures("nothing_kept")
def test_without_a_session_claims_are_read_at_once() -> None:
    shown = claims_of_few()
    shown.refresh()
    assert shown.body.visible


def refuse(path: Path) -> None:
    raise store.StoreError("the run is damaged")
