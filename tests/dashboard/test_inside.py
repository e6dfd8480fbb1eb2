"""The view of a program's lanes without a browser."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from tilescope.collectors.lanes import collector, trace
from tilescope.models import lanes as model
from tilescope.models.compare import Side
from tilescope.notebook.opened_run import Profile
from tilescope.runs import store
from tilescope.table.case import Case
from tilescope_dashboard.figures import lanes as figures
from tilescope_dashboard.figures.style import LIGHT
from tilescope_dashboard.report.build import build
from tilescope_dashboard.topics import lanes as topic
from tilescope_dashboard.views.inside import Inside

from tests.profiles import made_up

from .conftest import RUN, field, opened
from .conftest import said as words

FIXTURES = Path(__file__).parents[1] / "profiles" / "fixtures" / "lanes"
CASE = Case("matmul", "triton", "forward", "4096x4096x4096-bf16")


@pytest.fixture(name="folder")
def _folder(own_runs: Path) -> Path:
    """A run with the lanes of a product with partitions."""
    return _made(own_runs, RUN, "hopper")


def _made(runs: Path, name: str, lanes: str) -> Path:
    artefact = FIXTURES / f"{lanes}.trace.json.gz"
    folder = made_up.written(runs, collector.parse(artefact, CASE), name, {"matmul": {}})
    shutil.copy(artefact, made_up.artefact(folder, "lanes", f"{CASE.slug}{collector.SUFFIX}"))
    return folder


def _shown() -> Inside:
    return opened(Inside, run=RUN, kernel="matmul")


def _drawn(shown: Inside, name: str) -> pd.DataFrame:
    found = [pd.DataFrame(dict(one.data_source.data)) for one in shown.chart.object.renderers if one.name == name]
    return pd.concat(found, ignore_index=True).dropna() if found else pd.DataFrame()


@pytest.mark.usefixtures("folder")
def test_inside_draws_lanes_and_arrows_and_says_the_longest_wait() -> None:
    shown = _shown()
    said = words(shown)
    assert "of their time for the TMA load of lines 90 and 97, at line 165" in said
    assert "products are in flight" in said
    assert "1.20× as long with them" in said
    bars = _drawn(shown, "bars")
    assert set(bars["lane"]) == set(shown.chart.object.y_range.factors)
    assert "warp 10, partition1" in set(bars["lane"])
    assert "wait on barrier, for TMA load of lines 90 and 97" in set(bars["name"])
    assert not any(name.endswith(", for ") for name in bars["name"])
    assert set(_drawn(shown, "arrows")["barrier"]) == {"ready", "free"}
    path = _drawn(shown, "path")
    assert set(path["y"]) <= set(bars["lane"]) and path["x"].is_monotonic_increasing
    assert "The critical path is 2" in said
    assert shown.table.filled.iloc[0]["name"] == "wait on barrier"
    assert shown.table.filled["critical"].sum() == pytest.approx(1)
    assert not shown.other.visible
    assert shown.traces.objects[0].label == "Chrome trace of the lanes"


def test_sentence_says_how_long_programs_run_and_what_has_no_records() -> None:
    data = trace.load(FIXTURES / "hopper.trace.json.gz")
    spans, (told,) = trace.spans(data), data.launches
    lines = trace.by_line(spans).assign(critical=0.0)
    for longest, without, said, silent in (
        (150e-6, ["copy"], ("Its programs run for 150 µs of that", "No records are of copy"), ()),
        (300e-6, [], (), ("programs run for", "No records")),
    ):
        text = topic.sentence(model.Lanes(spans, [told | {"longest": longest, "without": without}]), 0, lines).text
        assert all(one in text for one in said) and not any(one in text for one in silent)


@pytest.mark.usefixtures("folder")
def test_inside_filter_takes_operations_and_lines() -> None:
    shown = _shown()
    field(shown, "operation or line contains").value = "172"
    assert set(shown.table.filled["line"]) == {172, 181}
    whole, seen = shown.chart.object.x_range, (2e-6, 3e-6)
    end = whole.end
    whole.update(start=seen[0], end=seen[1])
    field(shown, "operation or line contains").value = "tma LOAD"
    now = shown.chart.object.x_range
    assert ((now.start, now.end), (now.reset_start, now.reset_end)) == (seen, (0, end))
    assert not any("short spans" in name for name in _drawn(shown, "bars")["name"])
    assert {165, 90, 97} == set(shown.table.filled["line"])
    assert set(_drawn(shown, "bars")["alpha"]) > {0.12}


def test_baseline_stands_below_along_the_same_steps(folder: Path) -> None:
    other = _made(folder.parent, "20260101-030405-bbbb", "product").name
    shown = opened(Inside, run=RUN, kernel="matmul", compared=[other])
    assert "20260101-030405-bbbb: mm_kernel: warps wait 4.35 % of their time for the product of line 34" in words(shown)
    assert shown.chart.object.x_range is shown.other.object.x_range
    assert shown.chart.object.xaxis.axis_label == "step of the loop"
    products = pd.DataFrame(dict(shown.other.object.select_one({"tags": ["product"]}).data_source.data))
    assert products.loc[products["lane"] == "warp 0", "start"].tolist() == list(range(16))
    lines = shown.table.filled
    assert lines.loc[lines["line"] == 165, "time_before"].isna().all()
    assert lines["critical_before"].sum() == pytest.approx(1) and lines["critical"].sum() == pytest.approx(1)
    field(shown, "along").value = "time"
    assert shown.chart.object.xaxis.axis_label == "time after the program began"
    shown.state.compared = []
    assert not shown.other.visible


def test_baseline_that_is_damaged_leaves_the_lanes(folder: Path) -> None:
    other = _made(folder.parent, "20260101-030405-bbbb", "product")
    artefact = next((other / "artefacts" / "lanes").iterdir())
    artefact.write_bytes(artefact.read_bytes()[:-400])
    shown = opened(Inside, run=RUN, kernel="matmul", compared=[other.name])
    assert f"{other.name} cannot be read." in words(shown) and "cut off or damaged" in words(shown)
    assert len(_drawn(shown, "bars")) and not shown.other.visible
    shown.state.compared = []
    assert "cannot be read" not in words(shown)


def test_lanes_that_are_damaged_are_said_alone(folder: Path) -> None:
    damaged = _made(folder.parent, "20260101-030405-bbbb", "product")
    artefact = next((damaged / "artefacts" / "lanes").iterdir())
    artefact.write_bytes(artefact.read_bytes()[:-400])
    shown = _shown()
    shown.state.run = damaged.name
    assert "cut off or damaged" in words(shown) and "TMA load" not in words(shown)
    assert not shown.body.visible
    shown.state.run = RUN
    assert "cut off or damaged" not in words(shown) and shown.body.visible


def test_notebook_shows_the_lanes_as_the_app_does(folder: Path) -> None:
    said = str(Profile.of(store.open_run(folder)).inside("matmul"))
    assert "for the TMA load of lines 90 and 97, at line 165" in said
    assert "wait on barrier" in said


def test_lanes_of_another_size_say_whose_they_are() -> None:
    """The recorded lanes of matmul are of a smaller size than that which is shown first."""
    shown = opened(Inside, kernel="matmul")
    assert shown.state.standing.workload == "8192x8192x8192-bf16"
    assert "These are the lanes of 4096x4096x4096-bf16, forward." in words(shown)


def test_inside_without_the_artefact_says_what_to_do(folder: Path) -> None:
    shutil.rmtree(folder / "artefacts")
    shown = _shown()
    assert "keeps no lanes" in words(shown)
    assert not shown.body.visible


@pytest.mark.usefixtures("in_runs")
def test_inside_of_a_run_without_lanes_says_what_to_do() -> None:
    shown = opened(Inside, run=RUN, kernel="softmax")
    assert "--collect lanes" in words(shown)
    assert not shown.body.visible


def test_many_spans_share_bars_until_fewer_are_seen() -> None:
    count = figures.MOST + 5
    place = pd.Series(range(count))
    spans = pd.DataFrame(
        {
            "lane": "warp 0", "warp": 0, "kind": "wait", "name": "wait for copies", "line": 1, "awaits": "",
            "start": place * 2e-6, "end": place * 2e-6 + 1e-6, "duration": 1e-6,
        }
    )  # fmt: skip
    arrows = pd.DataFrame(
        {
            "barrier": "%ready", "from_warp": 1, "from_time": spans["start"], "to_warp": 0, "to_time": spans["end"],
            "wait": 1e-6 + place * 1e-9,
        }
    )  # fmt: skip
    program = model.Program(spans, arrows, spans.head(0))
    plot = figures.lanes(program, LIGHT)
    (bars,) = [one for one in plot.renderers if one.name == "bars"]
    waits = next(one for one in plot.renderers if one.name == "arrows")

    def drawn() -> tuple[list[str], list[str]]:
        names = list(bars.data_source.data["name"])[1:]  # the first is the legend's
        return [name for name in names if "short spans" not in name], [name for name in names if "short spans" in name]

    alone, together = drawn()
    assert len(alone) <= figures.MOST and len(together) == 100
    assert sum(int(name.split()[0].replace(",", "")) for name in together) + len(alone) == count
    assert "most of them wait" in together[0]
    # Among a few chosen spans, a bar of others does not stand out.
    few = figures.lanes(program._replace(spans=spans.assign(chosen=place < 3)), LIGHT)
    (chosen,) = [one for one in few.renderers if one.name == "bars"]
    for data, faint in ((bars.data_source.data, False), (chosen.data_source.data, True)):
        shared = [alpha for name, alpha in zip(data["name"], data["alpha"], strict=True) if "short spans" in name]
        assert shared and (max(shared) < 0.2) == faint
    assert set(waits.data_source.data["x1"]) == set(spans["end"].tail(figures.MOST_ARROWS))
    figures.follow(plot, program)
    plot.x_range.update(start=1e-5, end=2e-5)
    # The figure has three times what is seen, so that it can be moved.
    alone, together = drawn()
    assert (len(alone), len(together)) == (16, 0)
    assert sorted(waits.data_source.data["x0"]) == sorted(bars.data_source.data["start"][1:])


def test_report_shows_the_lanes_and_their_lines(folder: Path) -> None:
    report = build([Side(store.open_run(folder))])
    (part,) = [one for one in report.runs[0].kernels[0].parts if one.title == "Inside"]
    assert "at line 165" in part.text
    assert {one.name for one in part.drawings[0](LIGHT).renderers} >= {"bars", "arrows", "path"}
    assert part.table and part.table.rows.iloc[0]["line"] == 165


def test_report_is_written_though_the_lanes_are_damaged(folder: Path) -> None:
    artefact = next((folder / "artefacts" / "lanes").iterdir())
    artefact.write_bytes(artefact.read_bytes()[:-400])
    report = build([Side(store.open_run(folder))])
    (part,) = [one for one in report.runs[0].kernels[0].parts if one.title == "Inside"]
    assert "cut off or damaged" in part.text and not part.drawings
