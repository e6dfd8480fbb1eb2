"""The page of a model's step: its modules as an icicle, its kernels on one roofline, and the way to a kernel's page."""

import dataclasses
from html import escape
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from tilescope.files import bounded_reading, json_shape
from tilescope.hardware import device
from tilescope.hardware.roofs import all_roofs
from tilescope.models import ledger, step_tables
from tilescope.notebook import modelling
from tilescope.runs import steps, store
from tilescope.table.run import Run
from tilescope.table.step import Step
from tilescope_dashboard.figures.model import icicle, step_roofline
from tilescope_dashboard.figures.style import DARK, LIGHT
from tilescope_dashboard.session.jobs import JobManager
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import model as topic
from tilescope_dashboard.views.form.profile import ProfileForm
from tilescope_dashboard.views.home import Home
from tilescope_dashboard.views.kernel_bar import KernelBar
from tilescope_dashboard.views.model import Model
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.summary import Summary

from .conftest import field, opened, said

STEP = Path(__file__).parents[1] / "profiles" / "fixtures" / "steps" / "transformer_block_h200.json.gz"
H200 = device.for_target("sm_90")


@pytest.fixture(scope="module")
def step() -> Step:
    found: Step = json_shape.fit(bounded_reading.data_of(STEP), Step, "")
    return found


def columns(plot: Any, name: str) -> dict[str, Any]:
    Document().add_root(plot)
    data: dict[str, Any] = plot.select_one({"name": name}).data_source.data
    return data


def test_icicle_parts_lie_below_their_module(step: Step) -> None:
    tree = step_tables.tree(step, ledger.of(step, H200))
    data = columns(icicle(tree, LIGHT), "modules")
    spans = dict(zip(data["path"], zip(data["left"], data["right"], data["top"], strict=True), strict=True))
    for path, (left, right, top) in spans.items():
        parent = spans.get(path.rpartition(".")[0])
        if parent:
            assert parent[0] <= left + 1e-12 and right <= parent[1] + 1e-12 and top == parent[2] - 1
    assert columns(icicle(tree.head(1), DARK), "modules")["left"] == [0]
    assert icicle(tree.head(0), LIGHT).select_one({"name": "modules"}) is None


def test_operators_on_lists_have_as_many_elements_as_their_bytes_hold() -> None:
    """Their only recorded shapes are those of numbers."""
    (file,) = store.recorded_dir().glob(f"*/{steps.STEP}")
    found = topic.of_run(store.open_run(file.parent))
    assert found and "GPT2.head loses the most" in topic.sentence(found).text
    kernels = found.kernels
    of_lists = kernels[kernels["operator"].str.contains("_foreach")]
    assert len(of_lists) and (of_lists["operations"] / of_lists["moved"]).tolist() == pytest.approx(
        [0.25] * len(of_lists)
    )


def test_tree_of_alike_layers_has_the_time_of_all(step: Step) -> None:
    found = ledger.of(step, H200)
    every, alike = step_tables.tree(step, found), step_tables.tree(step, found, alike=True)
    assert not alike["path"].str.contains(r"\.\d").any() and alike["path"].str.endswith(".*").any()
    assert len(alike) < len(every)
    assert [table.loc[table["depth"] == 0, "time"].sum() for table in (every, alike)] == pytest.approx([found.busy] * 2)


def test_step_roofline_area_is_the_share_and_modelled_is_hollow(step: Step) -> None:
    kernels = step_tables.kernels(step, ledger.of(step, H200))
    computes = ~kernels["function"].str.contains("Memcpy|Memset")
    assert kernels.loc[~computes, "intensity"].isna().all()
    kernels = kernels[computes & kernels["intensity"].notna()].head(4)
    kernels = kernels.assign(share=[0.64, 0.16, 0.04, 0.01], bytes_from=["counted", "counted", "counted", "modelled"])
    data = columns(step_roofline(kernels, all_roofs(H200), LIGHT), "points")
    assert list(data["size"] / data["size"][0]) == pytest.approx([1, 0.5, 0.25, 0.125])
    assert [fill == "#00000000" for fill in data["fill"]] == [False, False, False, True]
    small = kernels.assign(share=[0.64, 0.16, 0.001, 0.0009])
    assert len(columns(step_roofline(small, all_roofs(H200), LIGHT), "points")["row"]) == 3
    bare = kernels.assign(intensity=float("nan"))
    assert step_roofline(bare, all_roofs(H200), DARK).select_one({"name": "points"}) is None


def test_model_run_opens_in_its_view_and_its_kernels_in_no_other(step: Step, own_runs: Path) -> None:
    gpu = dataclasses.replace(H200, measured=True)
    run = Run(
        "20260101-000000-0001",
        "2026-01-01T00:00:00+00:00",
        gpu,
        {},
        {},
        {"target": "sm_90", "tool": "tilescope model", "script": "<train>.py"},
        "a",
    )
    written = modelling.write(run, modelling.table(step), dataclasses.replace(step, power={"energy": 2.0}), own_runs)
    state = State(run=written.run.id, kernel="softmax")
    assert (state.view, state.kernel) == ("model", "")
    shown = Model(state)
    shown.refresh()
    assert "could not be drawn" not in shown.head.object
    assert "A step uses 2.00 J." in str(shown.advice.object)
    assert "tilescope watch &lt;train&gt;.py" in str(shown.of_kernels.object)
    marks = shown.roofline.object.select_one({"name": "points"}).data_source
    marks.selected.indices = [1]
    assert shown.kernels.selection == [marks.data["row"][1]]
    names = {*step_tables.kernels(step, ledger.of(step, gpu))["kernel"]}
    assert names.isdisjoint(opened(Home).rows["kernel"]) and names.isdisjoint(state.kernels)
    state.bar = True
    for view in (Roofline, Summary, Overview):
        state.view = view.name_in_address
        other = view(state)
        other.refresh()
        text = said(other)
        assert escape("This run is a model's step") in text and f"?view=model&amp;run={state.run}" in text
        assert "--collect" not in text and "timed" not in text
    assert (other.chart.visible, other.cases.visible, len(other.runs.filled) > 1) == (False, False, True)
    for part in (KernelBar(state), ProfileForm(state, JobManager())):
        kernel = field(part, "kernel")
        # The browser would choose the first of options without the value.
        assert (kernel.value, next(iter(kernel.options.values()))) == ("", "")
    state.kernel = next(iter(names))
    assert (state.view, state.kernel, state.run) == ("model", "", written.run.id), "a link of former versions"
    state.go_to(kernel="softmax")
    assert state.run != written.run.id and not state.of_step
    state.view = "model"
    shown.refresh()
    assert shown.loaded_run.run.id != written.run.id, "the newest step, where none is open"
    state.run = written.run.id
    assert shown.loaded_run.run.id == written.run.id


def test_kernel_with_a_run_of_its_own_can_be_chosen_beside_its_step(step: Step, own_runs: Path) -> None:
    gpu = dataclasses.replace(H200, measured=True)
    launched = dataclasses.replace(step.launches[0], name="softmax")
    same = dataclasses.replace(step, launches=(launched, *step.launches[1:]))
    run = Run("20260101-000000-0001", "2026-01-01T00:00:00+00:00", gpu, {}, {}, {"target": "sm_90"}, "")
    written = modelling.write(run, modelling.table(same), same, own_runs)
    state = State(run=written.run.id)
    state.go_to(kernel="softmax")
    assert (state.view, state.kernel) == ("summary", "softmax") and not state.of_step


def test_step_whose_launches_take_no_time_is_shown(step: Step, own_runs: Path) -> None:
    still = dataclasses.replace(step, launches=())
    run = Run("20260101-000000-0001", "2026-01-01T00:00:00+00:00", H200, {}, {}, {"target": "sm_90"}, "")
    found = topic.of_run(modelling.write(run, modelling.table(step), still, own_runs))
    assert found and found.modules.empty
    assert topic.sentence(found).title.startswith("A step")
