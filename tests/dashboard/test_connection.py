"""The server ends while its page is open, and comes back: what the person reads, and can do."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.held_port import HeldPort

from .conftest import RUN

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.browser

#: How far the text stands out from its ground, as WCAG 2 counts it.
CONTRAST = """bar => {
  const light = colour => {
    const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
    const [r, g, b] = colour.match(/[\\d.]+/g).map(part => linear(part / 255))
    return 0.2126 * r + 0.7152 * g + 0.0722 * b
  }
  const {color, backgroundColor} = getComputedStyle(bar)
  const [a, b] = [light(color), light(backgroundColor)].sort((one, other) => one - other)
  return (b + 0.05) / (a + 0.05)
}"""
#: What Chromium says of letters that a figure asks for while no server is there: Bokeh 3.9 lets go of that promise.
NO_LETTERS = "A network error occurred."
#: Whether the point is in the element that is seen there, not below another one.
ON_TOP = "bar => { const {x, y, width, height} = bar.getBoundingClientRect(); return bar.contains(document.elementFromPoint(x + width / 2, y + height / 2)) }"


class Killable:
    """A server that is ended without a word, and started again where it was."""

    def __init__(self, runs: Path) -> None:
        self._held = HeldPort()
        self.port = self._held.number
        self.url = f"http://127.0.0.1:{self.port}/app"
        paths = os.pathsep.join(str(ROOT / part) for part in ("kernels", "profiles", "dashboard"))
        self._environment = {**os.environ, "TILESCOPE_RUNS": str(runs), "PYTHONPATH": paths}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        command = [
            sys.executable, "-m", "panel", "serve", str(ROOT / "dashboard" / "app.py"), "--address", "127.0.0.1",
            "--port", str(self.port), "--allow-websocket-origin", f"127.0.0.1:{self.port}",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self._environment, start_new_session=True
        )
        deadline = time.monotonic() + 240
        while True:
            try:
                urllib.request.urlopen(self.url, timeout=120).close()  # noqa: S310 - our own server
                return
            except (urllib.error.URLError, ConnectionError):
                assert self.process.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)

    def kill(self) -> None:
        """End it, as a crash does, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(120)


@pytest.fixture
def killable(runs: Path) -> Iterator[Killable]:
    one = Killable(runs)
    yield one
    one.kill()


def test_a_lost_connection_is_said_in_both_themes_and_so_is_its_return(chromium: Any, killable: Killable) -> None:
    wrong: list[str] = []
    pages = []
    for theme, width, browser in (
        ("light", 1440, None),
        ("dark", 390, "Mozilla/5.0 (Linux; Android 14; Pixel) Mobile"),
    ):
        page = chromium.new_page(viewport={"width": width, "height": 844}, user_agent=browser)
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{killable.url}?run={RUN}&kernel=layer_norm&view=roofline&theme={theme}")
        page.get_by_text("of roofline at").wait_for()
        page.wait_for_load_state("networkidle")  # what is still being loaded then would fail, and say so
        pages.append(page)
    killable.kill()
    for page in pages:
        bar = page.get_by_role("alert").filter(has_text="The connection to the server is lost.")
        bar.wait_for()
        for word in ("make serve", "tilescope serve", "reload this page"):
            assert word in bar.inner_text()
        assert bar.evaluate(CONTRAST) >= 4.5
        assert bar.evaluate(ON_TOP)
        # It is said once, and what was read can still be read.
        assert page.get_by_text("Server connection lost.").filter(visible=True).count() == 0
        assert page.get_by_text("of roofline at").is_visible()
        assert page.evaluate("() => document.documentElement.scrollWidth - innerWidth") <= 0
    killable.start()
    for page in pages:
        bar = page.get_by_role("alert").filter(has_text="The server is back.")
        bar.wait_for()
        assert bar.evaluate(CONTRAST) >= 4.5
        assert page.get_by_text("The connection to the server is lost.").count() == 0
        # With the keyboard, as everything else.
        page.get_by_role("button", name="Reload").press("Enter")
        page.get_by_text("The server is back.").wait_for(state="detached")
        page.get_by_text("of roofline at").wait_for()
        assert "kernel=layer_norm" in page.url and "view=roofline" in page.url
        # The page answers again.
        page.get_by_role("tab", name="HBM traffic").press("Enter")
        page.wait_for_url("**view=traffic**")
        page.close()
    assert set(wrong) <= {NO_LETTERS}


def test_nothing_is_said_while_the_server_answers(visit: Any) -> None:
    page = visit(f"run={RUN}&kernel=softmax")
    page.get_by_text("85.4 %").first.wait_for()
    page.get_by_role("tab", name="Library").wait_for()
    assert page.get_by_role("alert").filter(has_text="server").count() == 0
