"""The page of a model's step: its modules as an icicle, its kernels on one roofline, and the way to a kernel's page."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document
from tilescope.files import bounded_reading, json_shape
from tilescope.hardware import device
from tilescope.hardware.roofs import all_roofs
from tilescope.models import ledger, step_tables
from tilescope.notebook import modelling
from tilescope.table.run import Run
from tilescope.table.step import Step
from tilescope_dashboard.figures.model import icicle, step_roofline
from tilescope_dashboard.figures.style import DARK, LIGHT
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.home import Home
from tilescope_dashboard.views.model import Model

from .conftest import opened

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


def test_step_roofline_area_is_the_share_and_modelled_is_hollow(step: Step) -> None:
    kernels = step_tables.kernels(step, ledger.of(step, H200)).head(4)
    kernels = kernels.assign(share=[0.64, 0.16, 0.04, 0.01], bytes_from=["counted", "counted", "counted", "modelled"])
    data = columns(step_roofline(kernels, all_roofs(H200), LIGHT), "points")
    assert list(data["size"] / data["size"][0]) == pytest.approx([1, 0.5, 0.25, 0.125])
    assert [fill == "#00000000" for fill in data["fill"]] == [False, False, False, True]
    bare = kernels.assign(intensity=float("nan"))
    assert step_roofline(bare, all_roofs(H200), DARK).select_one({"name": "points"}) is None


def test_model_click_on_a_kernel_opens_its_page(step: Step, own_runs: Path) -> None:
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
    state = State(run=written.run.id, view="model")
    shown = Model(state)
    shown.refresh()
    assert not shown.trouble.visible
    assert "A step uses 2.00 J." in str(shown.advice.object)
    assert "tilescope watch &lt;train&gt;.py" in str(shown.of_kernels.object)
    wanted = str(step_tables.kernels(step, ledger.of(step, gpu))["kernel"][3])
    shown.kernels.open(3)
    assert (state.kernel, state.view) == (wanted, "summary")
    home = opened(Home)
    assert wanted not in set(home.rows["kernel"]), "a step's kernels are on the step's page"
