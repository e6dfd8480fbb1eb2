"""Jobs in a real browser: their progress and result, and whose they are when a page is loaded anew."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tilescope_dashboard.session.jobs import JobManager
from tilescope_dashboard.views.jobs.tab_job import TabJob

from .conftest import PREDICTED, start_button

browser = pytest.mark.browser


def test_visitor_keeps_opened_result() -> None:
    visitor = TabJob(JobManager())
    visitor._handle_msg({"person": "p", "tab": "t", "opened": None})
    assert (visitor.person, visitor.tab, visitor.opened) == ("p", "t", "")
    visitor.opened = "new"
    visitor._handle_msg({"person": "p", "tab": "t", "opened": "old"})
    assert visitor.opened == "new"


def start(page: Any) -> None:
    """Start a job and wait until it is under way."""
    start_button(page).click()
    page.get_by_role("button", name="Cancel").wait_for()


@pytest.fixture(scope="module")
def server(job_server: Any) -> Iterator[Any]:
    yield job_server
    assert not job_server.failures()


@browser
def test_job_stays_own_after_reload_and_cancels(visit: Any) -> None:
    page = visit(f"run={PREDICTED}&kernel=softmax")
    with visit.server.held():
        start(page)
        page.reload()
        page.get_by_text("Profiling softmax").wait_for()
        page.get_by_role("button", name="Cancel", disabled=False).wait_for()
        # Someone else, with another browser, sees it and can do nothing about it. The address tells them no secret.
        other = visit(page.url.partition("?")[2])
        other.get_by_text("Profiling softmax").wait_for()
        other.get_by_role("tab", name="Library").wait_for()
        # The button may come after the text, and goes when the browser has said who this is.
        for _ in range(2):
            other.wait_for_timeout(1500)
            other.get_by_role("button", name="Cancel").wait_for(state="detached")
        # Another tab of the person's own can.
        tab = page.context.new_page()
        tab.goto(page.url)
        tab.get_by_role("button", name="Cancel").click()
        for one in (page, other):
            one.get_by_text("softmax: cancelled after").wait_for()
    page.get_by_role("button", name="Dismiss").click()
    page.get_by_text("softmax: cancelled after").wait_for(state="hidden")


@browser
def test_job_progress_then_result_opens_once(visit: Any) -> None:
    page = visit(f"run={PREDICTED}&kernel=vector_add&view=overview")
    button = start_button(page)
    # Without a mouse: what is chosen, and the button.
    for name in ("torch.add", "torch.compile"):
        box = page.get_by_label(name, exact=True)
        box.focus()
        page.keyboard.press("Space")
        assert not box.is_checked()
    button.focus()
    with visit.server.held():
        page.keyboard.press("Enter")
        page.get_by_text("case 1 of 2").first.wait_for()
        assert button.evaluate("button => button === button.getRootNode().activeElement")
        tab = page.context.new_page()
        tab.goto(page.url)
        page.reload()
        page.get_by_role("button", name="Cancel", disabled=False).wait_for()
    page.get_by_text("vector_add: finished in").wait_for()
    page.wait_for_url(lambda url: PREDICTED not in url)
    page.get_by_text("Predicted, not measured").first.wait_for()
    made = re.search(r"run=([\w-]+)", page.url)
    assert made
    # Another tab keeps what it looks at, and so does this one from now on.
    tab.get_by_role("button", name="Show results").wait_for()
    assert PREDICTED in tab.url
    page.goto(page.url.replace(made[1], PREDICTED))
    page.get_by_role("tab", name="Library").wait_for()
    page.wait_for_timeout(1500)
    assert PREDICTED in page.url
    assert not page.get_by_role("button", name="Show results").count(), "how it ended was told already"
