"""A table that is wider than the page shows that it goes on."""

from typing import Any

#: The masks of the tables that are seen, with whether there are columns off the page.
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


def test_columns_off_the_page_fade_until_they_are_reached(visit: Any, built: Any) -> None:
    page = visit("view=home", width=390)
    built(page, "Kernels")
    # The table comes once the page is there.
    page.wait_for_function(f"() => ({MASKS})().some(([wide]) => wide)")
    tables = page.evaluate(MASKS)
    assert all(wide == fades for wide, fades in tables)
    # Scrolled again each time: a table that is filled meanwhile begins anew.
    page.wait_for_function(f"() => {{ ({TO_THE_END})(); return !({MASKS})().some(([, fades]) => fades) }}")
