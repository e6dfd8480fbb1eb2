"""Back and Forward of the browser change the page, not only its address."""

from collections.abc import Callable
from typing import Any

from playwright.sync_api import expect

#: How long a slow machine may take, in milliseconds.
PATIENCE = 120_000


def test_back_and_forward_go_through_views_and_kernels(visit: Any, built: Callable[[Any, str], None]) -> None:
    page = visit("run=20260102-030405-aaaa&kernel=softmax&theme=light")

    def at(title: str) -> None:
        expect(page.get_by_role("tab", name=title, exact=True)).to_have_attribute(
            "aria-selected", "true", timeout=PATIENCE
        )
        built(page, title)

    at("Summary")
    entries = page.evaluate("history.length")
    for title in ("Timeline", "Sizes"):
        page.get_by_role("tab", name=title, exact=True).click()
        at(title)
    # One entry a change: what the page itself adds to its address is none.
    assert page.evaluate("history.length") == entries + 2
    page.go_back()
    at("Timeline")
    assert "view=timeline" in page.url
    page.go_back()
    at("Summary")
    page.go_forward()
    at("Timeline")
    page.go_forward()
    at("Sizes")
    assert page.evaluate("history.length") == entries + 2
