"""The timeline's figure, view and trace links without a browser."""

import asyncio
import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from bokeh.models import CustomJSTickFormatter, HoverTool
from bokeh.plotting import figure
from tilescope.models import timeline as model
from tilescope.table.case import Case
from tilescope_dashboard.components.charts import chart
from tilescope_dashboard.figures import timeline as figures
from tilescope_dashboard.figures.style import LIGHT, colour
from tilescope_dashboard.views.timeline import Timeline

from tests.profiles import made_up

from . import synthetic
from .conftest import PREDICTED, RUN, field, opened
from .conftest import said as words

pytestmark = pytest.mark.usefixtures("in_runs")

HOSTILE = "void at::native::<script>alert(1)</script>kernel<" + "at::native::Functor<float>, " * 12 + ">(int)"


def launches(count: int, function: str = "kernel", late: float = np.nan) -> pd.DataFrame:
    """Launches of 2 us with a gap of 1 us before each but the first."""
    place = np.arange(count)
    gap = np.where(place > 0, 1e-6, np.nan)
    fixed = {"run_id": "", "kernel": "k", "impl": "triton", "pass": "forward", "workload": "8-fp32", "dtype": "fp32",
             "config": "", "source": "torch_profiler", "sample": 0, "function": function, "call": np.nan}  # fmt: skip
    times = {
        "launch": place, "start": place * 3e-6, "duration": 2e-6, "gap": gap,
        "late": np.where(place > 0, late, np.nan),
    }  # fmt: skip
    return pd.DataFrame({**fixed, **times})[model.COLUMNS]


def rows(plot: figure, name: str) -> pd.DataFrame:
    found = [pd.DataFrame(dict(glyph.data_source.data)) for glyph in plot.renderers if glyph.name == name]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


@pytest.mark.parametrize(
    ("late", "name", "cause"),
    [
        (0.5e-6, figures.LATE, "500 ns after the GPU became idle"),
        (0.0, figures.IN_TIME, "called before the GPU became idle: this is a launch gap"),
        (np.nan, figures.UNKNOWN, "unknown"),
    ],
)
def test_a_gap_is_drawn_by_its_cause(late: float, name: str, cause: str) -> None:
    plot = figures.timeline(launches(3, late=late), LIGHT)
    gaps = rows(plot, name)
    assert gaps["left"].tolist() == pytest.approx([2e-6, 5e-6])
    assert gaps["right"].tolist() == pytest.approx([3e-6, 6e-6])
    assert all(cause in said for said in gaps["cause"])
    drawn = {figures.LATE, figures.IN_TIME, figures.UNKNOWN}
    assert all(rows(plot, other).empty for other in drawn - {name})


def test_timeline_implementation_has_its_colour_and_functions_patterns() -> None:
    frame = launches(13).assign(function=[f"kernel_{place}" for place in range(13)])
    plot = figures.timeline(frame, LIGHT)
    drawn = rows(plot, "bars")
    bars, others = drawn.head(10), drawn.tail(3)
    assert set(bars["shade"]) == {colour("triton", LIGHT)} and set(others["shade"]) == {LIGHT.muted}
    assert bars["pattern"].nunique() == 10 and set(others["pattern"]) == {" "}
    items = {item.label.value: item.index for item in plot.legend[0].items if item.index is not None}
    assert items == {f"kernel_{place}": place for place in range(10)} | {figures.OTHERS: 10}


def test_timeline_figure_takes_other_launches_of_its_parts() -> None:
    place, frame = chart(), launches(2).assign(function=["long", "short"], duration=[3e-6, 2e-6])
    place.exchange(figures.content(frame, LIGHT), figures.drawn)
    shown = place.object
    swapped = frame.assign(function=["short", "long"], duration=[2e-6, 3e-6], chosen=[True, False])
    place.exchange(figures.content(swapped, LIGHT), figures.drawn)
    assert place.object is shown
    assert rows(shown, "bars")["alpha"].tolist() == [0.92, 0.18]
    named = {item.label.value: item.index for item in shown.legend[0].items}
    assert (named["long"], named["short"]) == (1, 0)
    place.exchange(figures.content(launches(3), LIGHT), figures.drawn)
    assert place.object is not shown


def test_hostile_names_are_text_and_whole() -> None:
    plot = figures.timeline(launches(2, function=HOSTILE), LIGHT)
    assert set(rows(plot, "bars")["function"]) == {HOSTILE}
    # Bokeh escapes what stands for a column unless it is called safe.
    hovers = [tool for tool in plot.tools if isinstance(tool, HoverTool)]
    assert not any("{safe}" in str(hover.tooltips) for hover in hovers)
    # Those of launches that share a pixel would cover the page.
    assert {hover.limit for hover in hovers} == {1}
    assert len(plot.legend[0].items[0].label.value) <= 28
    assert isinstance(plot.xaxis[0].formatter, CustomJSTickFormatter)


def test_ten_thousand_launches_share_bars_and_all_count() -> None:
    frame = launches(10_000, function=HOSTILE)
    long = 7_000
    frame.loc[long, "duration"] = 2.5e-6
    frame.loc[5_000, "gap"] = 2e-6
    frame["chosen"] = frame["launch"] == 9_999
    plot = figures.timeline(frame, LIGHT)
    bars, shared = rows(plot, "bars"), rows(plot, "shared")
    assert len(bars) == 2
    assert len(shared) <= 1_001
    counted = shared["text"].str.extract(r"^([\d,]+) short")[0].str.replace(",", "").astype(int)
    assert len(bars) + counted.sum() == 10_000
    # The longest and the one that was asked for have a bar of their own; the longest gap is drawn.
    assert {long + 1, 10_000} <= set(bars["number"])
    assert 5_001 in set(rows(plot, figures.UNKNOWN)["number"])


def test_timeline_view_fills_and_filters_its_tables() -> None:
    shown = opened(Timeline, run=RUN, kernel="softmax")
    assert "triton: GPU busy 100 %" in words(shown)
    assert shown.totals.filled["impl"].tolist() == ["triton", "compile", "eager"]
    assert shown.totals.filled["launches"].tolist() == [1, 2, 4]
    compiled = shown.table.filled.query("impl == 'compile'")
    assert compiled["gap"].iloc[1] == pytest.approx(8e-6)
    assert compiled["late"].iloc[1] == pytest.approx(6e-6)
    # A hundred thousand launches: the browser gets a page of them at a time, and the files hold them all.
    assert (shown.table.pagination, shown.table.page_size) == ("remote", 12)
    field(shown, "repetition").value = 4
    assert set(shown.totals.filled["sample"]) == {4}
    slow = shown.totals.filled["window"].max()
    field(shown, "workload").value = ("1823x781-bf16", "backward")
    assert shown.totals.filled["window"].max() < slow
    before = shown.totals.filled
    field(shown, "function contains").value = "EAGER_3"
    assert shown.table.filled["function"].tolist() == ["softmax_eager_3"]
    # The gaps and totals are the whole call's all the same.
    assert shown.totals.filled.equals(before)
    field(shown, "function contains").value = "(["
    assert shown.table.filled.empty


def test_the_sentence_names_the_longest_gap_and_its_cause(own_runs: Path) -> None:
    assert "is before second: the CPU had called before the GPU became idle, so this is a launch gap" in _sentence(
        own_runs, "a", calls=(-5.0, 9.0)
    )
    assert "40.0 µs, is before second: the GPU waited on the CPU for 35.0 µs" in _sentence(
        own_runs, "b", calls=(-5.0, 45.0)
    )
    said = _sentence(own_runs, "c", calls=())
    assert "its cause is unknown" in said
    assert "Profile the kernel again" in said


def _sentence(folder: Path, end: str, calls: tuple[float, ...]) -> str:
    """The view's headline for two launches of 10 us, 40 us apart, called at these microseconds."""
    case = Case("relu", "triton", "forward", "8-fp32")
    found = []
    for launch, (name, start) in enumerate((("first", 0), ("void n::second<int>(int)", 50))):
        values = {"launch_start": start, "gpu_time": 10, **({"launch_call": calls[launch]} if calls else {})}
        at = {"launch": launch, "function": name, "sample": 0}
        found += [case.row(metric, value * 1e-6, "torch_profiler", **at) for metric, value in values.items()]
    identity = f"20260102-030405-{end * 4}"
    if not (folder / identity).exists():
        made_up.written(folder, found, identity, {"relu": {}})
    shown = opened(Timeline, run=identity, kernel="relu")
    return f"{shown.head.object} {shown.caption.object}"


def test_timeline_without_starts_says_what_to_do(own_runs: Path, no_recordings: None) -> None:
    synthetic.write_run(own_runs, PREDICTED, measured=False)
    shown = opened(Timeline, run=PREDICTED)
    assert "--collect torch_profiler</code> on a GPU." in words(shown)
    assert not shown.body.visible
    assert not shown.traces.objects


def test_traces_shown_and_kept(own_runs: Path) -> None:
    folder = synthetic.write_run(own_runs, RUN)
    shown = opened(Timeline, run=RUN, kernel="softmax")
    row, *_, note = shown.traces.objects
    (made,) = row.objects
    trace = json.loads(gzip.decompress(asyncio.run(made.callback()).getvalue()))
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 7
    assert made.filename.endswith(".trace.json.gz")
    assert "keeps no trace" in note.object
    case = Case("softmax", "eager", "forward", "16384x4096-bf16")
    made_up.artefact(folder, "torch_profiler", f"{case.slug}.trace.json.gz").write_bytes(b"as it was")
    shown.update()
    row, *_, note = shown.traces.objects
    assert [button.label for button in row.objects][1:] == ["torch.profiler's trace of unfused"]
    assert asyncio.run(row.objects[1].callback()).getvalue() == b"as it was"
    assert "keeps no trace" not in note.object


def test_trace_of_an_own_kernel_is_found(own_runs: Path) -> None:
    # Its collectors know it by its file, the run's table by its name, which may be one of the library's.
    case = Case("/home/me/my [kernels].py:softmax", "triton", "forward", "8-fp32")
    others = Case("/home/me/my [kernels].py:not_softmax", "triton", "forward", "8-fp32")
    at = {"launch": 0, "function": "k", "sample": 0}
    times = {"launch_start": 0.0, "gpu_time": 1e-5}
    rows = [case.row(name, value, "torch_profiler", **at) for name, value in times.items()]
    folder = made_up.written(own_runs, rows, RUN, {"softmax": {}})
    made_up.artefact(folder, "torch_profiler", f"{others.slug}.trace.json.gz").write_bytes(b"another's")
    shown = opened(Timeline, run=RUN, kernel="softmax")
    assert "keeps no trace" in shown.traces.objects[-1].object
    made_up.artefact(folder, "torch_profiler", f"{case.slug}.trace.json.gz").write_bytes(b"as it was")
    shown.update()
    row, *_, note = shown.traces.objects
    assert [button.label for button in row.objects][1:] == ["torch.profiler's trace of triton"]
    assert asyncio.run(row.objects[1].callback()).getvalue() == b"as it was"
    assert "keeps no trace" not in note.object
