"""What the open run lacks of its kernel: views show the best recording that has it, and say whose it is."""

from pathlib import Path
from typing import Any

import pytest
from tilescope.captures import SPEC_FILE
from tilescope.runs import store
from tilescope.runs.writer import RunWriter
from tilescope.table.run import Failure
from tilescope_dashboard.components.html_text import text_of
from tilescope_dashboard.components.tables import Table
from tilescope_dashboard.data import this_machine
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views import base
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.context import Context
from tilescope_dashboard.views.groups import GROUPS
from tilescope_dashboard.views.kernel_bar import KernelBar
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.sizes import Sizes
from tilescope_dashboard.views.summary import Summary
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

from tests.profiles import made_up

from .conftest import INJECTED, PREDICTED, RUN, field, said

#: A run of the same kernel with nothing but its registers, or nothing but what the algorithm needs.
POOR = "20260103-030405-dddd"


def body(shown: View) -> Any:
    """What a view has below its title and what to do."""
    return shown.body


@pytest.mark.parametrize(
    ("view", "has"),
    [(Roofline, "registers"), (Traffic, "registers"), (Timeline, "registers"), (Occupancy, "algorithm_bytes_read")],
    ids=lambda one: getattr(one, "name_in_address", one),
)
def test_view_borrows_a_recording_and_names_it(
    view: type[View], has: str, made: list[store.Summary], own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = store.open_run(made[0].path.parent / RUN)
    rows = full.table[full.table["metric"].eq(has) & full.table["kernel"].eq("softmax")]
    made_up.written(own_runs, rows, POOR, full.run.kernels, device=full.run.device, title="poor run")
    state = State(run=POOR, kernel="softmax", view=view.name_in_address)
    state.runs = store.list_runs([own_runs])
    shown = view(state)
    shown.refresh()
    assert not body(shown).visible
    assert "From " not in said(shown)
    # Another run comes, and the open one stays what it is.
    state.runs = [*state.runs, *made]
    assert body(shown).visible
    assert "From synthetic run, measured 2026-01-02 on Synthetic GPU" in said(shown)
    assert (state.run, shown.origin[1]) == (POOR, RUN)
    assert "could not be drawn" not in said(shown)
    # In a run that has it itself nothing is borrowed.
    monkeypatch.setenv("TILESCOPE_RUNS", str(made[0].path.parent))
    state.run = PREDICTED
    assert ("From synthetic prediction" in said(shown)) == (view is not Timeline)


@pytest.mark.parametrize("view", [Summary, Overview, Advice], ids=lambda view: view.name_in_address)
def test_link_to_run_without_kernel_shows_a_recording(view: type[View], made: list[store.Summary]) -> None:
    state = State(run=RUN, kernel="softmax", view=view.name_in_address)
    state.runs = made
    state.param.update(run=INJECTED, kernel="matmul")
    assert (state.run, state.kernel) == (INJECTED, "matmul")
    shown = view(state)
    shown.refresh()
    assert "From synthetic run, measured" in said(shown)


@pytest.mark.parametrize(
    ("address", "title", "text"),
    [
        ({"kernel": "nosuch"}, "There is no kernel 'nosuch'", "Choose a kernel above."),
        ({"kernel": "sofmax"}, "There is no kernel 'sofmax'", "Did you mean softmax?"),
        ({"run": "nosuch"}, "This run cannot be shown", "no run 'nosuch'"),
        ({"kernel": "mine"}, "mine has no run yet", "Press Profile to make one."),
    ],
    ids=lambda one: str(one) if isinstance(one, dict) else "",
)
def test_trouble_is_told_once(address: dict[str, str], title: str, text: str, made: list[store.Summary]) -> None:
    known = [{"name": name, "kernel": name} for name in ("softmax", "mine")]
    state = State(view="summary", catalog=known)
    state.param.update(**address)
    bar = KernelBar(state)
    for view in (Summary(state), Roofline(state)):
        view.refresh()
        told = text_of(view.head.object)
        assert told.startswith(title) and text in told and not body(view).visible
    assert not state.loaded and "From " not in said(view)
    assert title not in text_of(said(Context(state))) and state.run == address.get("run", ""), (
        "the bar opens no run itself"
    )
    assert field(bar, "run").value == state.run
    state.param.update(run=RUN, kernel="softmax")
    view.refresh()
    assert title not in view.head.object and body(view).visible


#: What makes what each view of a kernel shows.
MADE_BY = {
    "summary": "profile mine --collect compiler,interpreter", "advice": "profile mine --collect compiler,interpreter",
    "roofline": "profile mine --collect interpreter", "traffic": "profile mine --collect interpreter",
    "counters": "profile mine --collect ncu</code> on a GPU", "occupancy": "profile mine --collect compiler",
    "fusing": "profile mine --collect interpreter", "source": "profile mine --collect compiler,interpreter",
    "autotune": "tune mine", "timeline": "profile mine --collect torch_profiler</code> on a GPU",
    "inside": "profile mine --collect lanes</code> on a GPU", "sizes": "profile mine --collect events</code> on a GPU",
    "history": "profile mine --collect events</code> on a GPU", "overview": "profile mine --collect compiler,interpreter",
}  # fmt: skip


@pytest.mark.parametrize("view", MADE_BY)
def test_an_empty_view_says_what_makes_it_or_what_failed(
    view: str, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "line 8: arange's range must be a power of 2"
    broken = Failure("mine/triton/forward/8-fp32", "compiler", f"CompilationFailed: mine does not compile: {why}")
    for name, failures in (("20261120-221530-3fa8", ()), ("20261120-221530-3fa9", (broken,))):
        facts = {"mine": {"file": "", "sha256": ""}}
        RunWriter(own_runs, made_up.run(name, facts, failures=failures)).finish()
    shown = next(one for group in GROUPS.values() for one in group if one.name_in_address == view)(State(view=view))
    state, known = shown.state, [{"name": "mine", "kernel": "mine", "implementations": {}}]
    state.param.update(run="20261120-221530-3fa8", kernel="mine", catalog=known)
    assert f"<code>tilescope {MADE_BY[view]}" in shown.head.object and why not in shown.head.object
    # The form makes it as well, for who may start it, of collectors that run here.
    monkeypatch.setattr(this_machine, "_last", [this_machine.Machine("", {"compiler": None, "interpreter": None})])
    state.may_launch, shown.fresh = True, False
    shown.refresh()
    assert ("ress Profile" in shown.head.object) == ("on a GPU" not in MADE_BY[view])
    # A kernel that fails is corrected first.
    state.run = "20261120-221530-3fa9"
    assert text_of(shown.head.object).startswith(f"mine does not compile: {why}")
    assert "<code>" not in shown.head.object and "Correct that line" in shown.head.object


def test_a_script_is_run_again_for_what_a_kernel_of_it_lacks(own_runs: Path) -> None:
    facts = {"mine": {"file": f"/gone/mine/{SPEC_FILE}", "sha256": "", "variable": "mine"}}
    run = RunWriter(own_runs, made_up.run(kernels=facts, title="my own.py")).finish().name
    shown = Roofline(State(view="roofline"))
    shown.state.run = run
    assert "<code>tilescope profile &#x27;my own.py&#x27; --collect interpreter</code>" in shown.head.object


def test_nothing_is_shown_where_no_run_has_it(made: list[store.Summary]) -> None:
    state = State(run=RUN, kernel="in_no_run", view="traffic")
    state.runs = made
    traffic, overview = Traffic(state), Overview(state)
    traffic.refresh()
    assert "From " not in said(traffic) and not body(traffic).visible
    overview.refresh()
    assert "No run has data on in_no_run. Run <code>tilescope profile in_no_run --collect" in said(overview)


def test_a_table_comes_once_the_view_is_to_be_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    without = Sizes(State(view="sizes"))
    assert len(without.__panel__().select(Table)) == 1 and not without.waits
    monkeypatch.setattr(base, "in_session", lambda: True)
    shown = Sizes(State(view="sizes"))
    assert shown.waits and not shown.__panel__().select(Table)
    shown.complete()
    assert len(shown.__panel__().select(Table)) == 1 and not shown.waits
    # A view that makes its table anew later puts it where it was.
    assert shown.saved(shown.__panel__().select(Table)[0]).objects
