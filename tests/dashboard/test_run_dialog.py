"""Naming, tagging, annotating and deleting the open run."""

import shutil
from pathlib import Path

import pytest
from tilescope_dashboard.session.state import State
from tilescope_dashboard.views.context import Context
from tilescope_dashboard.views.run import RunDialog

from . import synthetic
from .conftest import RUN, field, press


@pytest.fixture
def dialog(own_runs: Path) -> RunDialog:
    synthetic.write_run(own_runs, RUN)
    return RunDialog(State(run=RUN, kernel="softmax", panel="run", may_launch=True))


def test_saved_labels_name_the_run_in_lists(dialog: RunDialog) -> None:
    for label, text in (("name", "wide tiles"), ("tags", "fast, sm_90"), ("note", "tried BLOCK=2048")):
        field(dialog, label).value = text
    press(dialog, "Save")
    run = next(run for run in dialog.state.runs if run.id == RUN)
    assert (run.title, run.tags, run.note) == ("wide tiles", ("fast", "sm_90"), "tried BLOCK=2048")
    assert "wide tiles" in dialog.head.object


def test_delete_asks_once_then_opens_another_run(dialog: RunDialog, tmp_path: Path) -> None:
    press(dialog, "Delete")
    assert (tmp_path / RUN).exists()
    press(dialog, "Delete for good")
    assert not (tmp_path / RUN).exists()
    assert dialog.state.run not in ("", RUN) and dialog.state.kernel == "softmax"
    assert dialog.state.loaded.run.id == dialog.state.run


def test_run_deleted_elsewhere_is_left_and_told_once(dialog: RunDialog, tmp_path: Path) -> None:
    state = dialog.state
    shutil.rmtree(tmp_path / RUN)
    state.view = "sizes"
    assert state.run not in ("", RUN) and state.kernel == "softmax" and state.loaded.run.id == state.run
    assert "Deleted:</b> run" in Context(state).notices.object and RUN not in [run.id for run in state.runs]
    state.gone = ""
    state.view = "summary"
    assert state.gone == ""


def test_delete_without_permission_keeps_the_run(dialog: RunDialog, tmp_path: Path) -> None:
    dialog.state.may_launch = False
    press(dialog, "Delete")
    press(dialog, "Delete")
    assert (tmp_path / RUN).exists()
