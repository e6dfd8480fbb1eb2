"""How Bokeh lays out the page, as ``page_layout.js`` corrects it, and without that."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tilescope_dashboard.panel_patches.page_lifetime import PAGE_LAYOUT

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


def test_a_figure_that_is_longer_than_the_screen_has_its_height_and_one_that_is_exchanged_is_not_missed(
    visit: Any, built: Any
) -> None:
    page = visit("view=claims", height=700)
    built(page, "Claims")
    ((shown, meant, screen),) = page.evaluate(HEIGHTS)
    assert shown == meant > screen
    assert page.evaluate(WITHOUT) == [True, True]


#: Writes a page of Bokeh's own with two figures in a column, each longer than the room that the page has for both. Without Panel, which
#: would have it ask another host.
PLAIN = """
import sys
from bokeh.embed import file_html; from bokeh.models import Column; from bokeh.plotting import figure; from bokeh.resources import INLINE
wide = {"sizing_mode": "stretch_width"}
figures = [figure(height=900, name=f"{number}", renderers=[], **wide) for number in range(2)]
page = file_html(Column(Column(*figures, **wide), styles={"height": "600px"}, **wide), INLINE)
# The word is in Bokeh's own script as well.
open(sys.argv[1], "w").write(f"<body><script>{sys.stdin.read()}</script>".join(page.rsplit("<body>", 1)))
"""
#: How high the figures are; how often the whole page is laid out when they have their sizes, and their column, which stands apart; and
#: what goes wrong where a figure is exchanged.
LAID_OUT = """async () => {
  const [root] = Bokeh.index.roots, [holder] = root.child_views, figures = holder.child_views
  const heights = figures.map(view => view.el.offsetHeight), times = [0, 0]
  holder.model.css_classes = ["place-one"]
  for (const [number, view] of [root, holder].entries()) {
    const usual = view._compute_layout
    view._compute_layout = () => { times[number] += 1; usual.call(view) }
  }
  figures.forEach(view => view._after_resize())
  await new Promise(resolve => setTimeout(resolve, 500))
  const counted = [...times]
  holder.layout = undefined
  try { root.compute_layout() } catch (error) { return [heights, ...counted, error.message] }
  return [heights, ...counted, ""]
}"""


def test_bokeh_squeezes_figures_lays_out_all_of_a_page_and_fails_where_one_is_exchanged(
    chromium: Any, tmp_path: Path
) -> None:
    def laid_out(script: str) -> list[Any]:
        written = tmp_path / "page.html"
        subprocess.run([sys.executable, "-c", PLAIN, str(written)], input=script, text=True, timeout=120, check=True)
        page = chromium.new_page(viewport={"width": 900, "height": 700})
        page.goto(written.as_uri())
        page.wait_for_function("() => window.Bokeh?.index?.roots?.[0]?.is_idle")
        return page.evaluate(LAID_OUT)

    heights, whole, part, failed = laid_out("")
    assert (heights, failed) == ([600, 600], "Assertion failed")
    assert whole >= 2 and part == 0
    heights, whole, part, failed = laid_out(PAGE_LAYOUT)
    assert (heights, failed) == ([900, 900], "")
    assert whole == 0 and 1 <= part <= 2
