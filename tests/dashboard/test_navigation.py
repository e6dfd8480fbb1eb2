"""Views are made in spare time, and one is seen at a time."""

import time
import types
from collections.abc import Iterator
from typing import Any

import panel_material_ui as pmui
import pytest
from panel.io.location import Location
from panel.io.state import set_curdoc
from tilescope_dashboard.session.scheduling import AfterPaint, IdleWork
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views import base, navigation
from tilescope_dashboard.views.groups import APART, FORMER, GROUPS
from tilescope_dashboard.views.navigation import Navigation
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

from .conftest import RUN, looked_at


class Page:
    """A document of a session, whose timeouts are called by hand."""

    def __init__(self, clock: types.SimpleNamespace) -> None:
        self.clock, self.waiting = clock, []
        session = types.SimpleNamespace(connection_count=1)
        self.session_context = types.SimpleNamespace(session=session)

    def add_timeout_callback(self, action: Any, after: int) -> Any:
        self.waiting.append((action, after / 1000))
        return self.waiting[-1]

    def remove_timeout_callback(self, waiting: Any) -> None:
        self.waiting.remove(waiting)

    def turn(self, late: float = 0.0) -> float:
        """Let the pause go by, and ``late`` seconds more; gives the pause."""
        action, after = self.waiting.pop()
        self.clock.now += after + late
        action()
        return after


@pytest.fixture
def page(clock: types.SimpleNamespace) -> Iterator[Page]:
    page = Page(clock)
    with set_curdoc(page):
        yield page


def test_spare_time_ends_with_the_work_and_gives_way(page: Page) -> None:
    done = []
    idle = IdleWork(lambda: done.append(1) or len(done) < 3)
    idle.start()
    idle.start()
    assert len(page.waiting) == 1
    # The page itself comes first.
    assert page.turn() >= 1.0
    assert len(done) == 1
    usual = 0.1
    page.turn(late=1.0)
    assert len(done) == 1  # the server had something better to do
    assert page.turn() == 2 * usual
    assert page.turn() == usual
    assert len(done) == 3
    assert not page.waiting
    idle.start()
    assert len(page.waiting) == 1


def test_work_behind_the_figure_is_done_once(clock: types.SimpleNamespace) -> None:
    done: list[int] = []
    behind = AfterPaint(lambda: done.append(1))
    behind.due()
    assert len(done) == 1  # no browser, nothing to wait for
    page = Page(clock)
    with set_curdoc(page):
        behind.due()
        behind.due()
        assert len(done) == 1
        # It waits for the latest figure, not for the first.
        assert len(page.waiting) == 1
        behind.now()
        behind.now()
        assert len(done) == 2
        assert not page.waiting
        behind.due()
        assert page.turn() > 0.05
        assert len(done) == 3
        assert not page.waiting


def test_next_step_waits_for_the_browser(page: Page) -> None:
    done, asked = [], []
    IdleWork(lambda: bool(done.append(1) or True), asked.append).start()
    page.turn()
    assert (len(done), len(asked), page.waiting) == (1, 1, [])
    asked[0]()
    page.turn()
    assert (len(done), len(asked)) == (2, 2)


def test_page_that_was_left_builds_no_views(page: Page) -> None:
    done = []
    IdleWork(lambda: bool(done.append(1) or True)).start()
    page.session_context.session.connection_count = 0
    assert [page.turn() for _ in range(6)][-1] == 10.0 and not done
    # The connection was lost and came back.
    page.session_context.session.connection_count = 1
    page.turn()
    assert len(done) == 1


def test_without_a_session_nothing_waits() -> None:
    IdleWork(lambda: pytest.fail("no")).start()


def test_views_of_one_kernel_are_made_ready(in_runs: None) -> None:
    views = {"Why": (Roofline, Occupancy), "Timeline": (Timeline, Traffic), "Library": (Overview,)}
    state = State(run=RUN, kernel="softmax", view="roofline")
    shown = Navigation(state, views, apart="Library")
    assert list(shown.made) == list(shown.places) == ["roofline"]
    assert shown.prepare()
    # In parts, so that whoever clicks meanwhile waits for one of them: all are made and filled, then they are sent.
    occupancy = shown.made["occupancy"]
    assert not occupancy.fresh
    assert shown.prepare()
    assert occupancy.fresh
    # Of other groups the first, but for those that are of no one kernel.
    assert shown.make() and shown.make()
    assert not shown.make()
    assert list(shown.made) == ["roofline", "occupancy", "timeline"]
    assert not shown.sent("occupancy")
    assert shown.prepare()
    assert shown.sent("occupancy") and not shown.sent("timeline")
    assert shown.prepare()
    assert not shown.prepare()
    on_page = shown.__panel__().select()
    assert all({view.head, view.body} <= {*on_page} for view in shown.made.values())
    state.kernel = "matmul"
    assert shown.made["roofline"].fresh
    assert not shown.made["occupancy"].fresh
    assert shown.prepare()
    assert shown.prepare()
    assert not shown.prepare()


def test_tables_come_after_figures_of_the_seen_view(in_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "in_session", lambda: True)
    state = State(run=RUN, kernel="softmax", view="roofline")
    shown = Navigation(state, {"Why": (Roofline, Occupancy, Traffic)})
    browser, roofline = shown.page, shown.made["roofline"]
    assert browser.asked == 1 and roofline.waits
    state.view = "occupancy"
    assert browser.asked == 2
    browser.drawn = 1  # the roofline's, which nobody looks at any more
    assert roofline.waits and shown.made["occupancy"].waits
    browser.drawn = 2
    assert not shown.made["occupancy"].waits
    state.view = "roofline"
    assert roofline.waits
    browser.drawn = 3
    assert not roofline.waits
    state.view = "occupancy"
    assert browser.asked == 3
    # In spare time a view is sent without its tables.
    assert all(shown.prepare() for _ in range(2))
    assert shown.made["traffic"].waits and not shown.sent("traffic")
    assert shown.prepare() and shown.sent("traffic") and shown.made["traffic"].waits
    state.view = "traffic"
    browser.drawn = browser.asked
    assert not shown.made["traffic"].waits


def test_keys_count_from_view_on_its_way(in_runs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[Any] = []
    told: list[str] = []
    state = State(run=RUN, kernel="softmax", view="roofline")
    shown = Navigation(state, {"Why": (Roofline, Occupancy, Traffic), "Time": (Timeline,)})
    monkeypatch.setattr(navigation, "next_tick", ticks.append)
    monkeypatch.setattr(shown.page, "focus_tab", told.append)
    for _ in range(3):
        shown.page._handle_msg({"step": 1})
    while ticks:
        ticks.pop(0)()
    # The tab of a group of one view has the group's title.
    assert state.view == "timeline" and told[-1] == "Time"


def test_tabs_open_last_view_of_group(in_runs: None) -> None:
    state = State(run=RUN, kernel="softmax", view="traffic")
    shown = Navigation(state, {"Why": (Roofline, Traffic), "Time": (Timeline,)})
    groups, views = shown.__panel__().select(pmui.TabMenu)
    assert (groups.active, views.active, views.items) == (0, 1, ["Roofline", "HBM traffic"])
    assert views.styles["display"] is None
    groups.active = 1
    assert (state.view, views.styles["display"]) == ("timeline", "none")
    groups.active = 0
    assert state.view == "traffic"
    views.active = 0
    assert state.view == "roofline"
    for asked, view in (
        ({"step": -1}, "timeline"),
        ({"step": 1}, "roofline"),
        ({"number": 2}, "timeline"),
        ({"number": 9}, "timeline"),
    ):
        shown.page._handle_msg(asked)
        assert state.view == view


def test_former_gpu_address_opens_its_dialog(in_runs: None) -> None:
    state, address = State(run=RUN, kernel="softmax", view="gpu"), Location()
    address.sync(state, ["view", "panel"])
    shown = Navigation(state, GROUPS, APART, FORMER)
    assert (state.view, state.panel, state.ignored) == ("summary", "gpu", "")
    assert list(shown.made) == ["summary"]
    # The browser's address is taken once more as the page opens: what it then means stands in it anew.
    address.search = "?view=gpu"
    assert address.query_params == {"view": "summary", "panel": "gpu"}


def test_a_tab_that_is_pressed_is_the_view_of_the_address(in_runs: None) -> None:
    state = State(run=RUN, kernel="softmax", view="roofline")
    shown = Navigation(state, {"Why": (Roofline, Occupancy)})
    _, views = shown.__panel__().select(pmui.TabMenu)
    views.active = 1
    hidden = {name for name, place in shown.places.items() if place.styles["visibility"] == "hidden"}
    assert state.view == "occupancy" and hidden == {"roofline"}
    state.view = "roofline"
    assert views.active == 0


def test_what_nobody_sees_comes_in_idle_time(in_runs: None) -> None:
    state = State(run=RUN, kernel="softmax", view="traffic")
    shown = Navigation(state, {"Traffic": (Traffic,), "Why": (Roofline, Occupancy)})

    def there() -> tuple[list[str], int]:
        return list(shown.places), len(shown.__panel__().select(pmui.TabMenu))

    assert there() == (["traffic"], 1)
    while shown.prepare():
        pass
    assert state.view == "traffic" and there() == (["traffic", "roofline", "occupancy"], 2)


#: Whether the roofline was made ready, and is skipped when the page is drawn.
SETTLED = (
    "() => allElements('.place-roofline').some(element => getComputedStyle(element).contentVisibility === 'hidden')"
)
#: How often something is to be done at once, in two seconds.
CALLS = """async () => {
  const usual = MessagePort.prototype.postMessage
  let calls = 0
  MessagePort.prototype.postMessage = function (...given) { calls += 1; return usual.apply(this, given) }
  await new Promise(gone => setTimeout(gone, 2000))
  MessagePort.prototype.postMessage = usual
  return calls
}"""
#: Of the figures that are seen: the width of each, and how wide it is painted; and the colour that it is painted on.
FIGURES = """() => seenFigures().map(view => [view.el.clientWidth, view.canvas_view.bbox.width, view.model.border_fill_color])"""


def at_rest(page: Any) -> None:
    """Wait until there is next to nothing to do: a table that waits for something alone asks for thousands of turns."""
    deadline = time.monotonic() + 240
    while (calls := page.evaluate(CALLS)) > 500:
        assert time.monotonic() < deadline, f"{calls} in two seconds"


def test_page_rests_and_hidden_views_are_up_to_date(job_server: Any, visit: Any, built: Any) -> None:
    visit.server = job_server  # which makes views in spare time
    page = visit(f"run={RUN}&kernel=softmax&view=occupancy")
    built(page, "Occupancy")
    page.wait_for_function(SETTLED)
    at_rest(page)
    looked_at(page, "Roofline")
    before = page.evaluate(FIGURES)
    looked_at(page, "Occupancy")
    page.set_viewport_size({"width": 1200, "height": 1100})
    page.get_by_role("button", name="Toggle theme").click()
    built(page, "Occupancy")
    looked_at(page, "Roofline")
    page.wait_for_function(f"before => ({FIGURES})().every(([, , colour]) => colour !== before)", arg=before[0][2])
    after = page.evaluate(FIGURES)
    assert len(after) == len(before) == 1
    assert [width for width, *_ in after] == [width - 240 for width, *_ in before]
    assert all(width == painted for width, painted, _ in before + after)
    at_rest(page)
