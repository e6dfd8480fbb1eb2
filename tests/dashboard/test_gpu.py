"""What opens from the bar about the GPU, and its figures, fed by an NVML that stands in for a driver."""

import dataclasses
import math
import re
import time
from pathlib import Path
from types import ModuleType

import pytest
from bokeh.models import ColumnDataSource, Legend
from tilescope.runs import store
from tilescope.table.run import Ceiling, Device
from tilescope_dashboard.data.telemetry import Gpu, Sample, Sampler
from tilescope_dashboard.figures.gpu import FIGURES, columns, readings
from tilescope_dashboard.figures.style import DARK, LIGHT
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics.gpu import sentence
from tilescope_dashboard.views.gpu import GpuDialog, described
from tilescope_dashboard.views.jobs import readings as live

from .conftest import PREDICTED, RUN

DEVICE = Gpu(0, "Synthetic <b>GPU</b>", "GPU-0", 1e11, 2e9)
SAMPLES = [
    Sample(100.0, 0.5, 4e10, 1.5e9, 1.8e9, 600.0, 700.0, 61.0, 1e9, 2e9, 0x4),
    Sample(101.0, 0.0, 4e10, 2e9, None, None, 700.0, 60.0, None, None, 0),
]


@pytest.fixture
def sampler(nvml: ModuleType, in_runs: None, monkeypatch: pytest.MonkeyPatch) -> Sampler:
    one = Sampler(nvml, period=0.02)
    monkeypatch.setattr(live, "sampler", lambda: one)
    return one


def test_columns_keep_what_is_absent_absent() -> None:
    found = columns(SAMPLES, DEVICE)
    assert found["time"] == [100_000.0, 101_000.0]
    assert found["power"][0] == 600.0 and math.isnan(found["power"][1])
    assert found["power_text"] == ["600 W", "–"]
    # An idle moment is 0 %, which is not absent.
    assert found["utilization_text"] == ["50.0 %", "0 %"]
    assert found["held"][0] == 1.5e9 and math.isnan(found["held"][1])
    assert found["why"] == ["power cap", "not held"]
    assert len({len(column) for column in found.values()}) == 1


@pytest.mark.parametrize("name", FIGURES)
def test_figure_draws_what_is_streamed_to_its_source(name: str) -> None:
    sources = {f"{i} · GPU": ColumnDataSource(columns(SAMPLES, DEVICE)) for i in range(2)}
    plot = readings(name, sources, LIGHT)
    lines = [renderer for renderer in plot.renderers if renderer.name == name]
    assert [line.data_source for line in lines] == list(sources.values())
    assert lines[0].glyph.line_color != lines[1].glyph.line_color
    limit = FIGURES[name][3]
    assert bool(limit) == any(renderer.name == limit for renderer in plot.renderers if limit)
    assert [item.label.value for item in plot.select_one(Legend).items] == ["GPU 0", "GPU 1"]
    next(iter(sources.values())).stream(columns([Sample(102.0)], DEVICE), rollover=2)
    assert list(lines[0].data_source.data["time"]) == [101_000.0, 102_000.0]


def test_the_headline_speaks_of_the_busiest() -> None:
    other = Gpu(1, "Other")
    assert sentence([(other, Sample(1.0, 0.1)), (DEVICE, SAMPLES[0])]).title == (
        "0 · Synthetic <b>GPU</b>: 50.0 % busy, 600 W of 700 W, clocks held by power cap"
    )
    assert sentence([(other, Sample(1.0, 0.1, power=50.0))]).title == "1 · Other: 10.0 % busy, 50 W"
    assert sentence([]).title == "Waiting for the first reading…"


def wait(sampler: Sampler, count: int) -> None:
    deadline = time.monotonic() + 120
    while len(sampler.samples(1)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_samples_only_while_it_is_open(sampler: Sampler) -> None:
    state = State(run=RUN, kernel="softmax")
    shown = GpuDialog(state)
    assert not sampler.running and not shown.open
    state.panel = "gpu"
    assert sampler.running and shown.sampling
    assert shown.open
    wait(sampler, 3)
    source = shown.readings.charts["power"].object.renderers[0].data_source
    shown.readings.tick()
    known = len(source.data["time"])
    assert known >= 3
    wait(sampler, known + 2)
    shown.readings.tick()
    assert len(source.data["time"]) > known
    assert shown.readings.charts["power"].object.renderers[0].data_source is source
    assert list(shown.table.value["gpu"]) == ["0 · Synthetic GPU A <b>", "1 · Synthetic GPU B <b>"]
    assert list(shown.table.value["held"]) == ["power cap", "–"]
    assert shown.table.filled["sm_clock"].isna().tolist() == [False, True]
    assert "&lt;b&gt;" in shown.head.object and "<b>:" not in shown.head.object
    state.panel = ""
    assert not sampler.running and not shown.open
    state.panel = "gpu"
    assert sampler.running
    state.theme = "dark"
    assert shown.readings.charts["power"].object.background_fill_color == DARK.ground
    state.panel = "profile"
    assert not sampler.running


def test_without_a_gpu_it_says_why(sampler: Sampler, nvml: ModuleType) -> None:
    nvml.nvmlDeviceGetCount = lambda: 0
    shown = GpuDialog(State(run=RUN, kernel="softmax", panel="gpu"))
    assert "the NVIDIA driver lists no GPU" in shown.head.object
    assert not shown.readings.layout.visible and not shown.rows.visible
    assert "Synthetic GPU" in shown.device.object


def test_another_gpu_is_a_run_on_it(sampler: Sampler, runs: Path) -> None:
    state = State(run=RUN, kernel="softmax", panel="gpu")
    shown = GpuDialog(state)
    # Jobs of other tests may have left runs beside them.
    known = [run for run in store.list_runs([runs]) if run.id in (RUN, PREDICTED)]
    state.runs = [dataclasses.replace(run, device="Other GPU") if run.id == PREDICTED else run for run in known]
    assert set(shown.choice.options.values()) == {"Synthetic GPU", "Other GPU"}
    assert shown.choice.visible
    state.param.update(kernel="matmul", runs=state.runs[::-1])  # a job's run brings both at once
    state.kernel = "softmax"
    assert shown.choice.visible
    shown.choice.value = "Other GPU"
    assert (state.run, state.kernel) == (PREDICTED, "softmax")
    state.panel = ""


def test_the_strip_is_there_while_a_job_runs(sampler: Sampler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.device, "lock_name", lambda: "GPU-1")
    shown = live.JobReadings(State(run=RUN, kernel="softmax"))
    assert not shown.layout.visible
    shown.follow(True)
    wait(sampler, 2)
    shown.readings.tick()
    assert shown.layout.visible
    # The GPU that the job runs on, and no other.
    assert "Synthetic GPU B &lt;b&gt;: clocks not told" in shown.said.object
    assert "GPU A" not in shown.said.object
    shown.follow(False)
    assert not shown.layout.visible and not sampler.running


OF_RUN = Device(
    name="<b>GPU</b>", target="sm_90", multiprocessors=132, l2_bytes=50_000_000, memory_bytes=80_000_000_000, measured=True,
    ceilings=(
        Ceiling("hbm", 4.8e12, "byte/second", "datasheet", "a published sheet"),
        Ceiling("hbm", 4.2e12, "byte/second", "measured", "copy of <i>1 GB</i>"),
        Ceiling("fp32", 6.7e13, "flop/second", "datasheet", "a published sheet"),
        Ceiling("l2", 1.05e13, "byte/second", "measured", "re-read; measured at 2026-11-26T07:35:30+00:00"),
        Ceiling("l1", 3.2e13, "byte/second", "measured"),
    ),
)  # fmt: skip


def test_device_card_shows_measured_and_published_roofs() -> None:
    said = described(OF_RUN)
    said = re.sub(r'<span class="value">(.*?)</span>', r"\1", said)
    rows = {
        name: re.findall("<td>(.*?)</td>", cells)
        for name, cells in re.findall("<tr><th>([^<]*)</th>(<td>.*?)</tr>", said)
    }
    mark = ' <sup class="quiet">{}</sup>'
    assert rows["HBM"] == ["4.20 TB/s" + mark.format(1), "4.80 TB/s" + mark.format(2), "87.5 %"]
    # Nobody publishes an L2's: absent is a dash, and so is what would follow from it.
    assert rows["fp32"] == ["–", "67.0 Tflop/s" + mark.format(2), "–"]
    assert rows["L2"] == ["10.5 TB/s" + mark.format(3), "–", "–"]
    assert rows["L1"] == ["32.0 TB/s", "–", "–"]
    notes = ["copy of &lt;i&gt;1 GB&lt;/i&gt;", "a published sheet", "re-read; measured at 2026-11-26 07:35 UTC"]
    assert re.findall("<li>(.*?)</li>", said) == notes
    assert "All runs on this GPU and driver share" in said


def test_a_device_that_was_only_looked_up_says_so() -> None:
    said = described(Device("NVIDIA H200", "sm_90", 132, 1, 1, measured=False))
    assert "from published figures" in said
    assert "<table" not in said
    assert described(None) == ""
    bare = described(Device("NVIDIA T4", "", 0, 0, 0, measured=True))
    assert "Its roofs were not measured" in bare and bare.count("–") == 4 and "0 B" not in bare
