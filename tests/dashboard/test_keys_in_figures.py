"""Keys in a figure, and after a choice in a list."""

from typing import Any

from playwright.sync_api import expect

#: Both ends of the timeline's axis.
SEEN = """() => {
  const all = function* (views) { for (const view of views) { yield view; yield* all(view.children?.() ?? []) } }
  const figure = [...all(Bokeh.index)].find(view => view.model.type === "Figure" && view.el.checkVisibility())
  return [figure.model.x_range.start, figure.model.x_range.end]
}"""
FOCUS = """() => {
  const every = (selector, root = document) => [...root.querySelectorAll(selector), ...[...root.querySelectorAll("*")]
    .flatMap(element => element.shadowRoot ? every(selector, element.shadowRoot) : [])]
  every(".bk-events").find(element => element.checkVisibility()).focus()
}"""


def test_keys_move_along_a_timeline_and_numbers_work_after_a_list(visit: Any, built: Any) -> None:
    page = visit("run=20260102-030405-aaaa&kernel=softmax&view=timeline")
    built(page, "Timeline")
    start, end = page.evaluate(SEEN)
    page.evaluate(FOCUS)
    page.keyboard.press("+")
    nearer = page.evaluate(SEEN)
    assert abs((nearer[1] - nearer[0]) - (end - start) / 2) < (end - start) / 1000
    page.keyboard.press("ArrowRight")
    later = page.evaluate(SEEN)
    assert later[0] > nearer[0] and later[1] > nearer[1]
    page.keyboard.press("0")
    assert page.evaluate(SEEN) == [start, end]
    workload = page.get_by_role("combobox", name="workload", exact=True).locator("visible=true").first
    workload.focus()
    workload.press("Enter")
    page.keyboard.press("Escape")
    expect(workload).to_be_focused()
    page.keyboard.press("3")
    expect(page.get_by_role("tab", name="Advice", exact=True)).to_have_attribute("aria-selected", "true")
