"""Compare without a clock: findings that came or went, the source's difference, and the compiled code of both runs."""

import dataclasses
import gzip
import json
import lzma
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tilescope.models import summary as model
from tilescope.models.advice.finding import DISTANCE, Bound, Finding
from tilescope.runs.store import Summary
from tilescope.runs.writer import RunWriter
from tilescope.table.case import Case
from tilescope_dashboard.components import html_text
from tilescope_dashboard.topics import baselines
from tilescope_dashboard.topics import changed_findings as topic
from tilescope_dashboard.topics import summary as summary_topic
from tilescope_dashboard.views.compare import Compare

from tests.profiles import made_up

from . import synthetic
from .conftest import field, grid, opened, press, said
from .conftest import said as words
from .recordings import recorded

BEFORE, AFTER = "20260102-030406-bbbb", "20260102-030408-dddd"


def found(rule: str, title: str, most: float | None = None) -> Finding:
    bound = Bound(most, "f") if most else None
    return Finding(rule, title, "r", "k", "forward", "8-fp32", "triton", "", (), bound)


def test_changed_matches_findings_of_one_rule() -> None:
    before = [
        found("sectors", "Loads touch 4.51× the sectors", 5.7),
        found("spills", "It spills 12 B"),
        found(DISTANCE, "Far"),
    ]
    after = [
        found("sectors", "Loads touch 1.2× the sectors", 1.1),
        found("narrow", "The widest load takes 8 bytes", 2.0),
    ]
    rows = topic.changed(before, after)
    assert rows == [(topic.GONE, before[1]), (topic.NEW, after[1]), (topic.STAYS, after[0])]
    assert topic.count(rows) == "1 finding is gone, 1 is new"
    assert topic.count(topic.changed(before, before)) == ""


def test_changed_roof_is_reached_or_left() -> None:
    at = found("at-the-roof", "At the HBM roof: 98 %")
    assert topic.changed([], [at]) == [(topic.REACHED, at)]
    assert topic.changed([at], []) == []


def test_compare_implementations_shows_code() -> None:
    run = next(run for run in recorded() if run.title == "strided_copy")
    shown = opened(Compare, run=run.id, kernel="strided_copy", compared=[f"{run.id}:strided"])
    code = shown.changes.layout.object
    assert "strided → triton" in code
    assert re.search(r'class="removed"><th scope="row">30<.*def strided_copy_kernel', code)
    assert re.search(r'class="added"><th scope="row">21<.*def unit_copy_kernel', code)
    assert "SPEC" not in code and "Uncoalesced loads" in code
    shown.state.compared = [f"{run.id}:eager"]
    shown.refresh()
    assert not shown.changes.layout.visible, "PyTorch's own code is not in the run"


def test_change_without_clock_is_told(own_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for run in (BEFORE, AFTER):
        synthetic.write_run(own_runs, run, measured=False)
    made_up.redescribe(own_runs / AFTER, started="2026-01-02T03:04:08+00:00")
    shown = opened(Compare, run=AFTER, kernel="softmax")
    # One press compares with the run from before the change, and another with the usual baseline again.
    press(shown, "Compare with the run before")
    assert shown.state.compared == [BEFORE]
    press(shown, "Compare with unfused again")
    assert shown.state.compared == []
    press(shown, "Compare with the run before")
    assert "could not be drawn" not in words(shown)
    assert "no times to compare<" in words(shown), "the same code has the same findings"
    monkeypatch.setattr(
        "tilescope_dashboard.data.run_cache.findings",
        lambda loaded, case: (found("a", "It spills", 2.0),) if loaded.run.id == BEFORE else (),
    )
    shown.fresh = False
    shown.refresh()
    assert "<h2>1 finding is gone; softmax against" in words(shown)
    assert shown.changes.layout.visible and not shown.drawn.visible
    assert "speedup" in grid(shown).hidden_columns and "registers" not in grid(shown).hidden_columns
    assert "<b>gone</b><p>It spills<small>2×" in shown.changes.layout.object
    assert baselines.before(shown.loaded, "layer_norm", shown.state.runs) == BEFORE
    assert baselines.before(shown.loaded, "matmul", shown.state.runs) == ""
    # Without another implementation the run before is the usual baseline.
    assert baselines.usual(shown.loaded, "softmax", shown.state.runs) == [f"{AFTER}:eager"]
    loaded = shown.loaded
    own = dataclasses.replace(loaded, table=loaded.table[loaded.table["impl"] == "triton"])
    assert baselines.usual(own, "softmax", shown.state.runs) == [BEFORE]
    assert baselines.usual(own, "softmax") == []
    # An implementation's findings are none of another one's.
    shown.state.compared = [f"{AFTER}:eager"]
    assert not shown.changes.layout.visible


def test_baseline_is_named_by_its_time() -> None:
    row = {
        "impl": "triton", "baseline_impl": "triton", "run": "b", "baseline_run": "a", "registers": 20.0,
        "baseline_registers": 22.0,
    }  # fmt: skip
    assert "; baseline 22" in registers(row)
    assert "baseline" not in registers(row | {"baseline_impl": "eager"}) + registers(row | {"baseline_registers": 20.0})
    run = Summary("a", Path("a"), title="run", started="2026-01-02T03:04:08+00:00")
    assert baselines.name_of("a", [run], {}) == "run of 2026-01-02 03:04"


def registers(row: dict[str, Any]) -> str:
    """The note on the registers of a case that is compared so."""
    kinds = {"str": "", "bool": False, "Int32": 0, "float64": math.nan}
    case = {name: kinds[kind] for name, kind in model.COLUMNS.items()} | {"registers": 20.0}
    return next(
        stat.note for stat in summary_topic.stats(case, [row | {"speedup": math.nan}]) if stat.label == "registers"
    )


def test_compare_renamed_kernel_shows_source_diff(own_runs: Path) -> None:
    for run, kernel, line in ((BEFORE, "softmax_v1", "y = x"), (AFTER, "softmax_v2", "y = 2 * x")):
        folder = synthetic.write_run(own_runs, run, kernels=(kernel,), measured=False)
        kept = {"kernels": {kernel: {"own.py": "a"}}, "texts": {"a": line}}
        with gzip.open(folder / "sources.json.gz", "wt") as file:
            json.dump(kept, file)
    shown = opened(Compare, run=AFTER, kernel="softmax_v2")
    token = f"{BEFORE}::softmax_v1"
    assert token in field(shown, "Compare with").options.values()
    shown.state.compared = [token]
    assert "could not be drawn" not in shown.head.object, shown.head.object
    assert len(grid(shown).filled) and "softmax_v1" in words(shown)
    assert (
        "<code>y = x</code>" in shown.changes.layout.object and "<code>y = 2 * x</code>" in shown.changes.layout.object
    )
    assert "softmax_v1 → softmax_v2" in shown.changes.layout.object
    # A run alone means the kernel under its former name there, and a run without it is told.
    shown.state.compared = [BEFORE]
    assert "softmax_v1 has the same cases there: taken as renamed." in words(shown) and len(grid(shown).filled)
    # Named twice, it is compared once.
    shown.state.compared = [BEFORE, token]
    assert field(shown, "Compare with").value == [token] and not grid(shown).filled.duplicated().any()
    RunWriter(own_runs, made_up.run(OLD, {"matmul": {}})).finish()
    shown.state.refresh()
    shown.state.compared = [OLD]
    assert f"{OLD} has no softmax_v2." in words(shown)


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
    assert text.startswith("the launch compiled to other code and did not get worse; softmax against")
    stage = field(shown, "stage")
    assert {*stage.options.values()} == {"ttgir", "sass"}
    stage.value = "ttgir"
    assert "No source line has other operations in TTGIR." in said(shown)


def test_same_code_is_not_shown(shown: Compare) -> None:
    shown.state.compared = [NEW]
    assert "Compiled code" not in said(shown)
