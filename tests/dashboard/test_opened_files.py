"""Runs made of other tools' files: every view and the report show them, and say nothing that the file does not."""

from collections.abc import Iterator
from pathlib import Path

import panel as pn
import pytest
from tilescope.models.compare import Side
from tilescope.notebook.opening import open_file
from tilescope.runs.store import LoadedRun
from tilescope_dashboard.report import markdown
from tilescope_dashboard.report.build import build
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.autotune import Autotune
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.compare import Compare
from tilescope_dashboard.views.model import Model
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.source import Source
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

VIEWS: tuple[type[View], ...] = (
    Overview, Advice, Roofline, Traffic, Timeline, Autotune, Occupancy, Source, Compare, Model,
)  # fmt: skip
FIXTURES = Path(__file__).parents[1] / "profiles" / "fixtures"
FILES = (
    "raw_37_metrics_h200.csv", "details_rules_h200.csv", "torch_profiler_trace.json", "foreign/proton_profile.hatchet",
    "foreign/tritonparse_events.ndjson",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("opened") / "runs"


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, LoadedRun]:
    return {name: open_file(FIXTURES / name, folder) for name in FILES}


def texts(shown: object) -> Iterator[str]:
    """What is written in a view."""
    if isinstance(shown, (pn.pane.HTML, pn.pane.Markdown)):
        yield str(shown.object)
    for part in getattr(shown, "objects", None) or ():
        yield from texts(part)


@pytest.mark.parametrize("name", FILES[::2])
def test_every_view_shows_it(
    name: str, runs: dict[str, LoadedRun], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(folder))
    loaded = runs[name]
    # One that no other run has, so that none is offered.
    kernel = next(reversed(loaded.run.kernels), "")
    said: dict[type[View], str] = {}
    state = State(run=loaded.run.id, kernel=kernel)
    for view in VIEWS:
        state.view = view.name_in_address
        shown = view(state)
        shown.refresh()
        assert "could not be drawn" not in shown.head.object, (view, shown.head.object)
        said[view] = " ".join(texts(shown.__panel__()))
    # The step of a trace names no kernel.
    offered = (f"tilescope tune {kernel}", f"tilescope profile {kernel}") if kernel else ("tilescope tune", "--collect")
    assert all(command not in text for command in offered for text in said.values())
    tool = str(loaded.run.settings["tool"])
    apart = f"a file of {tool}, which does not have it" if kernel else "This view shows single kernels."
    assert apart in said[Autotune]
    # The step of the one run that has one, whichever is open.
    assert "A step takes 1.22 ms</h2>" in said[Model]  # most of its kernels have no roof
    assert ("From torch_profiler_trace.json" in said[Model]) == (name != "torch_profiler_trace.json")
    assert "gaps" not in said[Timeline]  # other kernels ran between its launches
    assert "redicted" not in said[Overview].replace("predicted ones", "")


@pytest.mark.parametrize("name", FILES)
def test_a_report_of_it_has_no_size_that_the_file_does_not_say(name: str, runs: dict[str, LoadedRun]) -> None:
    text = markdown.markdown(build([Side(runs[name])]))
    assert Path(name).name in text
    assert "0 SMs" not in text
    assert "L2 0 B" not in text
    assert "Predicted" not in text
