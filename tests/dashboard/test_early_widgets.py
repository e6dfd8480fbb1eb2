"""The widgets' module is asked for before it is known what is on the page, and once."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.browser
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

#: Whether a figure was drawn anew, and what styles of the page were asked for meanwhile.
DRAWN = """async () => {
  const all = function* (views) { for (const view of views) { yield view; yield* all(view.children?.() ?? []) } }
  const figure = [...all(Bokeh.index)].find(view => view.model.type === "Figure" && view.el.checkVisibility())
  const asked = [], usual = CSSStyleDeclaration.prototype.getPropertyValue
  CSSStyleDeclaration.prototype.getPropertyValue = function (name) { asked.push(name); return usual.call(this, name) }
  figure.request_repaint()
  await new Promise(resolve => setTimeout(resolve, 500))
  CSSStyleDeclaration.prototype.getPropertyValue = usual
  return [figure.has_finished(), asked.filter(name => name.startsWith("--bk-"))]
}"""


@pytest.mark.parametrize("view", ["overview", "source"])
def test_the_page_begins_to_import_what_its_models_will(visit: Any, view: str) -> None:
    page = visit(f"view={view}")
    page.get_by_role("tab", name="Library", exact=True).wait_for()
    begun, models, requests = page.evaluate(ADDRESSES)
    assert len(begun) == len(requests) == 1 < len(models)
    assert {*begun, *models} == {*requests}
    # By the browser itself, which keeps what it has compiled of it; a shim would fetch it as text.
    assert page.evaluate("name => performance.getEntriesByName(name)[0].initiatorType", requests[0]) != "fetch"


def test_a_figure_that_is_drawn_asks_for_no_styles(visit: Any, built: Any) -> None:
    page = visit("kernel=softmax&view=roofline")
    built(page, "Roofline")
    assert page.evaluate(DRAWN) == [True, []]
