"""Compare shows the compiled code of the state's case beside the other run's, and nothing where it is the same."""

import json
import lzma
from pathlib import Path

import pytest
from tilescope.table.case import Case
from tilescope_dashboard.components import html_text
from tilescope_dashboard.views.compare import Compare

from . import synthetic
from .conftest import field, opened, said

OLD, NEW = "20270101-000000-aaaa", "20270102-000000-bbbb"


@pytest.fixture
def shown(own_runs: Path) -> Compare:
    """A run whose load is narrower than the older run's, with the older run as the baseline. The store is compiled alike."""
    for run, load in ((OLD, "LDG.E.128 R0"), (NEW, "LDG.E R0")):
        folder = synthetic.write_run(own_runs, run, measured=False)
        sass = f"/*0000*/  {load} <b>, R2  // a.py:7\n/*0010*/  STG.E R2, R0  // a.py:8\n"
        cases = synthetic.frame(False).query("kernel == 'softmax'")[["impl", "pass", "workload"]].drop_duplicates()
        launch = {
            "function": "softmax_kernel",
            "file": "a.py",
            "stages": {"sass": sass, "ptx": "", "ttgir": "module {}"},
        }
        kept = {Case("softmax", *case).id: [launch] for case in cases.itertuples(index=False, name=None)}
        (folder / "listings.json.xz").write_bytes(lzma.compress(json.dumps(kept).encode()))
    view = opened(Compare, run=NEW, kernel="softmax", compared=[OLD])
    return view


def test_other_code_is_shown_by_count_and_line(shown: Compare) -> None:
    text = html_text.text_of(said(shown))
    assert "Compiled code: the launch compiled to other code and did not get worse" in text
    assert "128-bit global loads\n0\n1 -100.0 %, line 7\n32-bit global loads\n1\n0 line 7" in text
    assert "LDG.E 0 → 1, LDG.E.128 1 → 0" in text and "LDG.E.128 R0 <b>, R2 LDG.E R0 <b>, R2" in text
    assert "STG.E" not in text
    # Without times the headline tells it, too.
    assert "no times to compare; the launch compiled to other code and did not get worse" in text
    stage = field(shown, "stage")
    assert {*stage.options.values()} == {"ttgir", "sass"}
    stage.value = "ttgir"
    assert "No source line has other operations in TTGIR." in said(shown)


def test_same_code_is_not_shown(shown: Compare) -> None:
    shown.state.compared = [NEW]
    assert "Compiled code" not in said(shown)
