"""The whole of a visit with the keyboard alone: everything is reached, shows that it has the focus, and keeps it."""

from typing import Any

import pytest

from .conftest import RUN, start_button

pytestmark = pytest.mark.browser

#: What has the focus, through the shadow roots: its role or tag, its name, and how it shows: the ring around it or around
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
  return {role, name: (names.find(Boolean) || "").split("\\n")[0], seen: Boolean(seen) && width > 0 && height > 0}
}"""

#: A field that comes into the drawer, before all others.
LATE = """name => {
  const inside = function* (root) { for (const at of root.querySelectorAll("*")) { yield at; if (at.shadowRoot) yield* inside(at.shadowRoot) } }
  const field = Object.assign(document.createElement("input"), {ariaLabel: name})
  ;[...inside(document)].find(at => at.matches(".contextbar")).prepend(field)
}"""


def focus(page: Any) -> dict[str, Any]:
    return page.evaluate(FOCUS)


def closed(page: Any) -> None:
    """Wait until a list that was left is gone: while it fades, Tab stays in it."""
    page.locator(".MuiPopover-root").first.wait_for(state="detached")


def tab_to(page: Any, role: str, name: str, key: str = "Tab") -> None:
    """Press Tab until that has the focus; a page has less than a hundred stops."""
    passed = []
    for _ in range(100):
        at = focus(page)
        if at["role"] == role and name in at["name"]:
            assert at["seen"], f"{role} {name!r} does not show that it has the focus"
            return
        passed.append(f"{at['role']} {at['name'][:30]!r}")
        page.keyboard.press(key)
    raise AssertionError(f"the keyboard does not reach {role} {name!r} past {passed}")


def opened(visit: Any, query: str = "", **settings: Any) -> Any:
    """The page, once all of it is there."""
    page = visit(f"run={RUN}&kernel=softmax{query}", **settings)
    page.get_by_role("tab", name="Library").wait_for()
    page.get_by_role("button", name="Keys").wait_for()
    page.get_by_role("button", name="Profile", exact=True).wait_for()
    return page


@pytest.mark.parametrize(
    ("view", "theme"),
    [("overview", "light"), pytest.param("roofline", "dark"), pytest.param("compare", "dark")],
)
def test_every_stop_shows_the_focus_and_none_is_a_trap(visit: Any, built: Any, view: str, theme: str) -> None:
    page = opened(visit, f"&view={view}&theme={theme}")
    built(page, view.capitalize())
    stops = []
    for _ in range(150):
        page.keyboard.press("Tab")
        at = focus(page)
        if at["role"] == "body":  # past the last: the browser's own bars come next
            break
        stops.append(at)
    else:
        raise AssertionError(f"no way out: {stops[-3:]}")
    assert not [(at["role"], at["name"]) for at in stops if not at["seen"]]
    assert not [at["role"] for at in stops if not at["name"]]
    roles = {at["role"] for at in stops}
    assert {"a", "button", "combobox", "tab"} <= roles
    # And back again.
    page.keyboard.press("Shift+Tab")
    tab_to(page, "a", "Skip to the views", "Shift+Tab")


def test_kernel_view_and_export_are_changed_and_the_focus_stays(visit: Any, built: Any) -> None:
    page = opened(visit)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert (focus(page)["role"], focus(page)["name"]) == ("tab", "Summary")
    # The kernel, above the views.
    tab_to(page, "button", "Export report", "Shift+Tab")
    tab_to(page, "combobox", "softmax", "Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("listbox").wait_for()
    page.get_by_role("option", name="vector_add", exact=True).wait_for()
    assert page.get_by_role("option", selected=True).all_inner_texts() == ["softmax"]
    assert page.get_by_role("menuitem").count() == 0
    # A letter begins a search.
    page.keyboard.type("layer_n")
    page.get_by_role("listbox").get_by_text("vector_add").wait_for(state="detached")
    page.keyboard.press("Enter")
    page.wait_for_url("**kernel=layer_norm**")
    page.locator("h2", has_text="layer_norm").wait_for()
    closed(page)
    built(page, "Summary")
    assert (focus(page)["role"], focus(page)["name"], focus(page)["seen"]) == ("combobox", "layer_norm", True)
    # A list that is left with Esc changes nothing, and the focus comes back.
    page.keyboard.press("Enter")
    page.get_by_role("listbox").wait_for()
    page.keyboard.press("Escape")
    closed(page)
    assert (focus(page)["role"], focus(page)["name"]) == ("combobox", "layer_norm")
    # The view, with the arrows.
    tab_to(page, "tab", "Summary")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Advice", selected=True).wait_for()
    page.keyboard.press("Tab")
    for name, said in (("Roofline", "of roofline at"), ("HBM traffic", "")):
        page.keyboard.press("ArrowRight")
        assert focus(page)["name"] == name
        page.keyboard.press("Enter")
        page.get_by_role("tab", name=name, selected=True).wait_for()
        built(page, name)
        if said:
            assert page.get_by_text(said).first.is_visible()
        assert (focus(page)["role"], focus(page)["name"], focus(page)["seen"]) == ("tab", name, True)
    # The export, in another format.
    tab_to(page, "combobox", "HTML", "Shift+Tab")
    page.keyboard.press("Enter")
    page.get_by_role("listbox").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    closed(page)
    tab_to(page, "button", "Export report", "Shift+Tab")
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    assert download.value.suggested_filename == f"tilescope-{RUN}.md"
    assert (focus(page)["role"], focus(page)["name"]) == ("button", "Export report")


def test_the_drawer_opens_on_its_first_field_and_esc_leads_back(visit: Any) -> None:
    page = opened(visit)
    wide = page.locator("main").bounding_box()["width"]
    tab_to(page, "button", "Profile")
    page.keyboard.press("Enter")
    page.wait_for_url("**panel=profile**")
    page.wait_for_function(f"() => ({FOCUS})().role === 'combobox'")
    page.get_by_role("button", name="Start profiling").wait_for()
    # A list in it that is open closes alone.
    page.keyboard.press("Enter")
    page.get_by_role("listbox").wait_for()
    page.keyboard.press("Escape")
    closed(page)
    assert page.get_by_role("button", name="Start profiling").is_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Start profiling").wait_for(state="hidden")
    page.wait_for_function(f"() => ({FOCUS})().name === 'Profile'")
    assert focus(page)["seen"]
    # What the address says when the page is loaded, and Back takes back; closed, the views have the whole width.
    page.wait_for_function("() => !location.search.includes('panel=profile')")
    assert page.locator("main").bounding_box()["width"] == wide == 1440
    # A key opens it from wherever one is.
    tab_to(page, "button", "Export report")
    page.keyboard.press("p")
    page.wait_for_url("**panel=profile**")
    page.wait_for_function(f"() => ({FOCUS})().role === 'combobox'")
    # What comes later is gone on to, but not by who has begun to do something.
    page.evaluate(LATE, "late")
    page.wait_for_function(f"() => ({FOCUS})().name === 'late'")
    page.keyboard.press("ArrowLeft")
    page.evaluate(LATE, "later")
    page.wait_for_timeout(500)
    assert focus(page)["name"] == "late"
    page.reload()
    page.get_by_role("button", name="Start profiling").wait_for()
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_role("button", name="Start profiling").wait_for(state="hidden")
    page.go_back()
    page.get_by_role("button", name="Start profiling").wait_for()


def test_a_kernel_is_profiled_without_a_mouse(job_server: Any, visit: Any) -> None:
    visit.server = job_server
    page = opened(visit)
    tab_to(page, "button", "Profile")
    page.keyboard.press("Enter")
    start_button(page)
    # Small, and on no GPU: the compiler and the interpreter alone.
    for name in ("backward", "eager", "compile"):
        tab_to(page, "input", name)
        page.keyboard.press("Space")
        assert not page.get_by_role("checkbox", name=name, exact=True).is_checked()
    for box in page.get_by_role("checkbox").all():
        label = box.evaluate("box => box.labels[0].innerText")
        if ":" in label and not label.startswith(("compiler", "interpreter")) and box.is_checked():
            tab_to(page, "input", label)
            page.keyboard.press("Space")
    tab_to(page, "button", "Start profiling")
    page.keyboard.press("Enter")
    page.get_by_text("is being profiled").wait_for()
    assert (focus(page)["role"], focus(page)["name"]) == ("button", "Start profiling")
    # Its result is shown when it is there, and the focus is where it was.
    page.wait_for_function("run => !location.search.includes(run)", arg=RUN)
    page.get_by_text("predicted for a GPU called").wait_for()
    assert (focus(page)["role"], focus(page)["name"], focus(page)["seen"]) == ("button", "Start profiling", True)
