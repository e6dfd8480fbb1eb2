"""Jobs in a real browser: their progress and result, and whose they are when a page is loaded anew."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tilescope_dashboard.browser.visitor import Visitor

from .conftest import PREDICTED, start_button

NVIDIA = Path("/dev/nvidia0")
browser = pytest.mark.browser


def test_a_result_that_was_opened_meanwhile_stays_opened() -> None:
    visitor = Visitor()
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
def test_profile_with_progress_then_the_result_without_a_reload(visit: Any) -> None:
    page = visit(f"run={PREDICTED}&kernel=vector_add&view=overview")
    button = start_button(page)
    page.get_by_label("eager").uncheck()
    page.get_by_label("compile", exact=True).uncheck()
    with visit.server.held():
        button.click()
        page.get_by_text("case 1 of 2").first.wait_for()
        # Another session sees the same job, and a reload does not lose it.
        other = visit(f"run={PREDICTED}")
        other.get_by_text("Profiling vector_add").wait_for()
        other.reload()
        other.get_by_text("Profiling vector_add").wait_for()
    page.get_by_text("vector_add: finished in").wait_for()
    page.wait_for_url(lambda url: PREDICTED not in url)
    page.get_by_text("Predicted, not measured").first.wait_for()
    assert page.get_by_text("this run was predicted for a").is_visible() or NVIDIA.exists()
    other.get_by_role("button", name="Show results").wait_for()


@browser
def test_cancel_stops_the_job_and_says_so(visit: Any) -> None:
    page = visit(f"run={PREDICTED}&kernel=softmax")
    with visit.server.held():
        start_button(page).click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_text("softmax: cancelled after").wait_for()
    page.get_by_role("button", name="Dismiss").click()
    page.get_by_text("softmax: cancelled after").wait_for(state="hidden")


@browser
def test_a_job_stays_the_persons_own_when_the_page_is_loaded_anew(visit: Any) -> None:
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
        other.wait_for_timeout(1500)
        assert other.get_by_role("button", name="Cancel").count() == 0
        # Another tab of the person's own can.
        tab = page.context.new_page()
        tab.goto(page.url)
        tab.get_by_role("button", name="Cancel").click()
        page.get_by_text("softmax: cancelled after").wait_for()
        other.get_by_text("softmax: cancelled after").wait_for()


@browser
def test_its_result_is_opened_once_in_the_tab_that_was_loaded_anew(visit: Any) -> None:
    page = visit(f"run={PREDICTED}&kernel=vector_add")
    with visit.server.held():
        start(page)
        tab = page.context.new_page()
        tab.goto(page.url)
        page.reload()
        page.get_by_role("button", name="Cancel", disabled=False).wait_for()
    page.wait_for_url(lambda url: PREDICTED not in url)
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


@browser
def test_what_ended_while_the_page_was_away_is_opened_when_it_is_back(visit: Any) -> None:
    page = visit(f"run={PREDICTED}&kernel=vector_add")
    address = page.url
    with visit.server.held():
        start(page)
        other = visit(f"run={PREDICTED}")
        page.goto("about:blank")
    other.get_by_role("button", name="Show results").wait_for()
    page.goto(address)
    page.wait_for_url(lambda url: PREDICTED not in url)
