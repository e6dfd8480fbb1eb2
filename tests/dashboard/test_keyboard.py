"""The app without a mouse: every control has a name and a turn, and keys do what the sheet says."""

from html import escape
from pathlib import Path
from typing import Any

import pytest
from tilescope_dashboard.browser.keyboard import KEYS
from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import Chart
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.traffic import Traffic

from .conftest import RUN, TITLES, looked_at, start_button

#: What has the focus, through the shadow roots: its role or tag, and its name.
FOCUSED = """() => {
  let at = document.activeElement
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
  const labels = [at.getAttribute("aria-label"), at.labels?.[0]?.innerText, at.title, at.innerText]
  return [at.getAttribute("role") || at.tagName.toLowerCase(), labels.find(label => label) || ""]
}"""
ROLES = {
    "button", "checkbox", "combobox", "link", "listbox", "radio", "slider", "spinbutton", "switch", "tab", "textbox",
}  # fmt: skip


def test_the_text_of_a_headline() -> None:
    assert html_text.title_of(html_text.heading("a <b> & c", "more")) == "a <b> & c"
    assert html_text.title_of(html_text.notice("info", escape("x"))) == ""


@pytest.mark.parametrize(("view", "said"), [(Roofline, "of roofline at"), (Traffic, "the minimum")])
def test_a_figure_says_its_headline_and_follows_it(
    view: type, said: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(runs))
    state = State(run=RUN, kernel="softmax", view=view.name_in_address)
    shown = view(state)
    shown.refresh()

    def spoken() -> list[str]:
        plots = [place.object for place in shown._layout.select(Chart)]
        assert all(plot.html_attributes["role"] == "figure" for plot in plots)
        return [plot.html_attributes["aria-label"] for plot in plots]

    first = spoken()
    assert all(text.startswith(shown.title) or shown.title in text for text in first)
    assert all(said in text and html_text.title_of(shown._head.object) in text for text in first)
    state.kernel = "layer_norm"
    assert all(html_text.title_of(shown._head.object) in text for text in spoken())


def test_esc_chooses_no_row(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(runs))
    shown = Roofline(State(run=RUN, kernel="softmax", view="roofline"))
    shown.refresh()
    shown._table.selection = [2]
    shown.clear()
    assert (shown._table.selection, shown._source.selected.indices) == ([], [])


def focused(page: Any) -> list[str]:
    return page.evaluate(FOCUSED)


def tab_to(page: Any, role: str, name: str) -> None:
    """Press Tab until that has the focus; a page has less than a hundred stops."""
    for _ in range(100):
        if focused(page)[0] == role and name in focused(page)[1]:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"the Tab key does not reach {role} {name!r}")


@pytest.mark.browser
def test_from_the_first_key_to_a_saved_table_without_a_mouse(visit: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax")
    page.get_by_text("85.4 %").first.wait_for()
    page.get_by_role("tab", name="Library").wait_for()
    page.get_by_role("button", name="Keys").wait_for()
    # The first stop leads past the bar.
    page.keyboard.press("Tab")
    assert focused(page) == ["a", "Skip to the views"]
    page.keyboard.press("Enter")
    assert focused(page) == ["tab", "Summary"]
    # A number is a view.
    place = [tab.inner_text() for tab in page.get_by_role("tab").all()].index("Why") + 1
    page.keyboard.press(str(place))
    page.wait_for_url("**view=advice**")
    assert focused(page) == ["tab", "Advice"]
    page.keyboard.press("]")
    page.get_by_text("of roofline at").wait_for()
    page.wait_for_url("**view=roofline**")
    assert focused(page) == ["tab", "Roofline"]
    # The figure is painted first, and named with the headline.
    page.locator('[role="figure"][aria-label*="of roofline at"]').first.wait_for(state="attached")
    # The sheet opens, names every key, and closes with Esc.
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keys")
    sheet.wait_for()
    for key, does in KEYS:
        assert sheet.get_by_text(key, exact=True).is_visible() and sheet.get_by_text(does, exact=True).is_visible()
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    sheet.wait_for(state="hidden")
    assert "view=roofline" in page.url
    # A tool of the figure, which has a name.
    tab_to(page, "button", "Save as SVG")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".svg")
    # Rows are chosen with the arrows and let go with Esc.
    tab_to(page, "grid", "Rows")
    page.keyboard.press("ArrowDown")
    page.locator('[class*="place-"]:not(.away) .tabulator-selected:visible').wait_for()
    first = page.locator('[class*="place-"]:not(.away) .tabulator-selected:visible').inner_text()
    page.keyboard.press("ArrowDown")
    page.locator('[class*="place-"]:not(.away) .tabulator-selected:visible').filter(has_not_text=first).wait_for()
    assert page.locator('[class*="place-"]:not(.away) .tabulator-selected:visible').count() == 1
    page.keyboard.press("Escape")
    page.locator('[class*="place-"]:not(.away) .tabulator-selected:visible').wait_for(state="detached")
    tab_to(page, "button", "Save this table as CSV")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".csv")


@pytest.mark.browser
@pytest.mark.parametrize("count", [2, len(TITLES)])
def test_every_view_has_a_key_but_for_who_is_writing(visit: Any, count: int) -> None:
    page = visit(f"run={RUN}&kernel=softmax")
    page.get_by_role("tab", name="Library").wait_for()
    page.get_by_role("button", name="Keys").wait_for()

    def seen() -> str:
        return page.get_by_role("tab", selected=True).last.inner_text()

    # From the last of the digits on, round and back; each waits until the one before has been answered.
    page.keyboard.press("9")
    page.get_by_role("tab", name=TITLES[-1], selected=True).wait_for()
    for name in TITLES[:count]:
        page.keyboard.press("]")
        page.get_by_role("tab", name=name, exact=True, selected=True).wait_for()
        assert focused(page) == ["tab", name]
    for name in (TITLES[count - 2], TITLES[count - 3]):
        page.keyboard.press("[")
        page.get_by_role("tab", name=name, exact=True, selected=True).wait_for()
    # AfterPaint AltGr it is the same key; with Ctrl it is the browser's.
    press = "key => document.dispatchEvent(new KeyboardEvent('keydown', key))"
    page.evaluate(press, {"key": "]", "ctrlKey": True, "altKey": True})
    page.get_by_role("tab", name=TITLES[count - 2], exact=True, selected=True).wait_for()
    page.evaluate(press, {"key": "[", "ctrlKey": True})
    page.evaluate(press, {"key": "[", "metaKey": True})
    page.evaluate(press, {"key": "1", "altKey": True})
    page.wait_for_timeout(300)
    start_button(page)
    size = page.get_by_label("another size")
    size.focus()
    page.keyboard.type("128x4?]")
    assert size.input_value() == "128x4?]"
    assert page.get_by_role("dialog", name="Keys").count() == 0
    assert seen() == TITLES[count - 2]


@pytest.mark.browser
def test_every_control_of_every_view_has_a_name(visit: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax")
    start_button(page)
    asking = page.context.new_cdp_session(page)
    for title in TITLES:
        looked_at(page, title)
        seen = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in asking.send("Accessibility.getFullAXTree")["nodes"]
            if not node.get("ignored") and node.get("role", {}).get("value") in ROLES
        ]
        assert len(seen) > 15
        assert not [role for role, name in seen if not name.strip()], title
