"""What a user says of a run, on disk with it."""

from pathlib import Path

import pytest
from tilescope.runs import labels, store
from tilescope.runs.labels import Labels
from tilescope.table.case import Case

from . import made_up


@pytest.fixture
def run(tmp_path: Path) -> Path:
    rows = [Case("relu", "triton", "forward", "8-fp32").row("registers", 8, "compiler")]
    return made_up.written(tmp_path, rows, kernels={"relu": {}})


def test_labels_are_listed_with_the_run(run: Path) -> None:
    said = labels.labels(" wide\ntiles ", ("fast", " fast ", "", "sm_90"), "tried BLOCK=2048\n")
    labels.write(run, said)
    assert labels.read(run) == said == Labels("wide tiles", ("fast", "sm_90"), "tried BLOCK=2048")
    (listed,) = store.list_runs([run.parent])
    assert (listed.title, listed.tags, listed.note) == ("wide tiles", ("fast", "sm_90"), "tried BLOCK=2048")
    assert listed.in_one_line()[1] == "wide tiles [fast, sm_90]"
    assert store.open_run(run).table["value"].tolist() == [8]


@pytest.mark.parametrize("text", ["", "[]", '{"name": 3}', '{"tags": "x"}', "\xff"])
def test_damaged_labels_are_empty(run: Path, text: str) -> None:
    (run / labels.FILE).write_text(text)
    assert labels.read(run) == Labels()


def test_deleted_run_is_gone(run: Path) -> None:
    labels.delete(run)
    assert store.list_runs([run.parent]) == [] and not list(run.parent.iterdir())
