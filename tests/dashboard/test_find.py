"""The palette of kernels, runs, views and actions."""

import pytest
from tilescope_dashboard.components import layout
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.find import FindDialog
from tilescope_dashboard.views.gpu import GpuDialog
from tilescope_dashboard.views.groups import TITLES

from .conftest import PREDICTED, RUN, field


@pytest.mark.parametrize(
    ("begins", "changed"),
    [
        ("matmul", {"kernel": "matmul", "panel": ""}),
        ("Roofline (view)", {"view": "roofline", "panel": ""}),
        ("Tune (view)", {"view": "autotune", "panel": ""}),
        ("Why is it slow", {"view": "advice", "panel": ""}),
        ("What changed", {"view": "history", "panel": ""}),
        ("Which config", {"view": "autotune", "panel": ""}),
        ("fusing", {"view": "fusing", "panel": ""}),
        ("faster than PyTorch", {"view": "compare", "compared": [], "panel": ""}),
        ("GPU of this run", {"panel": "gpu"}),
        ("Dark theme", {"theme": "dark", "panel": ""}),
        (PREDICTED, {"run": PREDICTED, "panel": ""}),
    ],
)
def test_palette_choice_opens_it(in_runs: None, begins: str, changed: dict[str, str]) -> None:
    dialog = FindDialog(State(run=RUN, kernel="softmax", panel="find"), TITLES)
    options = field(dialog, "name").options
    field(dialog, "name").value = next(value for label, value in options.items() if begins in label)
    assert {name: getattr(dialog.state, name) for name in changed} == changed


def test_palette_change_without_times_is_compared(in_runs: None) -> None:
    dialog = FindDialog(State(run=PREDICTED, kernel="softmax", panel="find"), TITLES)
    field(dialog, "name").value = field(dialog, "name").options["What changed? (action)"]
    assert dialog.state.view == "compare"


def test_palette_opens_empty_again(in_runs: None) -> None:
    dialog = FindDialog(State(run=RUN, kernel="softmax", panel="find"), {"roofline": "Roofline"})
    field(dialog, "name").value = "view:roofline"
    dialog.state.panel = "find"
    assert (field(dialog, "name").value, dialog.open) == (None, True)


def test_dialogs_in_one_place_open_one_at_a_time(in_runs: None) -> None:
    state, place = State(run=RUN, kernel="softmax", panel="find"), layout.flow()
    find, gpu = FindDialog(state, TITLES, place), GpuDialog(state, place)
    for panel in ("gpu", "find", "gpu"):
        state.panel = panel
        assert (find.open, gpu.open, len(place)) == (panel == "find", panel == "gpu", 2)
