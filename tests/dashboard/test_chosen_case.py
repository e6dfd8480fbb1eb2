"""The chosen case is the same in all views, and a state of the address that means nothing is said to be so."""

from functools import partial
from typing import Any

import pytest
from tilescope_dashboard.data.kernel_cases import KernelCase, case_name, closest, named
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.advice import Advice
from tilescope_dashboard.views.autotune import Autotune
from tilescope_dashboard.views.base import View
from tilescope_dashboard.views.compare import Compare
from tilescope_dashboard.views.navigation import Navigation
from tilescope_dashboard.views.occupancy import Occupancy
from tilescope_dashboard.views.overview import Overview
from tilescope_dashboard.views.roofline import Roofline
from tilescope_dashboard.views.timeline import Timeline
from tilescope_dashboard.views.traffic import Traffic

from . import conftest
from .conftest import RUN, field, grid
from .conftest import said as words

pytestmark = pytest.mark.usefixtures("in_runs")

#: The last case of the run: no view begins with it.
OTHER = KernelCase("compile", "backward", "1823x781-bf16")


opened = partial(conftest.opened, run=RUN, kernel="softmax")


def problem(shown: Any) -> tuple[str, str]:
    """Workload and pass that a view shows."""
    if isinstance(shown, Roofline):
        return tuple(field(shown, name).value for name in ("workload", "pass"))
    if isinstance(shown, Occupancy):
        row = shown.rows.iloc[grid(shown).selection[0]]
        return row["workload"], row["pass"]
    if isinstance(shown, Overview):
        return tuple(grid(shown).filled.iloc[grid(shown).selection[0]][["workload", "pass"]])
    if isinstance(shown, Advice):
        return field(shown, "case").value[2], field(shown, "case").value[1]
    return field(shown, "workload").value


VIEWS = (Overview, Advice, Traffic, Occupancy)


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name_in_address)
def test_a_view_shows_the_case_in_the_address_and_follows_it(view: type[View]) -> None:
    shown = opened(view, case=case_name(OTHER))
    assert problem(shown) == OTHER.problem
    first = next(case for case in shown.state.cases.values() if case.problem != OTHER.problem)
    shown.state.case = case_name(first)
    assert problem(shown) == first.problem
    # In other colours it stays.
    shown.state.theme = "dark"
    assert problem(shown) == first.problem
    assert not shown.state.ignored


@pytest.mark.parametrize("view", [Traffic, Timeline, Advice], ids=lambda view: view.name_in_address)
def test_view_hides_its_list_like_the_bars(view: type[View]) -> None:
    shown = opened(view, bar=True, case=case_name(OTHER))
    label = "case" if view is Advice else "workload"
    assert problem(shown) == OTHER.problem and not field(shown, label).visible
    assert field(opened(view, case=case_name(OTHER)), label).visible


@pytest.mark.parametrize("view", [Traffic, Timeline], ids=lambda view: view.name_in_address)
def test_a_workload_that_is_picked_is_every_views(view: type[View]) -> None:
    shown = opened(view)
    widget = field(shown, "workload")
    widget.value = wanted = list(widget.options.values())[-1]
    assert shown.state.chosen.problem == wanted == problem(shown)
    assert shown.state.chosen.impl == "triton"
    elsewhere = Occupancy(shown.state)
    elsewhere.refresh()
    assert problem(elsewhere) == wanted


def test_a_row_that_is_chosen_is_every_views() -> None:
    shown = opened(Occupancy)
    last = len(shown.rows) - 1
    grid(shown).selection = [last]
    assert shown.state.chosen.problem == problem(shown)
    assert grid(shown).selection == [last]
    roofline = Roofline(shown.state)
    roofline.refresh()
    assert problem(roofline) == problem(shown)
    compare = opened(Compare, compared=[f"{RUN}:eager"])
    grid(compare).selection = [len(grid(compare).filled) - 1]
    row = grid(compare).filled.iloc[-1]
    assert compare.state.chosen.problem == (row["workload"], row["pass"])
    assert row["workload"] in words(compare)
    assert grid(compare).selection == [len(grid(compare).filled) - 1]


def test_esc_in_overview_returns_to_largest_case() -> None:
    shown = opened(Overview)
    shown.state.case = case_name(OTHER)
    assert grid(shown).selection
    shown.clear()
    assert shown.state.case == ""


def test_a_case_that_the_kernel_lacks_is_said_in_one_line() -> None:
    said = "not a case of softmax in this run: 'triton · sideways · 1x1-bf16'"
    state = State(run=RUN, kernel="softmax", case="triton · sideways · 1x1-bf16")
    assert (state.case, state.ignored) == ("", said)
    state.ignored = ""
    state.case = "triton · sideways · 1x1-bf16"
    assert (state.case, state.ignored) == ("", said)
    state.case = next(iter(state.cases))
    assert state.ignored == ""


#: Views of those names that show nothing: what is tested is which of them is meant.
NOTHING = {"build": lambda self: [], "update": lambda self: None}
NAMED = ({"name_in_address": view.name_in_address, "title": view.title} for view in (Occupancy, Traffic))
WHY = {"Why": tuple(type("Nothing", (View,), {**NOTHING, **named}) for named in NAMED)}


def test_a_view_that_is_none_is_said_in_one_line() -> None:
    state = State(run=RUN, kernel="softmax", view="<b>nothing</b>")
    Navigation(state, WHY)
    assert (state.view, state.ignored) == ("occupancy", "not a view: '<b>nothing</b>', so this is Occupancy")
    state.view = "<b>nothing</b>"
    assert state.ignored.count("not a view") == 1, "the browser asks twice"


@pytest.mark.parametrize(("asked", "meant"), [("Why", "occupancy"), ("why", "occupancy"), ("Traffic", "traffic")])
def test_an_address_may_name_a_view_as_its_tab_does(asked: str, meant: str) -> None:
    state = State(run=RUN, kernel="softmax", view=asked)
    Navigation(state, WHY)
    assert (state.view, state.ignored) == (meant, "")


def test_closest_case_is_of_the_same_problem() -> None:
    ours = KernelCase("triton", "forward", "8x8-bf16")
    swept = ours._replace(config="num_warps=4")
    assert [named(case_name(case)) for case in (ours, swept)] == [ours, swept]
    assert named("nothing") is None
    eager = ours._replace(impl="eager")
    assert closest([eager, swept, ours], eager, direction="forward", impl="triton") == ours
    assert closest([eager, swept, ours], swept, workload="8x8-bf16") == swept
    assert closest([eager], ours, workload="9x9-bf16") is None


def test_roofline_fields_choose_the_case() -> None:
    shown = opened(Roofline, case=case_name(OTHER))
    workload, direction = field(shown, "workload"), field(shown, "pass")
    workload.value = next(name for name in workload.options if name not in ("all", OTHER.workload))
    assert shown.state.standing.problem == (workload.value, OTHER.direction)
    direction.value = "all"
    assert set(shown.table.filled["pass"]) == {"forward", "backward"}
    assert shown.state.standing.problem == (workload.value, OTHER.direction)


def test_autotune_fields_choose_case_and_axes() -> None:
    shown = opened(Autotune, kernel="matmul")
    sweep, across = field(shown, "sweep"), field(shown, "across")
    assert shown.state.case == ""
    sweep.param.trigger("value")
    assert shown.state.chosen and shown.state.chosen[:3] == named(sweep.value)[:3]
    drawn = shown.chart.object
    across.value = next(name for name in across.options if name not in (across.value, field(shown, "down").value))
    assert shown.chart.object.xaxis.axis_label == across.value != drawn.xaxis.axis_label
