"""The app without a mouse and by ear: every control has a name and a turn, shows the focus, and keys do what the sheet says."""

from html import escape
from typing import Any

import pytest
from tilescope_dashboard.browser.page import KEYS
from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.charts import Chart
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.roofline import Roofline

from .conftest import RUN, TITLES, looked_at, start_button

#: What has the focus, through the shadow roots: its role or tag, its name, and whether it shows: the ring around it or around
#: what is drawn for it, or a field's frame.
FOCUS = """() => {
  let at = document.activeElement
  while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement
  const names = [at.getAttribute("aria-label"), at.labels?.[0]?.innerText, at.title, at.innerText, at.placeholder]
  const ring = element => {
    const {outlineStyle, outlineWidth, outlineColor} = getComputedStyle(element)
    return outlineStyle !== "none" && parseFloat(outlineWidth) >= 2 && !/, 0\\)$/.test(outlineColor)
  }
  const around = [at, at.closest(".MuiButtonBase-root"), at.closest(".MuiSwitch-root")].filter(Boolean)
  const frame = at.closest(".MuiInputBase-root")?.querySelector("fieldset")
  const {width, height} = (around.at(-1)).getBoundingClientRect()
  const seen = around.some(ring) || (frame && parseFloat(getComputedStyle(frame).borderTopWidth) >= 3)
  const role = at.getAttribute("role") || at.tagName.toLowerCase()
  return [role, (names.find(Boolean) || "").split("\\n")[0], Boolean(seen) && width > 0 && height > 0]
}"""
#: Both ends of the timeline's axis.
SEEN = """() => (({start, end}) => [start, end])(seenFigures()[0].model.x_range)"""
CANVAS = """() => allElements(".bk-events").find(element => element.checkVisibility()).focus()"""
#: Widgets show no change until ``release``, as on a busy page: React asks for its turns by messages to itself.
HOLD = """() => {
  const post = MessagePort.prototype.postMessage, held = []
  MessagePort.prototype.postMessage = function (...message) { held.push(() => post.apply(this, message)) }
  window.release = () => { MessagePort.prototype.postMessage = post; held.forEach(send => send()) }
  window.answered = ""
  const script = [...Bokeh.documents[0]._all_models.values()].find(model => model.data?.ring)
  script.on_event("esm_event", answer => { window.answered = answer.data.tab })
}"""
ROLES = {
    "button", "checkbox", "combobox", "link", "listbox", "radio", "slider", "spinbutton", "switch", "tab", "textbox",
}  # fmt: skip
VIEW = '[class*="place-"]:visible'
CHOSEN = f"{VIEW} .tabulator-selected:visible"


def takes_focus(node: dict[str, Any]) -> bool:
    """Whether a node of the accessibility tree is a table or takes the focus, other than the page."""
    focusable = any(one["name"] == "focusable" and one["value"]["value"] for one in node.get("properties", ()))
    return node["role"]["value"] == "table" or (focusable and node["role"]["value"] != "RootWebArea")


def focus(page: Any) -> tuple[str, str, bool]:
    role, name, seen = page.evaluate(FOCUS)
    return role, name, seen


def focused(page: Any, role: str, name: str) -> None:
    """Wait until that has the focus and shows it."""
    page.wait_for_function(f"expected => String(({FOCUS})()) === String(expected)", arg=[role, name, True])


def closed(page: Any) -> None:
    """Wait until a list that was left is gone: while it fades, Tab stays in it."""
    page.locator(".MuiPopover-root").first.wait_for(state="detached")


def tab_to(page: Any, role: str, name: str, key: str = "Tab") -> None:
    """Press Tab until that has the focus; a page has less than a hundred stops."""
    passed = []
    for _ in range(100):
        at = focus(page)
        if at[0] == role and name in at[1]:
            assert at[2], f"{role} {name!r} does not show that it has the focus"
            return
        passed.append(f"{at[0]} {at[1][:30]!r}")
        page.keyboard.press(key)
    raise AssertionError(f"the keyboard does not reach {role} {name!r} past {passed}")


def opened(visit: Any, query: str = "", **settings: Any) -> Any:
    """The page, once all of it is there."""
    page = visit(f"run={RUN}&kernel=softmax{query}", **settings)
    page.get_by_role("tab", name="Library").wait_for()
    for name in ("Keys and glossary (?)", "Profile"):
        page.get_by_role("button", name=name, exact=True).wait_for()
    return page


def test_title_of_escaped_headline() -> None:
    assert html_text.title_of(html_text.heading("a <b> & c", "more")) == "a <b> & c"
    assert html_text.title_of(html_text.notice("info", escape("x"))) == ""


def test_figure_text_follows_headline(in_runs: None) -> None:
    state = State(run=RUN, kernel="softmax", view="roofline")
    shown = Roofline(state)
    shown.refresh()

    def spoken() -> list[str]:
        plots = [place.object for place in shown.__panel__().select(Chart)]
        assert all(plot.html_attributes["role"] == "figure" for plot in plots)
        return [plot.html_attributes["aria-label"] for plot in plots]

    assert all("roof at" in said for said in spoken())
    state.kernel = "matmul"
    headline = html_text.title_of(shown.head.object)
    assert headline and all(headline in said for said in spoken())


@pytest.mark.browser
def test_tab_key_every_stop_named_and_ringed(visit: Any, built: Any) -> None:
    page = opened(visit, "&view=roofline&theme=dark")
    built(page, "Roofline")
    stops = []
    for _ in range(150):
        page.keyboard.press("Tab")
        at = focus(page)
        if at[0] == "body":  # past the last: the browser's own bars come next
            break
        stops.append(at)
    else:
        raise AssertionError(f"no way out: {stops[-3:]}")
    assert not [at for at in stops if not at[2] or not at[1]]
    assert {"a", "button", "combobox", "tab", "grid"} <= {role for role, *_ in stops}
    # And back again.
    page.keyboard.press("Shift+Tab")
    tab_to(page, "a", "Skip to the views", "Shift+Tab")


def to_the_roofline(page: Any) -> None:
    """Go there by the keys of views."""
    page.get_by_text("85.4 %").first.wait_for()
    # The first stop leads past the bar.
    page.keyboard.press("Tab")
    assert focus(page)[:2] == ("a", "Skip to the views")
    page.keyboard.press("Enter")
    focused(page, "tab", "Summary")
    # A number is a group, brackets the views before and after, over all groups and round.
    page.keyboard.press("9")
    page.get_by_role("tab", name=TITLES[-2], selected=True).wait_for()
    focused(page, "tab", TITLES[-2])
    for key, name in (
        ("]", TITLES[-1]),
        ("]", TITLES[0]),
        ("]", TITLES[1]),
        ("[", TITLES[0]),
        ("3", "Advice"),
        ("]", "Roofline"),
    ):
        page.keyboard.press(key)
        page.get_by_role("tab", name=name, exact=True, selected=True).wait_for()
        focused(page, "tab", name)
    page.wait_for_url("**view=roofline**")
    page.get_by_text("roof at").wait_for()
    # After AltGr it is the same key; with Ctrl it is the browser's.
    press = "key => document.dispatchEvent(new KeyboardEvent('keydown', key))"
    page.evaluate(press, {"key": "[", "ctrlKey": True})
    page.evaluate(press, {"key": "1", "altKey": True})
    page.evaluate(press, {"key": "]", "ctrlKey": True, "altKey": True})
    page.get_by_role("tab", name="HBM traffic", selected=True).wait_for()
    page.keyboard.press("[")
    page.get_by_role("tab", name="Roofline", selected=True).wait_for()
    # Arrows go along a row of tabs, Enter opens.
    focused(page, "tab", "Roofline")
    page.keyboard.press("ArrowRight")
    focused(page, "tab", "HBM traffic")
    page.keyboard.press("ArrowLeft")


def through_the_sheet(page: Any) -> None:
    """Open it, read it and close it."""
    # The sheet opens, names every key, and closes with Esc.
    page.keyboard.press("?")
    sheet = page.get_by_role("dialog", name="Keys and glossary")
    sheet.wait_for()
    for key, does in KEYS:
        assert sheet.get_by_text(key, exact=True).is_visible() and sheet.get_by_text(does, exact=True).is_visible()
    page.keyboard.press("1")
    page.keyboard.press("Escape")
    sheet.wait_for(state="hidden")
    assert "view=roofline" in page.url


def through_figure_and_table(page: Any) -> None:
    """Save both, and choose rows."""
    # Tools of the figure have names, and a tool that is on says so.
    tab_to(page, "button", "Pan")
    for key, on in (("Space", False), ("Enter", True)):
        page.keyboard.press(key)
        page.get_by_role("button", name="Pan", exact=True, pressed=on).locator("visible=true").first.wait_for()
    tab_to(page, "button", "Save as SVG")
    for key in ("Enter", "Space"):
        with page.expect_download() as download:
            page.keyboard.press(key)
        assert download.value.suggested_filename.endswith(".svg")
    # Rows are chosen with the arrows, which a screen reader hears, and let go with Esc.
    tab_to(page, "grid", "Rows: the arrow keys choose one")
    told = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    roles = [node["role"]["value"] for node in told if not node.get("ignored") and "role" in node]
    assert roles.count("grid") == 1 and roles.count("row") > 1 and roles.count("columnheader") > 3
    place = page.get_by_role("grid").locator("visible=true")
    for step in (1, 2):
        page.keyboard.press("ArrowDown")
        page.locator(f".tabulator-row:visible:nth-child({step}).tabulator-selected").wait_for()
        active = place.get_attribute("aria-activedescendant")
        assert page.locator(f'.tabulator-row:visible[aria-selected="true"]#{active}').count() == 1
        assert page.locator(CHOSEN).count() == 1
    page.keyboard.press("Escape")
    page.locator(CHOSEN).wait_for(state="detached")
    assert place.get_attribute("aria-activedescendant") is None
    tab_to(page, "button", "Save this table as CSV")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename.endswith(".csv")


def along_the_timeline(page: Any) -> None:
    """Move what a figure shows."""
    start, end = page.evaluate(SEEN)
    page.evaluate(CANVAS)
    page.keyboard.press("+")
    nearer = page.evaluate(SEEN)
    assert abs((nearer[1] - nearer[0]) - (end - start) / 2) < (end - start) / 1000
    page.keyboard.press("ArrowRight")
    later = page.evaluate(SEEN)
    assert later[0] > nearer[0] and later[1] > nearer[1]
    page.keyboard.press("0")
    assert page.evaluate(SEEN) == [start, end]


@pytest.mark.browser
def test_keys_views_sheet_figure_and_table(visit: Any, built: Any) -> None:
    page = opened(visit)
    to_the_roofline(page)
    through_the_sheet(page)
    built(page, "Roofline")
    through_figure_and_table(page)
    looked_at(page, "Timeline")
    along_the_timeline(page)


@pytest.mark.browser
def test_keys_views_drawn_after_the_answer(visit: Any) -> None:
    page = opened(visit, "&view=roofline")
    tab_to(page, "tab", "Roofline")

    def turned(name: str, *keys: str) -> None:
        page.evaluate(HOLD)
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_function("name => answered === name", arg=name)
        page.wait_for_timeout(200)

    def drawn(name: str) -> None:
        page.evaluate("release()")
        page.get_by_role("tab", name=name, exact=True, selected=True).wait_for()

    for key, name in (("[", "Advice"), ("2", "Summary"), ("3", "Advice")):
        turned(name, key)
        drawn(name)
        focused(page, "tab", name)
    # Who has gone on meanwhile stays there.
    turned("Roofline", "]", "Tab")
    drawn("Roofline")
    page.wait_for_timeout(200)
    assert focus(page)[1] == "Find a kernel, a run, a view or an action (/)"


@pytest.mark.browser
def test_keys_kernel_list_and_export(visit: Any) -> None:
    page = opened(visit)
    tab_to(page, "combobox", "softmax")
    page.keyboard.press("Enter")
    page.get_by_role("option", name="vector_add", exact=True).wait_for()
    assert page.get_by_role("option", selected=True).all_inner_texts() == ["softmax"]
    assert page.get_by_role("menuitem").count() == 0
    # Letters go to the kernel that begins with them.
    page.keyboard.type("layer_n")
    page.keyboard.press("Enter")
    page.wait_for_url("**kernel=layer_norm**")
    page.locator("h2", has_text="layer_norm").wait_for()
    closed(page)
    focused(page, "combobox", "layer_norm")
    # A list that is left with Esc changes nothing, and the focus comes back; then a number is a group again.
    page.keyboard.press("Enter")
    page.get_by_role("listbox").wait_for()
    page.keyboard.press("Escape")
    closed(page)
    focused(page, "combobox", "layer_norm")
    page.keyboard.press("3")
    page.get_by_role("tab", name="Advice", exact=True, selected=True).wait_for()
    focused(page, "tab", "Advice")
    # The dialog may take the focus before the page hears that it is open.
    page.evaluate("""() => {
      document.dispatchEvent(new KeyboardEvent("keydown", {key: "r"}))
      allElements("[role=tab]").find(tab => tab.getRootNode().activeElement === tab).blur()
    }""")
    page.get_by_role("dialog").wait_for()
    tab_to(page, "button", "Save as Markdown")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == f"tilescope-{RUN}.md"
    assert focus(page)[:2] == ("button", "Save as Markdown")
    # Tab stays in the dialog, and Esc comes back to where one was.
    stops = set()
    for _ in range(12):
        page.keyboard.press("Tab")
        stops.add(focus(page)[1])
    assert {"close", "note", "Save as HTML"} <= stops and not {"Tilescope", "Find /"} & stops
    page.keyboard.press("Escape")
    focused(page, "tab", "Advice")


@pytest.mark.browser
def test_keys_drawer_opens_on_first_field(visit: Any) -> None:
    page = opened(visit)
    wide = page.locator("main").bounding_box()["width"]
    start = page.get_by_role("button", name="Start profiling")
    # A key opens it from wherever one is.
    tab_to(page, "button", "This run")
    page.keyboard.press("p")
    page.wait_for_url("**panel=profile**")
    page.wait_for_function(f"() => ({FOCUS})()[0] === 'combobox'")
    page.get_by_role("dialog", name="Profile").wait_for()
    start.wait_for()
    # A list in it that is open closes alone.
    page.keyboard.press("Enter")
    page.get_by_role("listbox").wait_for()
    page.keyboard.press("Escape")
    closed(page)
    assert start.is_visible()
    # Who writes is not heard by the page.
    page.get_by_label("another size").focus()
    page.keyboard.type("128x4?]p")
    assert page.get_by_label("another size").input_value() == "128x4?]p"
    page.keyboard.press("Escape")
    start.wait_for(state="hidden")
    assert page.get_by_role("heading", name="Profile", exact=True).count() == 0, "nobody hears a closed drawer"
    focused(page, "button", "This run")
    assert page.get_by_role("button", name="Profile", exact=True).get_attribute("aria-expanded") == "false"
    # What the address says when the page is loaded; closed, the views have the whole width.
    page.wait_for_function("() => !location.search.includes('panel=profile')")
    assert page.locator("main").bounding_box()["width"] == wide == 1440
    page.go_back()
    start.wait_for()
    page.get_by_role("button", name="Close", exact=True).click()
    start.wait_for(state="hidden")


@pytest.mark.browser
def test_every_view_control_has_name(visit: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax")
    start_button(page)
    asking = page.context.new_cdp_session(page)
    for title in ("Summary", "Roofline", "HBM traffic", "Fusing", "Source", "Tune", "Compare", "Kernels"):
        looked_at(page, title)
        if title == "HBM traffic":
            page.get_by_role("grid").nth(1).wait_for()
        # Names are there once it is drawn: a screen reader reads them without a key being pressed.
        page.wait_for_function("() => allElements('.bk-events').every(canvas => canvas.ariaLabel)")
        seen = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in asking.send("Accessibility.getFullAXTree")["nodes"]
            if not node.get("ignored") and (node["role"]["value"] in ROLES or takes_focus(node))
        ]
        assert len(seen) > 15
        assert not [role for role, name in seen if not name.strip()], title
        # Who goes from table to table, or from figure to figure, can tell one from the other.
        told = [name for role, name in seen if role in ("grid", "table", "application")]
        assert len(told) == len({*told}), title
        # A figure says the headline; what takes the focus in it does not say it again.
        headline = page.locator(f"{VIEW} h2").first.inner_text()
        assert not [name for role, name in seen if role == "application" and headline in name], title
