"""Home: the library and its claims, what it is made of, and where a click leads."""

import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tilescope.models import claims as model
from tilescope.runs.store import Summary as Listed
from tilescope.runs.writer import RunWriter
from tilescope.table.run import Failure
from tilescope_dashboard.components.tables import link_table
from tilescope_dashboard.session.state import State
from tilescope_dashboard.topics import home as topic
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.history import History
from tilescope_dashboard.views.home import Home
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.summary import Summary

from tests.profiles import made_up

from . import synthetic
from .conftest import RUN, field, opened
from .conftest import said as words


def claimed(kernel: str, workload: str, run: str = "rec", **changes: Any) -> dict[str, Any]:
    """A row of ``claims.best`` of which nothing is known but what is given."""
    kinds = {"str": "", "bool": False, "float64": math.nan}
    known = {
        "kernel": kernel, "workload": workload, "pass": "forward", "run": run, "device": "NVIDIA H200",
        "started": "2026-01-02",
    }  # fmt: skip
    return {**{name: kinds[kind] for name, kind in model.COLUMNS.items()}, **known, **changes}


def rows(*known: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(known, columns=list(model.COLUMNS)).astype(model.COLUMNS)


RUNS = [
    Listed("mine", Path("mine"), kernels=("gelu",), measured=True),
    Listed("guess", Path("guess"), started="2026-01-03T00:00", device="H100", kernels=("only_predicted",)),
    Listed("rec", Path("rec"), kernels=("softmax", "gelu"), recorded=True, measured=True),
]
FAMILIES = {"gelu": "elementwise", "softmax": "reductions", "matmul": "matrix products"}
RECORDED = rows(
    claimed("gelu", "1-fp32", over_eager=9.0),
    claimed("softmax", "1-bf16", of_roof=0.1, over_eager=0.5, claim="about 4×", claim_over="eager", verdict="less"),
    claimed("softmax", "2-bf16", of_roof=0.95, over_eager=7.0, over_library=1.5, library="liger", claim="about 4×",
            claim_over="eager", verdict="more"),
    claimed("softmax", "9-bf16", over_eager=2.0, **{"pass": "backward"}),
)  # fmt: skip


def test_home_compares_the_largest_forward_size() -> None:
    shown = topic.kernels(RECORDED, RUNS, FAMILIES).set_index("kernel")
    softmax = shown.loc["softmax"]
    assert (softmax["workload"], softmax["quickest"], softmax["other"]) == ("2-bf16", 1.5, "liger")
    named = topic.kernels(
        RECORDED.assign(library="aten"), RUNS, FAMILIES, declared={"softmax": {"aten": "torch.nn.functional.softmax"}}
    )
    assert named.set_index("kernel").loc["softmax", "other"] == "F.softmax"
    assert (softmax["claim"], softmax["judged"]) == ("about 4× vs unfused", "worse at 1, better at 1 of 2")
    assert softmax["origin"] == "H200, 2026-01-02"
    assert list(shown["family"]) == [topic.OWN, "elementwise", "reductions", "matrix products"]
    assert shown.loc[["matmul", "only_predicted"], ["of_roof", "quickest", "over_eager"]].isna().all(axis=None)
    assert shown.loc["only_predicted", "origin"] == "predicted: H100, 2026-01-03"
    assert shown.loc["matmul", "origin"] == "not profiled yet"
    unread = topic.kernels(rows(), RUNS, FAMILIES, unread={"gelu", "softmax"}).set_index("kernel")
    assert set(unread.loc[["gelu", "softmax"], "origin"]) == {topic.READING}
    assert topic.sentence(unread) == ("4 kernels", "Reading the runs that measured them.")
    # Before the library has told what is in it, nothing is said to be somebody's own.
    assert set(topic.kernels(RECORDED, RUNS, {})["family"]) == {""}


def test_a_failed_kernel_says_where_and_leads_there(own_runs: Path) -> None:
    said = "mine does not compile for sm_90: line 8: arange's range must be a power of 2"
    broken = Failure("mine/triton/forward/8-fp32", "compiler", f"CompilationFailed: {said}")
    for at, failures in (("3fa8", ()), ("3fa9", (broken,))):
        run = f"20261120-221530-{at}"
        RunWriter(own_runs, made_up.run(run, {"mine": {"file": "", "sha256": ""}}, failures=failures)).finish()
    state = State(view="home", catalog=[{"name": "softmax", "kernel": "softmax", "family": "reductions"}])
    shown = Home(state)
    shown.refresh()
    row = shown.table.filled.set_index("kernel").loc["mine"]
    assert row["state"] == said.removeprefix("mine ") and "state" not in shown.table.hidden_columns
    shown.table.open(shown.table.value.index[list(shown.table.value["kernel"]).index("mine")])
    summary = opened(Summary, run=state.run, kernel=state.kernel)
    assert (state.view, state.run) == ("summary", run) and words(summary).startswith(
        "<h2>mine does not compile for sm_90: line 8"
    )


def test_a_persons_own_measurement_comes_before_a_recording() -> None:
    own = rows(claimed("gelu", "8-fp32", "mine", over_eager=3.0))
    gelu = topic.kernels(RECORDED, RUNS, FAMILIES, own).set_index("kernel").loc["gelu"]
    assert (gelu["run"], gelu["over_eager"], gelu["origin"]) == ("mine", 3.0, "yours: H200, 2026-01-02")


def test_rows_are_chosen_by_text_family_and_standing_and_counted() -> None:
    every = topic.kernels(RECORDED, RUNS, FAMILIES)
    assert list(topic.chosen(every, "REDUC", "", "")["kernel"]) == ["softmax"]
    assert list(topic.chosen(every, "", "elementwise", "faster")["kernel"]) == ["gelu"]
    none = topic.chosen(every, "gelu", "reductions", "")
    assert topic.count(none, every, ["“gelu”", "reductions", ""]) == "None of 4 kernels matches “gelu” and reductions."
    assert topic.count(every, every, ["", "", ""]) == ""
    assert (
        topic.sentence(every).title
        == "Of 4 kernels, 2 are faster than every other implementation we timed, 2 not compared"
    )
    assert [stat.value for stat in topic.stats(every, model.verdicts(RECORDED))] == ["1", "5.25×", "0 of 1"]


def test_every_kernel_is_listed_and_a_click_leads_to_its_page(in_runs: None) -> None:
    shown = opened(Home, run=RUN, kernel="softmax")
    kernels = list(shown.table.value["kernel"])
    # Those of the made-up runs, those of the recordings, and no damaged run in the way.
    assert {"softmax", "matmul", "vector_add", "add_rms_norm"} <= set(kernels)
    assert shown.table.value["origin"].iloc[kernels.index("softmax")].startswith("yours: Synthetic GPU")
    field(shown, "kernel contains").value_input = "add_rms"
    assert list(shown.table.value["kernel"]) == ["add_rms_norm"]
    assert "1 of " in words(shown)
    # What is asked for is in the address, and the other way round.
    assert shown.state.find == "add_rms"
    shown.state.param.update(find="", outcome="faster")
    assert (field(shown, "kernel contains").value_input, field(shown, "vs the fastest").value) == ("", "faster")
    assert 1 < len(shown.table.value) < len(kernels)
    shown.state.param.update(find="add_rms", outcome="no such", family="no such")
    assert list(shown.table.value["kernel"]) == ["add_rms_norm"]
    assert (field(shown, "vs the fastest").value, field(shown, "family").value) == ("", "")
    # A click on the row that the browser shows, while the server has filled the table again.
    number = shown.table.value.index[0]
    field(shown, "kernel contains").value_input = "softmax"
    assert "add_rms_norm" not in list(shown.table.value["kernel"])
    shown.table.open(number)
    assert (shown.state.view, shown.state.kernel, shown.state.loaded.run.device.name) == (
        "summary",
        "add_rms_norm",
        "NVIDIA H200",
    )
    assert shown.state.chosen is not None and not shown.state.ignored


def test_rows_are_made_once_a_run(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESCOPE_RUNS", str(shutil.copytree(runs, tmp_path / "runs")))
    made: list[pd.DataFrame] = []
    kernels = topic.kernels
    monkeypatch.setattr(topic, "kernels", lambda *known, **more: made.append(kernels(*known, **more)) or made[-1])

    def shown() -> pd.DataFrame:
        view = opened(Home)
        return view.rows

    first, times = shown(), len(made)
    assert shown() is first and len(made) == times
    synthetic.write_run(tmp_path / "runs", "20260109-030405-eeee", kernels=("brand_new",))
    assert "brand_new" in set(shown()["kernel"])


def test_a_row_keeps_its_number_in_every_frame() -> None:
    opened: list[str] = []
    shown = link_table(topic.COLUMNS, lambda row: opened.append(row["workload"]), ["kernel", "pass"])
    shown.show(RECORDED)
    numbers = list(shown.value.index)
    assert len({*numbers}) == len(RECORDED), "rows that are alike have numbers of their own, too"
    shown.show(RECORDED.iloc[[3, 2]].assign(workload=["x", "y"]))
    assert list(shown.value.index) == [numbers[3], numbers[1]], "of two alike the first is found"
    for number in (numbers[3], numbers[1], numbers[0], 99):
        shown.open(number)
    assert opened == ["x", "y", "1-fp32"]


@pytest.mark.parametrize(("view", "table"), [(History, "table"), (Overview, "runs")])
def test_rows_of_runs_open_them(view: type[View], table: str, in_runs: None) -> None:
    shown = opened(view, run="20260102-030406-bbbb", kernel="softmax")
    listed = getattr(shown, table)
    numbers, before = listed.value.index, shown.state.run
    # An arrow key chooses a row: that is none of the server's business.
    listed.selection = [len(numbers) - 1]
    assert shown.state.run == before
    seen = []
    for number in numbers[-3:]:  # the oldest are those that were made up
        listed.open(number)
        seen.append(shown.state.run)
    assert RUN in seen


#: Has Panel make the browser's choice the server's, which has none, as it does once while a page comes.
CLEARED = "() => allViews().find(view => view.tabulator && view.el.checkVisibility({visibilityProperty: true})).setSelection()"


@pytest.mark.browser
@pytest.mark.parametrize("title", ["Kernels"])
def test_the_arrow_keys_move_from_row_to_row_and_enter_opens_one(visit: Any, built: Any, title: str) -> None:
    page = visit("" if title == "Kernels" else "view=claims")
    built(page, title)
    grid = page.get_by_role("grid", name="Enter opens it").locator("visible=true")
    grid.focus()
    for key, step in (("ArrowDown", 1), ("ArrowDown", 2), ("ArrowDown", 3), ("ArrowUp", 2)):
        page.keyboard.press(key)
        chosen = page.locator(f".tabulator-row:visible:nth-child({step}).tabulator-selected")
        chosen.wait_for()
    page.evaluate(CLEARED)
    page.wait_for_timeout(1500)
    assert "kernel=" not in page.url
    chosen = page.locator(".tabulator-selected:visible")
    kernel = chosen.inner_text().split("\n")[0]
    # The server fills the table again, and the row stays chosen.
    page.get_by_label("contains").locator("visible=true").press_sequentially(kernel)
    page.locator(".tabulator-row:visible", has_not_text=kernel).last.wait_for(state="detached")
    chosen.filter(has_text=kernel).wait_for()
    grid.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**kernel={kernel}&**")
    built(page, "Summary")
    # It can be opened again.
    page.go_back()
    built(page, title)
    page.locator(".tabulator-row:visible", has_text=kernel).first.click()
    page.wait_for_url(f"**kernel={kernel}&**")


@pytest.mark.browser
def test_a_plain_address_is_home_and_a_kernels_is_its_summary(visit: Any, built: Any) -> None:
    page = visit("theme=light")
    built(page, "Kernels")
    assert not page.get_by_role("combobox", name="size", exact=True).is_visible()
    page.get_by_label("kernel contains").press_sequentially("layer_norm_lin")
    rows = page.locator(".tabulator-row:visible")
    rows.nth(1).wait_for(state="detached")
    rows.get_by_text("layer_norm_linear").click()
    page.wait_for_url("**kernel=layer_norm_linear**")
    built(page, "Summary")
    page.locator("h2:visible", has_text="layer_norm_linear").wait_for()
    assert page.get_by_role("combobox", name="size", exact=True).is_visible()
    page.go_back()
    built(page, "Kernels")
    find = page.get_by_label("kernel contains")
    assert find.input_value() == "layer_norm_lin"
    # What was typed is one change.
    page.go_back()
    page.wait_for_function("field => field.value === ''", arg=find.element_handle())
    rows.nth(5).wait_for()
    other = visit(f"run={RUN}&theme=dark")
    built(other, "Summary")
    other.get_by_role("link", name="Tilescope").click()
    built(other, "Kernels")
    # The theme is kept beside the address.
    assert "run=" not in other.url and "dark" in other.locator("html").get_attribute("class")


def test_kernels_of_a_recorded_model_are_on_its_own_page_alone() -> None:
    assert any(run.title.startswith("GPT-2") for run in State().runs)
    assert not [name for name in State().kernels if "::" in name]
    assert "Of 47 kernels" in words(opened(Home))
