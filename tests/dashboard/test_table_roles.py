"""What the browser tells a screen reader of a table: a grid of titles and rows, and which row is chosen."""

from typing import Any

import pytest

from .conftest import RUN

NAME = "Rows: the arrow keys choose one"


class Tree:
    """The browser's own tree of what a page is to a screen reader."""

    def __init__(self, page: Any) -> None:
        told = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
        self.nodes = {node["nodeId"]: node for node in told}

    def grid(self) -> dict[str, Any]:
        """The one table that is not hidden."""
        (found,) = (node for node in self.nodes.values() if self.role(node) == "grid" and not node["ignored"])
        return found

    def role(self, node: dict[str, Any]) -> str:
        return str(node.get("role", {}).get("value"))

    def name(self, node: dict[str, Any]) -> str:
        return str(node.get("name", {}).get("value"))

    def inside(self, node: dict[str, Any], role: str) -> list[dict[str, Any]]:
        """Nodes of that role in it, wherever they are in the page's own tree."""
        children = [self.nodes[child] for child in node["childIds"] if child in self.nodes]
        deeper = [found for child in children for found in self.inside(child, role)]
        return [child for child in children if self.role(child) == role and not child["ignored"]] + deeper


@pytest.mark.browser
def test_a_table_is_a_grid_that_holds_titles_and_rows_and_says_which_is_chosen(visit: Any, built: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax&view=sizes")
    built(page, "Sizes")
    page.locator('[class*="place-"]:not(.away) .tabulator-row:visible').nth(1).wait_for()
    tree = Tree(page)
    grid = tree.grid()
    assert tree.name(grid) == NAME
    titles = [tree.name(title) for title in tree.inside(grid, "columnheader")]
    assert {"workload", "impl."} <= set(titles)
    rows = tree.inside(grid, "row")
    assert len(rows) == 1 + page.locator('[class*="place-"]:not(.away) .tabulator-row:visible').count()
    assert all(tree.inside(row, "gridcell") or tree.inside(row, "columnheader") for row in rows)
    # Buttons that turn its pages are in no grid.
    assert not tree.inside(grid, "button")
    place = page.get_by_role("grid", name=NAME).locator("visible=true")
    place.focus()
    for step in (1, 2):
        page.keyboard.press("ArrowDown")
        page.locator(f".tabulator-row:visible:nth-child({step}).tabulator-selected").wait_for()
        active = place.get_attribute("aria-activedescendant")
        chosen = page.locator(f'.tabulator-row:visible[aria-selected="true"]#{active}')
        assert chosen.count() == 1 and "tabulator-selected" in chosen.get_attribute("class")
    page.keyboard.press("Escape")
    page.locator(".tabulator-selected:visible").wait_for(state="detached")
    assert place.get_attribute("aria-activedescendant") is None
    assert page.locator('.tabulator-row:visible[aria-selected="true"]').count() == 0
