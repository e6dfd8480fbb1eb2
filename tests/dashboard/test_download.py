"""A file that cannot be made: what is said, and where."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.run import RunDialog

from .conftest import RUN, Server, field

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def pressed(export: Any) -> None:
    asyncio.run(export._async_sync_data())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, "No space left on device."),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "Permission denied (/x)."),
        (ValueError("two\n  lines <b>"), "two lines &lt;b&gt;."),
        (MemoryError(), "MemoryError."),
    ],
)
def test_failed_export_says_so(in_runs: None, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str) -> None:
    export = field(RunDialog(State(run=RUN, panel="run")), "CSV")
    shown = export.said
    assert not shown.visible

    def fail(*_: Any) -> bytes:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr("tilescope_dashboard.views.run.report.render", fail)
        pressed(export)
    assert shown.visible and "Not saved:" in shown.object and said in shown.object
    assert export.data is None
    # Pressed again, with room made for it, there is a file and nothing more to say.
    pressed(export)
    assert export.data.startswith("data:text/")
    assert not shown.visible


#: Runs in the server before the app does.
NO_ROOM = """
import errno, os
from tilescope_dashboard.data import exports as files; from tilescope_dashboard import report

def fail(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

report.render = files.plain = fail
"""


@pytest.mark.browser
def test_page_full_disk_then_server_ends(chromium: Any, runs: Path, tmp_path: Path) -> None:
    served = Server(runs, tmp_path, first=NO_ROOM)
    page = chromium.new_page(viewport={"width": 390, "height": 844}, user_agent="Mobi")
    page.goto(f"{served.url}?run={RUN}&kernel=softmax&view=roofline&theme=dark")
    page.get_by_text("roof at").wait_for()
    for button in ("CSV", "Markdown"):
        if button == "Markdown":
            page.get_by_role("button", name="More", exact=True).click()
            page.get_by_role("button", name="This run").click()
        place = page if button == "CSV" else page.get_by_role("dialog")
        place.get_by_role("button", name=button).first.click()
        said = place.get_by_role("alert").filter(has_text="Not saved: No space left on device.").last
        said.wait_for()
        beside, told = place.get_by_role("button", name=button).first.bounding_box(), said.bounding_box()
        assert 0 < told["y"] - beside["y"] < 100
        assert told["x"] >= 0 and told["x"] + told["width"] <= 390
    assert "No space left on device" in served.stop()
    lost = page.get_by_role("alert").filter(has_text="The connection to the server is lost.")
    lost.wait_for()
    assert all(word in lost.inner_text() for word in ("make serve", "tilescope serve", "reload this page"))
    # The text that was read can still be read.
    assert page.get_by_text("roof at").count()
    page.close()
