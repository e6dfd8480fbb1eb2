"""A table of many pages whose number of pages changes before the browser has built it."""

from typing import Any

import pytest

from .conftest import RUN

pytestmark = pytest.mark.browser
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
    page.locator('[class*="place-"]:not(.away) .tabulator-row:visible').first.wait_for()
    warned: list[str] = []
    page.on("console", lambda said: warned.append(said.text))
    assert page.evaluate(EARLY) == [False, 3, 1]
    page.wait_for_timeout(500)
    assert not [text for text in warned if "Not Initialized" in text]
