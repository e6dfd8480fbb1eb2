"""The activity of the chip over a launch's time, in Inside and Timeline, hidden where a run has none."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from tilescope.table.case import Case
from tilescope_dashboard.figures.activity import activity as draw
from tilescope_dashboard.figures.style import DARK, LIGHT
from tilescope_dashboard.topics import activity as topic
from tilescope_dashboard.views.timeline import Timeline

from tests.profiles import made_up

from .conftest import RUN, opened
from .conftest import said as words

SAMPLES = Path(__file__).parents[1] / "profiles" / "fixtures" / "pm_sampling_h200.csv.gz"
CASE = Case("softmax", "triton", "forward", "16384x4096-bf16")


@pytest.fixture(name="folder")
def _folder(own_runs: Path) -> Path:
    """A run with the start of a launch and the samples of its case."""
    place = {"launch": 0, "function": "softmax_pieces_kernel", "sample": 0}
    values = {"gpu_time": 259e-6, "launch_start": 0.0}
    rows = [CASE.row(name, value, "torch_profiler", **place) for name, value in values.items()]
    folder = made_up.written(own_runs, rows, RUN, {"softmax": {}})
    shutil.copy(SAMPLES, made_up.artefact(folder, topic.COLLECTOR, f"{CASE.slug}.csv.gz"))
    return folder


def _shown() -> Timeline:
    return opened(Timeline, run=RUN, kernel="softmax")


@pytest.mark.usefixtures("folder")
def test_timeline_draws_the_activity_of_its_case() -> None:
    shown = _shown()
    assert "softmax_pieces_kernel keeps busy on average: SMs 99 %, tensor cores 0 %, HBM 86 %" in words(shown)
    lines = [one for one in shown.activity.chart.object.renderers if one.name == "activity"]
    assert [len(one.data_source.data["time"]) for one in lines] == [172] * 3


def test_timeline_without_samples_hides_the_strip(folder: Path) -> None:
    shutil.rmtree(folder / "artefacts")
    assert not _shown().activity.layout.visible


def test_sentence_names_the_tail() -> None:
    times = [n * 1e-6 for n in range(11)]
    shares = [1.0] * 8 + [0.5, 0.4, 0.1]
    samples = pd.DataFrame({"launch": 0, "function": "f", "unit": "SMs", "time": times, "share": shares})
    assert "Fewer than 75 % of the SMs are active in the last 30 % of the time." in topic.sentence(samples).text
    assert "Fewer" not in topic.sentence(samples[:8]).text
    assert all(draw(samples, look).renderers for look in (LIGHT, DARK))
