"""The app in a real browser: what people press, and what they then see."""

import re
from typing import Any

import pytest

from .conftest import RUN, look_at

pytestmark = pytest.mark.browser

POINTS = """() => {
  for (const doc of Bokeh.documents) for (const model of doc._all_models.values()) if (model.name === "points") {
    const owner = [...doc._all_models.values()].find(m => m.renderers && m.renderers.includes(model))
    const view = owner && Bokeh.index.find_one(owner)
    if (!view || !view.frame) continue
    const {x, y} = view.el.getBoundingClientRect(), data = model.data_source.data
    return {chosen: [...model.data_source.selected.indices],
            at: [...data.height].map((h, i) => [x + view.frame.x_scale.compute(data.intensity[i]), y + view.frame.y_scale.compute(h)])}
  }
  return null
}"""

MASKS = """() => {
  const every = (selector, root = document) => [...root.querySelectorAll(selector), ...[...root.querySelectorAll("*")]
    .flatMap(element => element.shadowRoot ? every(selector, element.shadowRoot) : [])]
  return every(".tabulator-tableholder").filter(element => element.checkVisibility()).map(element =>
    [element.scrollWidth > element.clientWidth, getComputedStyle(element).maskImage !== "none"])
}"""
TO_THE_END = """() => {
  const every = (selector, root = document) => [...root.querySelectorAll(selector), ...[...root.querySelectorAll("*")]
    .flatMap(element => element.shadowRoot ? every(selector, element.shadowRoot) : [])]
  for (const element of every(".tabulator-tableholder")) element.scrollLeft = element.scrollWidth
}"""


def drawn(page: Any) -> dict[str, Any]:
    """Where the roofline's points are on the page, once they are and the layout has settled."""
    page.wait_for_function(POINTS)
    seen, found = None, page.evaluate(POINTS)
    while found != seen:
        page.wait_for_timeout(400)
        seen, found = found, page.evaluate(POINTS)
    return found


def test_page_opens_on_numbers_and_views(visit: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax&view=overview")
    page.get_by_text("85.4 %").first.wait_for()
    # Nothing is told of to who hears the page that has nothing to say.
    for _ in range(100):  # views that are prepared out of sight are silent once they are whole
        heard = page.locator("body").aria_snapshot()
        silent = not re.findall(r"^ *- (?:navigation|heading(?! \")).*", heard, re.MULTILINE)
        if silent:
            break
        page.wait_for_timeout(200)
    assert silent, heard
    assert '- heading "Tilescope" [level=1]' in heard
    # Of the letters only those that are written are asked for.
    fonts = page.evaluate(
        "[...document.fonts].filter(font => font.status !== 'unloaded').map(font => font.unicodeRange)"
    )
    assert fonts and not [letters for letters in fonts if "U+400" in letters or "U+0-10FFFF" in letters], fonts
    assert page.locator("h2", has_text="cases in this run").count() == 1
    # The damaged run is listed with what is wrong with it, not hidden and not fatal.
    page.get_by_text("cannot be read").first.wait_for()
    page.get_by_role("link", name="What the columns mean").first.click()
    page.locator("dt:focus", has_text="kernel").wait_for()
    page.keyboard.press("Escape")
    assert page.get_by_role("alert").filter(has_text="server").count() == 0
    # Every view shows its chart and its table, and is in the address.
    said = {
        "Roofline": "roof at",
        "HBM traffic": "less than its inputs and outputs",
        "Tune": "From reductions: autotune sweeps, recorded",  # this run has none: another's, which is said
        "Occupancy": "limited by",
        "Overview": "The dashed line is the floor",
    }
    for title, text in said.items():
        look_at(page, title)
        page.locator("h2:visible, p:visible").get_by_text(text).first.wait_for()
        name = {"HBM traffic": "traffic", "Tune": "autotune"}.get(title, title.lower())
        page.wait_for_url(f"**view={name}**")
        page.locator(".bk-Figure canvas:visible").first.wait_for()
        page.locator('[class*="place-"]:not(.away) .tabulator-row:visible').first.wait_for()


def test_phone_roofline_and_wide_table(visit: Any, built: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax&view=roofline", width=390, height=844)
    drawn(page)
    assert not page.get_by_role("button", name="Start profiling").is_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    # Columns that are off the page fade out until they are reached.
    look_at(page, "Kernels")
    built(page, "Kernels")
    page.wait_for_function(f"() => ({MASKS})().some(([wide]) => wide)")
    assert all(wide == fades for wide, fades in page.evaluate(MASKS))
    # Scrolled again each time: a table that is filled meanwhile begins anew.
    page.wait_for_function(f"() => {{ ({TO_THE_END})(); return !({MASKS})().some(([, fades]) => fades) }}")
