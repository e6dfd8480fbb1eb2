"""What the page does before all of it is there: its widgets' module, a table that is not built, figures that are exchanged."""

from typing import Any

import pytest

from .conftest import RUN, start_button

pytestmark = [pytest.mark.browser]
#: What the page's HTML imports, what its models import, and what was requested.
ADDRESSES = """() => {
  const whole = address => new URL(address, document.baseURI).href
  const begun = [...document.scripts].map(script => /importShim\\?\\.\\((".*?")\\)/.exec(script.text)).filter(Boolean)
  const models = [...Bokeh.documents[0]._all_models.values()].filter(model => model.bundle === "url")
  const requests = performance.getEntriesByType("resource").filter(entry => entry.name.includes("bundle.js"))
  return [begun.map(found => JSON.parse(found[1])), models.map(model => model.esm), requests.map(entry => entry.name)].map(
    addresses => addresses.map(whole)
  )
}"""

#: Widths that the visible figures leave of what holds them, a figure's share, and of what was drawn in them.
WIDTHS = """() => seenFigures().map(({el, frame}, _, every) => {
  const beside = every.filter(other => other.el.parentNode === el.parentNode && other.el.offsetTop === el.offsetTop)
  const filled = beside.reduce((sum, other) => sum + other.el.offsetWidth, 0)
  return [(el.parentNode.host.clientWidth - filled) / beside.length, el.offsetWidth - frame.bbox.right]
})"""
#: Presses Profile as soon as a figure is drawn, before the page is at rest; and says whether a pointer would have reached it.
PRESSED_EARLY = """async () => {
  const drawn = () => allViews().some(view => view.model.type === "Figure" && view.has_finished())
  const there = () => drawn() && allElements("button").find(at => at.textContent === "Profile")
  let button
  while (!(button = there())) await new Promise(resolve => setTimeout(resolve, 10))
  const {x, y, width, height} = button.getBoundingClientRect()
  const over = document.elementFromPoint(x + width / 2, y + height / 2)
  button.click()
  return over.id !== "loader"
}"""


def test_profile_pressed_early_opens_form(visit: Any) -> None:
    page = visit("kernel=softmax&view=summary")
    assert page.evaluate(PRESSED_EARLY)
    start_button(page).wait_for()


def test_page_imports_widgets_once_and_figures_fit(visit: Any, built: Any) -> None:
    page = visit("kernel=softmax&view=summary")
    built(page, "Summary")
    begun, models, requests = page.evaluate(ADDRESSES)
    assert len(begun) == len(requests) == 1 < len(models)
    assert {*begun, *models} == {*requests}
    # By the browser itself, which keeps what it has compiled of it; a shim would fetch it as text.
    assert page.evaluate("name => performance.getEntriesByName(name)[0].initiatorType", requests[0]) != "fetch"
    # Those of a view that is opened later, too.
    for title, width in (("Summary", 1000), ("Sizes", 1400)):
        page.get_by_role("tab", name=title, exact=True).click()
        built(page, title)
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(1500)
        for outside, inside in page.evaluate(WIDTHS):
            assert 0 <= outside <= 20
            assert 0 <= inside <= 40


#: Draws the page's table anew and, before it is built, tells it another number of pages, as a frame that comes then does.
EARLY = """async () => {
  const model = [...Bokeh.documents[0]._all_models.values()].find((model) => model.pagination === "remote")
  const view = Bokeh.index.find_one_by_id(model.id)
  const pages = model.max_page
  view.render()
  const before = view.tabulator.initialized
  model.max_page = pages + 3
  await new Promise((built) => view.tabulator.on("tableBuilt", built))
  return [before, view.tabulator.getPageMax() - pages, view.tabulator.getPage()]
}"""


def test_page_count_before_the_table_is_built_counts(visit: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax&view=roofline")
    page.locator('[class*="place-"]:visible .tabulator-row:visible').first.wait_for()
    warned: list[str] = []
    page.on("console", lambda said: warned.append(said.text))
    assert page.evaluate(EARLY) == [False, 3, 1]
    page.wait_for_timeout(500)
    assert not [text for text in warned if "Not Initialized" in text]


HEIGHTS = "() => seenFigures().map(view => [view.el.offsetHeight, view.model.height, innerHeight])"
#: Takes the layout of what holds a figure away, as while that is exchanged for another one, and lays out the page.
WITHOUT = """() => {
  const holder = seenFigures()[0].parent
  const known = holder.layout != null
  holder.layout = undefined
  Bokeh.index.roots[0].compute_layout()
  return [known, holder.layout != null]
}"""


def test_long_figure_has_its_height_and_may_be_exchanged(visit: Any, built: Any) -> None:
    page = visit("view=claims", height=700)
    built(page, "Claims")
    ((shown, meant, screen),) = page.evaluate(HEIGHTS)
    assert shown == meant > screen
    assert page.evaluate(WITHOUT) == [True, True]
