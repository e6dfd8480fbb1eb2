"""The bar over the views: what is chosen there is every view's and in the address, and Back takes it back."""

import dataclasses
from pathlib import Path

import pytest
from tilescope.runs import store
from tilescope_dashboard.components.choice import Choice
from tilescope_dashboard.data.kernel_cases import KernelCase
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.kernel_bar import KernelBar

from tests.profiles import made_up
from tests.recorded import recorded

from . import synthetic
from .conftest import PREDICTED, RUN, field


@pytest.fixture
def bar(in_runs: None, runs: Path) -> KernelBar:
    state = State(run=RUN, kernel="softmax")
    state.runs = store.list_runs([runs])
    return KernelBar(state)


def test_bar_shows_the_standing_case_and_chooses_none(bar: KernelBar) -> None:
    assert (field(bar, "kernel").value, field(bar, "size").value, field(bar, "pass").value, field(bar, "implementation").value) == (
        "softmax", "16384x4096-bf16", "forward", "triton",
    )  # fmt: skip
    assert bar.state.case == ""
    assert field(bar, "baseline").value == ""
    # What Summary compares with then.
    assert next(iter(field(bar, "baseline").options)) == "unfused (usual)"


def test_bar_over_a_model_has_a_run_but_no_case(bar: KernelBar) -> None:
    bar.state.view = "model"
    assert field(bar, "kernel").value == "" and "of-run" in bar.lists.css_classes
    field(bar, "run").value = PREDICTED
    assert (bar.state.run, bar.state.view) == (PREDICTED, "model")
    field(bar, "kernel").value = "softmax"
    assert bar.state.view == "summary"


def test_the_same_choice_under_another_name_is_seen_by_that_name() -> None:
    chosen = Choice("baseline", 100, lambda: None, options={"eager (usual)": ""}, value="")
    sent = chosen.get_root().data
    chosen.offer({"none": "", "a run": "run"}, "")
    assert sent.value == "none"


def test_each_list_changes_its_own_part_of_the_case(bar: KernelBar) -> None:
    field(bar, "size").value = "1823x781-bf16"
    field(bar, "pass").value = "backward"
    field(bar, "implementation").value = "eager"
    assert bar.state.chosen == KernelCase("eager", "backward", "1823x781-bf16")
    bar.state.case = ""
    assert (field(bar, "size").value, field(bar, "pass").value, field(bar, "implementation").value) == (
        "16384x4096-bf16", "forward", "triton",
    )  # fmt: skip
    field(bar, "baseline").value = f"{RUN}:eager"
    assert bar.state.compared == [f"{RUN}:eager"]
    field(bar, "baseline").value = ""
    assert bar.state.compared == []


def test_kernel_chosen_on_home_opens_its_summary(bar: KernelBar) -> None:
    bar.state.view = "home"
    assert "of-all" in bar.lists.css_classes
    for kernel in ("matmul", "matmul"):  # the one that was looked at last as well
        bar.state.view = "home"
        assert field(bar, "kernel").value == ""
        field(bar, "kernel").value = kernel
        assert (bar.state.view, bar.state.kernel, field(bar, "kernel").value) == ("summary", kernel, kernel)
    assert "of-all" not in bar.lists.css_classes


def test_several_baselines_of_an_address_stay(bar: KernelBar) -> None:
    both = [f"{RUN}:compile", f"{RUN}:eager"]
    bar.state.compared = both
    assert bar.state.compared == both
    assert "2 baselines" in field(bar, "baseline").options


def test_labels_name_triton_where_versions_differ(bar: KernelBar) -> None:
    found = [run for run in store.list_runs([store.recorded_dir()]) if "softmax" in run.kernels]
    bar.state.param.update(runs=found, run=found[-1].id)
    assert not any("Triton" in label for name in ("run", "baseline") for label in field(bar, name).options)
    bar.state.runs = [dataclasses.replace(found[0], triton="3.7.0"), *found[1:]]
    assert [label for label in field(bar, "run").options if "Triton 3.7.0" in label]
    assert all("Triton 3." in label for label in field(bar, "run").options)
    assert [label for label in field(bar, "baseline").options if "Triton 3.7.0)" in label]


def test_run_without_a_time_is_listed_with_its_error(tmp_path: Path) -> None:
    made_up.redescribe(synthetic.write_run(tmp_path, RUN, ("layer_norm",)), started="yesterday")
    (listed,) = store.list_runs([tmp_path])
    assert "'yesterday'" in listed.error


def test_lists_unfold_until_something_opens(bar: KernelBar) -> None:
    def folded() -> bool:
        return "folded" in bar.lists.css_classes

    assert folded()
    bar.state.panel = "lists"
    assert not folded()
    field(bar, "size").value = "1823x781-bf16"
    assert not folded(), "one may choose more"
    field(bar, "run").value = PREDICTED
    assert folded() and bar.state.panel == ""
    for _ in range(2):  # the browser sends it a second time
        bar.state.panel = "cupboard"
    assert (bar.state.panel, bar.state.ignored) == ("", "nothing that opens: 'cupboard'")


def test_nothing_is_chosen_where_the_run_has_nothing(bar: KernelBar) -> None:
    bar.state.kernel = "in_no_run"
    assert field(bar, "size").disabled and field(bar, "pass").disabled and field(bar, "implementation").disabled
    assert (field(bar, "size").value, field(bar, "pass").value, field(bar, "implementation").value) == ("–", "–", "–")
    assert bar.state.standing is None
    bar.state.kernel = "layer_norm"
    assert not field(bar, "size").disabled
    bar.state.run = "20200101-000000-0000"
    assert field(bar, "kernel").value == "layer_norm"
    # The view says that it cannot be shown.
    assert next(iter(field(bar, "run").options)) == "20200101-000000-0000"


def test_a_size_of_another_run_is_offered_and_opens_it(bar: KernelBar, monkeypatch: pytest.MonkeyPatch) -> None:
    bar.state.runs = [run for run in store.list_runs([store.recorded_dir()]) if "causal_attention" in run.kernels]
    bar.state.param.update(run=recorded("attention: autotune sweeps"), kernel="causal_attention")
    before, long = list(field(bar, "size").options), "1x8x1x16384x16384x128-bf16"
    assert long not in before
    while bar.read_next():
        pass
    assert list(field(bar, "size").options)[: len(before)] == before
    field(bar, "size").value = long
    assert bar.state.run == recorded("causal_attention")
    assert bar.state.chosen == KernelCase("triton", "forward", long)
    assert not bar.state.ignored
    assert field(bar, "size").value == long
