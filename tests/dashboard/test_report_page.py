"""The report in a browser: saved by the app, opened offline, in both colour schemes, on a phone and on paper."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tilescope_dashboard.report.build import build
from tilescope_dashboard.report.content import Report
from tilescope_dashboard.report.html import html
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.run import sides

from .conftest import PREDICTED, RUN
from .test_report import side


def test_the_app_exports_what_the_address_compares(in_runs: None) -> None:
    state = State(
        run=RUN, compared=[f"{RUN}:eager", PREDICTED, PREDICTED, RUN, f"{RUN}:triton", "nowhere", f"{RUN}:cuda"]
    )
    assert [side.name for side in sides(state)] == [RUN, f"{RUN}:eager", PREDICTED]


@pytest.fixture(scope="module")
def reported(runs: Path) -> Callable[[str], Report]:
    """The report of a kernel in a run, made once."""
    return functools.cache(lambda run: build([side(runs / run)], "softmax"))


def colours(page: Any) -> tuple[str, set[str]]:
    """The page's ground, and that of its figures."""
    figures = "Bokeh.documents.flatMap(d => d.roots()).map(f => f.background_fill_color.slice(0, 7))"
    return page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor"), set(page.evaluate(figures))


def opened(chromium: Any, document: str, file: Path, **settings: Any) -> tuple[Any, list[str]]:
    """A page of the document with no network, and what went wrong in it."""
    file.write_text(document, encoding="utf-8")
    context = chromium.new_context(offline=True, **settings)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda line: wrong.append(line.text) if line.type in ("error", "warning") else None)
    page.on("request", lambda request: None if request.url == file.as_uri() else wrong.append(request.url))
    page.goto(file.as_uri())
    return page, wrong


def test_it_opens_offline_with_every_figure(chromium: Any, reported: Callable[[str], Report], tmp_path: Path) -> None:
    report = reported(RUN)
    wanted = sum(len(part.drawings) for kernel in report.runs[0].kernels for part in kernel.parts) + 1
    page, wrong = opened(chromium, html(report), tmp_path / "r.html", color_scheme="dark")
    page.wait_for_function(f"document.querySelectorAll('.figure > *').length == {wanted}")
    assert colours(page) == ("rgb(20, 24, 29)", {"#14181d"})
    assert not wrong, wrong
    page.context.close()


def test_report_figures_follow_the_scheme(chromium: Any, reported: Callable[[str], Report], tmp_path: Path) -> None:
    page, wrong = opened(chromium, html(reported(PREDICTED)), tmp_path / "r.html", color_scheme="light")
    page.locator("canvas").first.wait_for()
    assert colours(page) == ("rgb(255, 255, 255)", {"#ffffff"})
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("Bokeh.documents.at(-1).roots()[0].background_fill_color == '#14181dff'")
    page.emulate_media(media="print")
    assert page.locator("body").evaluate("e => getComputedStyle(e).color") == "rgb(27, 31, 36)"
    assert not page.locator("nav").is_visible()
    assert not wrong, wrong
    page.context.close()


def test_report_on_a_phone_fits_its_width(chromium: Any, reported: Callable[[str], Report], tmp_path: Path) -> None:
    phone = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}
    page, wrong = opened(chromium, html(reported(RUN)), tmp_path / "r.html", **phone)
    page.locator("canvas").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate("Bokeh.documents[0].roots()[0].toolbar.active_drag") is None
    assert not wrong, wrong
    page.context.close()


def test_a_script_that_is_not_ours_does_not_run(chromium: Any, tmp_path: Path) -> None:
    document = html(Report("empty", (), ()))
    added = document.replace("</body>", "<script>document.title = 'ran'</script></body>")
    page, wrong = opened(chromium, added, tmp_path / "r.html")
    page.wait_for_timeout(300)
    assert page.title() == "empty · Tilescope"
    assert any("Content Security Policy" in line for line in wrong)
    page.context.close()
