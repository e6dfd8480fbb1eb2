"""How Bokeh lays out the page, as ``page_layout.js`` corrects it, and without that."""

from typing import Any

import pytest

pytestmark = pytest.mark.browser
#: The views of Bokeh's that are seen and are figures.
FIGURES = """
  const all = function* (views) { for (const view of views) { yield view; yield* all(view.children?.() ?? []) } }
  const figures = [...all(Bokeh.index)].filter(view => view.model.type === "Figure" && view.el.checkVisibility({visibilityProperty: true}))
"""
HEIGHTS = f"() => {{ {FIGURES} return figures.map(view => [view.el.offsetHeight, view.model.height, innerHeight]) }}"
#: Takes the layout of what holds a figure away, as while that is exchanged for another one, and lays out the page.
WITHOUT = f"""() => {{ {FIGURES}
  const [holder] = figures.map(view => view.parent)
  const known = holder.layout != null
  holder.layout = undefined
  Bokeh.index.roots[0].compute_layout()
  return [known, holder.layout != null]
}}"""


def test_long_figure_has_its_height_and_may_be_exchanged(visit: Any, built: Any) -> None:
    page = visit("view=claims", height=700)
    built(page, "Claims")
    ((shown, meant, screen),) = page.evaluate(HEIGHTS)
    assert shown == meant > screen
    assert page.evaluate(WITHOUT) == [True, True]
