"""Names with markup in them, and names of 300 characters: everywhere on the page and in the reports they are text."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tilescope.models import function_names
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Failure, Run
from tilescope_dashboard.data.exports import stem

from . import synthetic
from .conftest import looked_at

RUN = "20260102-030405-0bad"
IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "</script><script>alert(2)</script>"
#: As the compiler writes the name of a library's kernel.
TEMPLATE = (
    "void cutlass::Kernel2<" + ", ".join(f"cute::tuple<cute::C<{2**n}>, float&>" for n in range(8)) + ">(Params&&)"
)
NAMES = (IMAGE, SCRIPT, TEMPLATE)
#: What Panel takes for the source of a function, where it is the title of a column.
CODE = "--x_x--0_0--alert(3)--x_x--0_0--"


#: Elements through all shadow roots that only a name can have made.
INJECTED = """() => allElements("img[src='x'], [onerror], script")
  .filter(element => !element.matches("script") || (/alert\\(/.test(element.textContent) && !element.type))
  .map(element => element.outerHTML.slice(0, 200))"""


def hostile_rows(kernel: str, config: str = "") -> list[dict[str, Any]]:
    """The made-up rows of three implementations, their launches called after the kernel."""
    return [
        row for impl in ("triton", "eager", "compile") for direction in ("forward", "backward")
        for row in synthetic.case_rows(Case(kernel, impl, direction, "16384x4096-bf16", config), 16384 * 4096)
    ]  # fmt: skip


def hostile_run(folder: Path) -> Path:
    """A run in which every text that a person or a compiler chooses is hostile."""
    rows = [row for name in NAMES for row in hostile_rows(name)]
    for place, (name, value) in enumerate([("BLOCK", 32), ("BLOCK", 64), (CODE, 64), (IMAGE.replace("=", ""), 64)]):
        case = Case(IMAGE, "triton", "forward", "16384x4096-bf16", f"{name}={value},num_warps=4")
        at = {"launch": 0, "function": IMAGE}
        rows += [
            case.row("registers", 32 * (place + 1), "compiler", **at),
            case.row("gpu_time", 1e-4 * (place + 1), "torch_profiler", sample=0, **at),
        ]
    run = Run(
        id=RUN, started="2026-01-02T03:04:05+00:00", device=replace(synthetic.DEVICE, name=f"GPU {IMAGE}"),
        versions={"torch": IMAGE, "triton": SCRIPT}, kernels={name: {**synthetic.facts(name), "summary": IMAGE} for name in NAMES},
        settings={"target": "sm_90", "note": SCRIPT}, title=f"{IMAGE} {SCRIPT}",
    )  # fmt: skip
    writer = store.RunWriter(folder, run)
    writer.append(schema.frame(rows).assign(run_id=""))
    writer.fail(Failure(f"{IMAGE}/triton/forward", "compiler", f"{SCRIPT} {IMAGE}"))
    writer.note(IMAGE)
    return writer.finish()


@pytest.fixture(scope="module", autouse=True)
def _hostile(runs: Path) -> Iterator[None]:
    made = hostile_run(runs)
    yield
    shutil.rmtree(made)


@pytest.fixture
def watched(visit: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages in which a dialog is an error."""

    def go(*arguments: Any, **settings: Any) -> Any:
        page = visit(*arguments, **settings)
        page.on("dialog", lambda dialog: (visit.wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        return page

    return go


HOVERED = """() => allElements(".tabulator-tooltip, .bk-Tooltip, .bk-tooltip-content").some(element => element.checkVisibility())"""


def hover_figures(page: Any) -> bool:
    """Move over the figures that are seen until one tells something."""
    for canvas in page.locator(".bk-Canvas:visible").all():
        if not canvas.is_visible():  # of the view before this one, on a busy machine
            continue
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        if box is None:
            continue
        spots = [
            (box["x"] + box["width"] * (i + 0.5) / 16, box["y"] + box["height"] * (j + 0.5) / 8)
            for j in range(8)
            for i in range(16)
        ]
        for x, y in spots:
            page.mouse.move(x, y)
            if page.evaluate(HOVERED):
                return True
    return False


def hover_cells(page: Any) -> int:
    """Rest on the first row's cells that hold a hostile name; how many told it."""
    told = 0
    for cell in page.locator(
        '[class*="place-"]:visible .tabulator-cell:visible', has_text=re.compile("onerror|script|cutlass")
    ).all()[:4]:
        cell.hover()
        page.wait_for_timeout(700)
        told += bool(page.evaluate(HOVERED))
        page.mouse.move(2, 2)
    return told


@pytest.mark.browser
def test_views_hostile_name_is_text(watched: Any) -> None:
    page = watched(f"run={RUN}&kernel={quote(IMAGE)}")
    page.locator("h2", has_text=IMAGE).first.wait_for()
    page.get_by_role("tab", name="Library").wait_for()
    figures = cells = 0
    for title in ("Summary", "Roofline", "Timeline", "Source", "Tune", "Compare", "Kernels"):
        looked_at(page, title)
        if title in ("Summary", "Roofline", "Timeline", "Tune"):
            figures += hover_figures(page)
            cells += hover_cells(page)
        assert page.evaluate(INJECTED) == [], title
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0, title
    assert figures >= 2 and cells >= 2
    assert page.title() == "Tilescope"
    # Another tag, and a name as long as a compiler's, on a phone.
    page.set_viewport_size({"width": 390, "height": 844})
    for kernel in (SCRIPT, TEMPLATE):
        page.goto(f"{page.url.partition('?')[0]}?run={RUN}&kernel={quote(kernel)}")
        page.locator("h2", has_text=function_names.said(kernel)[:20]).first.wait_for()
        looked_at(page, "Timeline")
        assert page.evaluate(INJECTED) == []
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390


def test_stem_keeps_plain_letters() -> None:
    for name in (*NAMES, "a\r\nSet-Cookie: x=y", "../../etc/passwd", "a/b\\c", "nul\0"):
        assert re.fullmatch(r"tilescope[A-Za-z0-9._-]*", stem(name)), name
        assert ".." not in stem(name)
        assert len(stem(name)) <= 120
