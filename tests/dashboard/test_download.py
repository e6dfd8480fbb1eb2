"""A file that cannot be made: what is said, and where."""

import asyncio
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tilescope_dashboard.components.download import Download, link, reason
from tilescope_dashboard.components.tables import downloads, fill, table
from tilescope_dashboard.data.columns import Column
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.export import Export

from .conftest import RUN

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, "No space left on device."),
        (PermissionError(errno.EACCES, "Permission denied", "/tmp/x"), "Permission denied (/tmp/x)."),  # noqa: S108
        (ValueError("two\n  lines <b>"), "two lines <b>."),
        (MemoryError(), "MemoryError."),
    ],
)
def test_a_reason_is_one_line(error: Exception, said: str) -> None:
    assert reason(error) == said


def pressed(export: Export) -> None:
    asyncio.run(export._button._async_sync_data())


@pytest.mark.parametrize(
    ("error", "said"),
    [(FULL, "No space left on device"), (KeyError("<img>"), "&lt;img&gt;"), (MemoryError(), "MemoryError")],
)
def test_an_export_that_fails_says_so_beside_its_button(
    runs: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(runs))
    export = Export(State(run=RUN))
    shown = export.said
    assert not shown.visible

    def fail(*_: Any) -> bytes:
        raise error

    with monkeypatch.context() as failing:
        failing.setattr("tilescope_dashboard.views.export.report.render", fail)
        pressed(export)
    assert shown.visible and "Not saved:" in shown.object and said in shown.object
    assert export._button.data is None
    # Pressed again, with room made for it, there is a file and nothing more to say.
    export._format.value = "csv"
    assert not shown.visible
    pressed(export)
    assert export._button.data.startswith("data:text/")
    assert not shown.visible


def test_a_table_that_is_not_saved_says_so_below_its_links(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = table([Column("impl", "impl.")])
    fill(shown, pd.DataFrame({"impl": ["triton"]}))
    place = downloads(shown, lambda: "file")
    as_csv, as_parquet = place.select(Download)
    assert as_csv.said in place.objects and as_parquet.said in place.objects

    def fail(*_: Any) -> io.BytesIO:
        raise FULL

    with monkeypatch.context() as failing:
        failing.setattr("tilescope_dashboard.data.exports.plain", fail)
        asyncio.run(as_csv._async_sync_data())
    assert as_csv.said.visible and "No space left on device" in as_csv.said.object
    assert as_csv.data is None and not as_parquet.said.visible
    asyncio.run(as_csv._async_sync_data())
    assert as_csv.data is not None and not as_csv.said.visible


def test_a_trace_that_has_gone_is_said_below_its_link(tmp_path: Path) -> None:
    place = link("trace", lambda: io.BytesIO((tmp_path / "gone.json").read_bytes()), lambda: "t.json", "Save t.json")
    asyncio.run(place._async_sync_data())
    assert place.said.object.count("No such file or directory") == 1


#: Runs in the server before the app does.
NO_ROOM = """
import errno, os
from tilescope_dashboard.data import exports as files; from tilescope_dashboard import report

def fail(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

report.render = files.plain = fail
"""


@pytest.fixture(scope="module")
def full_server(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that can make no file."""
    served = sys.modules["tests.dashboard.conftest"].Server(runs, tmp_path_factory.mktemp("full"), first=NO_ROOM)
    yield served
    assert "No space left on device" in served.stop()


@pytest.mark.browser
@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 390)])
def test_the_page_says_it_beside_the_button(chromium: Any, full_server: Any, theme: str, width: int) -> None:
    page = chromium.new_page(viewport={"width": width, "height": 844}, user_agent="Mobi" if width < 500 else None)
    page.goto(f"{full_server.url}?run={RUN}&kernel=softmax&view=roofline&theme={theme}")
    button = page.get_by_role("button", name="Export report")
    button.wait_for()
    # On a busy machine a button is seen before it answers.
    page.get_by_text("of roofline at").wait_for()
    button.click()
    said = page.get_by_role("alert").filter(has_text="Not saved: No space left on device.")
    said.wait_for()
    beside, told = button.bounding_box(), said.bounding_box()
    assert 0 < told["y"] - beside["y"] < 80
    assert told["x"] >= 0 and told["x"] + told["width"] <= width
    assert button.is_enabled()

    saving = page.get_by_role("button", name="CSV").first
    saving.click()
    told_below = page.get_by_role("alert").filter(has_text="Not saved: No space left on device.").nth(1)
    told_below.wait_for()
    beside, told = saving.bounding_box(), told_below.bounding_box()
    assert 0 < told["y"] - beside["y"] < 60
    page.close()
