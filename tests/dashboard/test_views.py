"""State, views and the report without a browser."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tilescope.models.summary import representative, summarise
from tilescope.runs import journal, listings, store
from tilescope_dashboard.components import html_text
from tilescope_dashboard.components.html_text import text_of
from tilescope_dashboard.data.best_run import SHOWN_FIRST, first_shown
from tilescope_dashboard.data.frames import largest_problem
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views import context
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.autotune import Autotune
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.claims import Claims
from tilescope_dashboard.views.compare import Compare
from tilescope_dashboard.views.context import Context
from tilescope_dashboard.views.form.fields import EVERY_CONFIG
from tilescope_dashboard.views.history import History
from tilescope_dashboard.views.home import Home
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.sizes import Sizes
from tilescope_dashboard.views.source import Source
from tilescope_dashboard.views.summary import Summary
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

from tests.profiles import made_up

from . import synthetic
from .conftest import PREDICTED, RUN, field, grid, opened, said

pytestmark = pytest.mark.usefixtures("in_runs")

VIEWS: tuple[type[View], ...] = (
    Home, Summary, Overview, Advice, Roofline, Traffic, Timeline, Autotune, Occupancy, Source, Claims, Compare, Sizes, History,
)  # fmt: skip


@pytest.mark.parametrize("view", [Claims, Compare, History, Sizes, Summary], ids=lambda view: view.name_in_address)
def test_view_of_all_runs_is_redrawn_after_a_new_run(view: type[View]) -> None:
    shown = opened(view, run=RUN, kernel="softmax", view="source")
    shown.state.refresh()
    assert not shown.fresh


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name_in_address)
def test_a_view_follows_run_kernel_and_theme(view: type[View]) -> None:
    shown = opened(view, run=RUN, kernel="softmax")
    for change in ({"kernel": "matmul", "theme": "dark", "narrow": True}, {"run": PREDICTED}, {"kernel": "not_in_the_run"},
                   {"run": "20200101-000000-0000"}):  # fmt: skip
        shown.state.param.update(**change)
        assert "could not be drawn" not in said(shown), change


def test_a_view_that_fails_says_so_in_its_place() -> None:
    class Failing(Overview):
        def update(self) -> None:
            raise KeyError("<i>column</i>")

    shown = Failing(State(run=RUN, kernel="softmax"))
    shown.head.object = "of what was shown before"
    shown.refresh()
    shown.complete()  # as the page does once figures are drawn
    assert "KeyError" in said(shown)
    assert "<i>" not in said(shown) and "shown before" not in said(shown)
    assert not shown.body.visible


def test_filter_paints_the_shown_figure_again() -> None:
    shown = opened(Roofline, run=RUN, kernel="softmax")
    drawn, few = shown.chart.object, list(shown.source.data["row"])
    extent = drawn.x_range.start, drawn.x_range.end
    drawn.x_range.update(start=1.0, end=2.0)  # somebody looks closer
    shown.source.selected.indices = [1]
    field(shown, "memory").value = ["hbm", "l2"]
    assert shown.chart.object is drawn and shown.source.selected.indices == []
    assert list(shown.source.data["row"]) != few and len(shown.source.data["row"]) == len(grid(shown).value)
    assert 2.0 != drawn.x_range.end == drawn.x_range.reset_end
    field(shown, "memory").value = ["hbm"]
    assert shown.chart.object is drawn and list(shown.source.data["row"]) == few
    assert (drawn.x_range.start, drawn.x_range.end) == extent
    # Other marks in the legend are other parts.
    field(shown, "memory").value = []
    assert shown.chart.object is not drawn and shown.chart.object.html_attributes["role"] == "figure"


def test_roofline_selects_and_filters() -> None:
    shown = opened(Roofline, run=RUN, kernel="softmax")
    shown.source.selected.indices = [3]
    assert grid(shown).selection == [3]
    grid(shown).selection = [1]
    assert shown.source.selected.indices == [1]
    grid(shown).selection = []
    assert shown.source.selected.indices == []
    few = len(shown.source.data["row"])
    # What every row shares takes no room, and is in the files.
    assert "level" in grid(shown).hidden_columns and "level" in grid(shown).filled
    field(shown, "memory").value = ["hbm", "l2"]
    assert "level" not in grid(shown).hidden_columns
    assert len(shown.source.data["row"]) == len(grid(shown).value) > few
    assert set(grid(shown).value["level"]) == {"HBM", "L2"}
    field(shown, "memory").value = ["hbm"]
    assert len(shown.source.data["row"]) == len(grid(shown).value) == few
    field(shown, "memory").value = []
    assert len(grid(shown).value) == 0
    assert not len(getattr(shown.source, "data", {"row": []})["row"])


def test_state_keeps_a_kernel_that_no_run_has() -> None:
    state = State(run=RUN, kernel="vector_add")
    assert state.kernel == "vector_add"
    assert state.table.empty
    state.run = PREDICTED
    assert state.kernel == "vector_add"
    state = State(run=RUN, kernel="matmul")
    state.run = PREDICTED
    assert state.kernel == "softmax"


def test_another_kernel_opens_the_run_that_says_most_of_it() -> None:
    state = State(run=PREDICTED, kernel="softmax")
    state.kernel = "matmul"
    assert (state.run, state.kernel) == (RUN, "matmul")
    assert not state.table.empty
    state.kernel = "not_in_any_run"
    assert (state.run, state.kernel, state.loaded) == ("", "not_in_any_run", None)
    state.kernel = "matmul"
    assert state.run == RUN


def test_autotune_without_configs_names_the_cure() -> None:
    state = State(run=RUN, kernel="softmax", view="autotune", may_launch=True)
    state.runs = [run for run in state.runs if not run.recorded]  # one of those has a sweep
    shown = Autotune(state)
    shown.refresh()
    said = shown.head
    assert "softmax declares no configs" in said.object
    assert not shown.body.visible
    declared = {"name": "softmax", "kernel": "softmax", "implementations": {"triton": {"configs": [{"BLOCK": 64}]}}}
    state.catalog = [declared]
    assert f"press Profile and tick '{EVERY_CONFIG}'" in unescape(said.object)
    assert "<code>tilescope tune softmax</code>" in said.object
    # Who may not profile has no form; the command is for a machine of their own.
    state.may_launch = False
    assert "press Profile" not in said.object
    assert "tilescope tune softmax" in said.object


def test_a_run_that_cannot_be_opened_leaves_words() -> None:
    state = State(run="20270102-030408-dddd")
    assert state.loaded is None
    assert "cannot be read" in state.error
    state.run = RUN
    assert (state.error, state.loaded.run.id) == ("", RUN)


def test_without_a_gpu_a_recording_is_opened_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def summary(identity: str, **facts: Any) -> store.Summary:
        return store.Summary(identity, Path(identity), **facts)

    runs = [summary("mine"), summary("other", recorded=True), summary("h200", recorded=True, measured=True)]
    monkeypatch.setattr("tilescope_dashboard.data.best_run.no_gpu", lambda: "none here")
    assert first_shown(runs) == ("h200", "")
    both = summary("both", recorded=True, measured=True, kernels=("matmul", SHOWN_FIRST))
    assert first_shown([*runs, both]) == ("both", SHOWN_FIRST)
    assert first_shown([*runs, both], "matmul") == ("both", "matmul")
    # A later recording of one workload says less than one of all.
    one, all_of_them = (
        summary(name, recorded=True, measured=True, kernels=("matmul",), cases=cases)
        for name, cases in (("one", 5), ("all", 40))
    )
    assert first_shown([one, all_of_them], "matmul") == ("all", "matmul")
    monkeypatch.setattr("tilescope_dashboard.data.best_run.no_gpu", lambda: None)
    assert first_shown([*runs, both]) == ("mine", "")
    assert first_shown([]) == ("", "")


@pytest.mark.parametrize("view", [Summary, Roofline, Occupancy, History], ids=lambda view: view.name_in_address)
def test_sentence_names_implementations_as_legends_do(view: type[View]) -> None:
    state = State(run=RUN, kernel="softmax", view=view.name_in_address)
    state.case = next(label for label, case in state.cases.items() if case.impl == "eager")
    shown = view(state)
    shown.refresh()
    told = shown.head.object + shown.caption.object
    assert "unfused" in told
    assert not re.search(r"\beager\b", told)


def test_occupancy_begins_with_the_standing_case() -> None:
    softmax = next(s for s in store.list_runs([store.recorded_dir()]) if s.title == "softmax")
    shown = opened(Occupancy, run=softmax.id, kernel="softmax")
    first = shown.rows.iloc[0]
    assert (first["impl"], first["pass"], first["workload"]) == (
        "triton",
        *reversed(largest_problem(shown.state.table)),
    )
    assert grid(shown).selection == [0]
    # Two workloads move as many bytes: views, headline and the assembly that a recording keeps are of the same one.
    stands_for = representative(summarise(shown.state.table, shown.state.device, shown.state.loaded.run.kernels))
    assert stands_for["workload"] == first["workload"]
    kept = {case.workload for case in listings.largest(shown.state.loaded.run, shown.state.table)}
    assert kept == {first["workload"]}


def test_what_failed_is_said_beside_its_own_kernel_only() -> None:
    shown = Context(State(run=RUN, kernel="matmul"))
    assert "2 failed" in shown.brief.object
    shown.state.kernel = "softmax"
    assert "failed" not in shown.brief.object


def test_fault_of_the_shown_case_is_told_once(own_runs: Path) -> None:
    synthetic.write_run(own_runs, RUN)
    shown = State(run=RUN, kernel="softmax").standing
    outside = "k, program (9, 0, 0), line 7: reads 960 bytes past the end of x_ptr: element 10,000 of 10,000"
    failure = {"case": "/".join(("softmax", *shown[:3])), "collector": "interpreter", "message": outside}
    made_up.redescribe(own_runs / RUN, failures=[failure])
    state = State(run=RUN, kernel="softmax", view="summary")
    context, told = Context(state), "past the end of x_ptr"
    summary = Summary(state)
    summary.refresh()
    assert (said(summary).count(told), context.notices.object) == (1, "")
    assert "failed" not in context.brief.object
    state.view = "timeline"
    assert context.notices.object.count(told) == 1 and "ignore the other numbers" in context.notices.object


def test_failure_that_is_the_title_is_told_once(own_runs: Path) -> None:
    folder = synthetic.write_run(own_runs, RUN)
    wrong = "mine does not compile for sm_90: line 8: arange's range must be a power of 2"
    failures = [
        {"case": "mine/triton/forward/8-fp32", "collector": collector, "message": message}
        for collector, message in (("interpreter", "line 8: ValueError: arange"), ("compiler", f"CompilationFailed: {wrong}"))
    ]  # fmt: skip
    made_up.redescribe(folder, kernels={"mine": synthetic.facts("mine")}, failures=failures)
    state = State(run=RUN, kernel="mine", view="summary")
    context, summary = Context(state), Summary(state)
    summary.refresh()
    assert text_of(summary.head.object).startswith(wrong)
    assert "failed" not in context.brief.object and not context.notices.object


class Changed(State):
    """A state whose kernels have changed since their run was recorded."""

    changed = ("matmul", "softmax")


def test_context_names_changed_kernels_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Context(Changed(run=RUN, kernel="softmax"))

    assert "the source of softmax has changed" in shown.brief.object and "matmul" not in shown.brief.object
    shown.state.view = "overview"
    assert "the source of matmul, softmax has changed" in shown.brief.object
    shown.state.view = "timeline"
    shown.state.kernel = "vector_add"
    assert shown.brief.object == ""
    # Sizes are named where others have not changed.
    sizes = {"softmax": ["0x512-bf16", "1x2-fp32"]}
    monkeypatch.setattr(context, "changed_sizes", lambda _, kernel: sizes.get(kernel, []))
    shown.state.param.update(view="summary", kernel="softmax")
    changed = "softmax launches other code at 0x512-bf16, 1x2-fp32 than this run measured."
    assert changed in shown.brief.object and "the source of" not in shown.brief.object
    shown.state.view = "overview"
    assert f"the source of matmul has changed since this run measured it. S{changed[1:]}" in shown.brief.object


def test_interrupted_run_says_how_on(own_runs: Path) -> None:
    synthetic.write_run(own_runs, RUN)
    made_up.redescribe(own_runs / RUN, complete=False)
    assert "its worker died.<" in Context(State(run=RUN, kernel="matmul")).notices.object
    journal.begin(own_runs / RUN, [])
    said = f"its worker died. &#x27;tilescope resume {RUN}&#x27; goes on with it."
    assert said in Context(State(run=RUN, kernel="matmul")).notices.object


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    shown = html_text.pane("<p>it takes 998 µs, 94.0 % of 4.49 TB/s, 3 blocks of 8 KiB, 5 kernels in 2 min</p>")
    sent = shown.get_root().text
    assert "998\u00a0µs, 94.0\u00a0% of 4.49\u00a0TB/s, 3 blocks of 8\u00a0KiB, 5 kernels in 2 min" in sent
