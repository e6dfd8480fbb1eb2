"""The app in a real browser: what people press, and what they then see."""

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

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

MASKS = """() => allElements(".tabulator-tableholder").filter(element => element.checkVisibility()).map(element =>
  [element.scrollWidth > element.clientWidth, getComputedStyle(element).maskImage !== "none"])"""
#: The names of the memory's roofs: one value each on a phone.
ROOFS = """() => seenFigures()[0].model.renderers.find(one => one.name === "memory").data_source.data.text.join()"""
#: Tops and heights of the fields of the open view.
FIELDS = """() => [...new Set(allElements(".MuiOutlinedInput-root").filter(one => one.checkVisibility({visibilityProperty: true}))
  .map(one => one.getBoundingClientRect()).filter(({top}) => top > 56).map(({top, height}) => `${top} ${height}`))]"""
TO_THE_END = """() => { for (const element of allElements(".tabulator-tableholder")) element.scrollLeft = element.scrollWidth }"""


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
    page.get_by_role("tablist", name="Views").first.wait_for()
    # Of the letters only those that are written are asked for.
    fonts = page.evaluate(
        "[...document.fonts].filter(font => font.status !== 'unloaded').map(font => font.unicodeRange)"
    )
    assert fonts and not [letters for letters in fonts if "U+400" in letters or "U+0-10FFFF" in letters], fonts
    assert page.locator("h2", has_text="cases in this run").count() == 1
    # The damaged run is listed with what is wrong with it, not hidden and not fatal.
    page.get_by_text("cannot be read").first.wait_for()
    page.get_by_role("link", name="What the columns of cases mean").click()
    page.locator("dt:focus", has_text="kernel").wait_for()
    page.keyboard.press("Escape")
    assert page.get_by_role("alert").filter(has_text="server").count() == 0
    for called in ("cases", "runs"):
        page.get_by_role("grid", name=f"{called}: ").wait_for()
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
        page.locator('[class*="place-"]:visible .tabulator-row:visible').first.wait_for()
    # Fields in a row stand in one line.
    look_at(page, "Fusing")
    page.get_by_role("textbox", name="chain").wait_for()
    assert len(page.evaluate(FIELDS)) == 1


def test_phone_roofline_and_wide_table(visit: Any, built: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax&view=roofline", width=390, height=844)
    drawn(page)
    assert not page.get_by_role("button", name="Start profiling").is_visible()
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    for name in ("More", "Toggle theme"):
        box = page.get_by_role("button", name=name, exact=True).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, name
    # Columns that are off the page fade out until they are reached.
    look_at(page, "Kernels")
    built(page, "Kernels")
    page.wait_for_function(f"() => ({MASKS})().some(([wide]) => wide)")
    assert all(wide == fades for wide, fades in page.evaluate(MASKS))
    # Scrolled again each time: a table that is filled meanwhile begins anew.
    page.wait_for_function(f"() => {{ ({TO_THE_END})(); return !({MASKS})().some(([, fades]) => fades) }}")
    # Turned on its side it has room for more.
    look_at(page, "Roofline")
    built(page, "Roofline")
    brief = page.evaluate(ROOFS)
    page.set_viewport_size({"width": 1000, "height": 844})
    page.wait_for_function(f"brief => ({ROOFS})().length > brief.length", arg=brief)
    assert page.get_by_role("alert").count() == 0


#: Presses keys, all of them before the server can answer. Says of each whether the browser may act on it.
AT_ONCE = """keys => keys.map(key => document.body.dispatchEvent(
  new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true, composed: true})))"""


@pytest.mark.parametrize("opens", ["/", "Find a kernel, a run, a view or an action (/)"])
def test_letters_typed_before_the_palette_is_there_are_in_it(visit: Any, opens: str) -> None:
    page = visit(f"run={RUN}&kernel=softmax")
    button = page.get_by_role("button", name="Find a kernel")
    button.wait_for()
    keys = [*"roofling", "Backspace", "Enter"]
    if opens != "/":
        left = button.evaluate(f"(button, keys) => {{ button.click(); return ({AT_ONCE})(keys) }}", keys)
    else:
        left = page.evaluate(AT_ONCE, ["/", *keys])
    assert not any(left), "Enter would press the button that has the focus"
    page.keyboard.type("e")
    page.get_by_role("option", name="Roofline (view)").wait_for()
    # The letters open panels, where no palette is on its way.
    assert page.get_by_role("dialog").get_by_role("combobox").input_value() == "roofline"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**view=roofline**")
    assert "panel" not in page.url


def test_bar_opens_and_closes_what_it_names(visit: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax", width=1000)
    more, run = (page.get_by_role("button", name=name, exact=True) for name in ("More", "This run"))
    page.wait_for_function("more => more.ariaExpanded === 'false'", arg=more.element_handle())
    assert not run.is_visible()
    more.click()
    run.wait_for()
    assert more.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    run.wait_for(state="hidden")
    more.click()
    run.click()
    page.get_by_role("dialog", name="This run").wait_for()
    assert not run.is_visible()
    page.keyboard.press("Escape")
    page.wait_for_url(lambda url: "panel" not in url)
    # Views of all kernels have no run.
    page.get_by_role("tab", name="Library", exact=True).click()
    page.wait_for_url("**view=home**")
    more.click()
    page.get_by_role("button", name="GPU", exact=True).wait_for()
    assert run.count() == 0 or not run.is_visible()


def test_gpu_panel_closes_by_key_and_by_press_elsewhere(visit: Any, built: Any) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a GPU")
    # A link of before, to the view that it was.
    page = visit(f"run={RUN}&kernel=softmax&view=gpu")
    why = page.get_by_text("No readings of a GPU here:")
    why.wait_for()
    built(page, "Summary")
    page.get_by_role("dialog", name="GPU").get_by_text("The open run's GPU: Synthetic GPU").wait_for()
    page.keyboard.press("Escape")
    why.wait_for(state="detached")
    opener = page.get_by_role("button", name="GPU", exact=True)
    opener.wait_for()
    opener.click()
    why.wait_for()
    page.mouse.click(5, 5)
    why.wait_for(state="detached")
    page.wait_for_url(lambda url: "panel" not in url)
    page.wait_for_function("button => button === button.getRootNode().activeElement", arg=opener.element_handle())


def shadow(page: Any, title: str) -> Any:
    """A figure's tool by its tooltip."""
    return page.locator(f'.bk-Figure:visible [title="{title}"]').first


def test_browser_saves_tables_and_figures(visit: Any, tmp_path: Path) -> None:
    page = visit(f"run={RUN}&kernel=softmax&view=roofline&theme=dark")
    page.locator('[class*="place-"]:visible .tabulator-row:visible').first.wait_for()
    name = f"softmax-{RUN}-Synthetic-GPU"
    for choice in ("hbm", "l2"):  # the second file holds other rows
        if choice == "l2":
            page.get_by_role("button", name="L2", exact=True).click()
            page.locator(
                '[class*="place-"]:visible .tabulator-cell:visible', has_text=re.compile("^L2$")
            ).first.wait_for()
        with page.expect_download() as download:
            page.get_by_role("button", name="CSV").click()
        assert download.value.suggested_filename == f"tilescope-roofline-points-{name}.csv"
        download.value.save_as(tmp_path / choice)
        assert "performance (flop/second)" in (tmp_path / choice).read_text().splitlines()[0].split(",")
    assert len((tmp_path / "l2").read_text()) > len((tmp_path / "hbm").read_text())
    with page.expect_download():  # what did not change is saved again all the same
        page.get_by_role("button", name="CSV").click()
    with page.expect_download() as download:
        shadow(page, "Save as SVG").click()
    assert download.value.suggested_filename == f"tilescope-roofline-{name}.svg"
    download.value.save_as(tmp_path / "figure.svg")
    drawn = ElementTree.parse(tmp_path / "figure.svg").getroot()  # noqa: S314 - our own figure
    assert drawn.tag.endswith("svg")
    assert "performance, flop/s" in "".join(drawn.itertext())
    with page.expect_download() as download:
        shadow(page, "Save as PNG").click()
    assert download.value.suggested_filename == f"tilescope-roofline-{name}.png"


LISTS = ("kernel", "size", "pass", "implementation", "baseline", "run")


def choose(page: Any, label: str, option: str) -> None:
    """Choose in one of the bar's lists, by the name that a screen reader has for it."""
    page.get_by_role("combobox", name=label, exact=True).locator("visible=true").last.click()
    page.get_by_role("listbox").get_by_text(option, exact=True).click()
    page.get_by_role("listbox").wait_for(state="detached")


def test_bar_choice_is_in_the_address_and_back_undoes_it(visit: Any, built: Any) -> None:
    page = visit("kernel=softmax&theme=light")
    built(page, "Summary")
    head = page.locator('[class*="place-"]:visible h2').first
    before = head.inner_text()
    for name in LISTS:
        assert page.get_by_role("combobox", name=name, exact=True).count() >= 1, name
    choose(page, "size", "1823x781-fp32")
    page.wait_for_url("**case=**1823x781**")
    page.get_by_text("1823x781-fp32, forward").first.wait_for()
    page.get_by_role("tab", name="Sizes", exact=True).click()
    built(page, "Sizes")
    page.go_back()
    built(page, "Summary")
    assert "1823x781" in page.url
    page.go_back()
    page.wait_for_function("() => !location.search.includes('1823x781')")
    page.locator("h2:visible", has_text=before).wait_for()
    # It was looked at all the time, and stays in sight.
    page.mouse.move(800, 700)
    page.mouse.wheel(0, 600)
    page.wait_for_timeout(300)
    assert page.get_by_role("combobox", name="size", exact=True).is_visible()
    assert page.get_by_role("combobox", name="size", exact=True).bounding_box()["y"] > 0
