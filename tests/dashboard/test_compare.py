"""The figures of Compare and Claims on any amount of rows, and the view that holds runs against each other."""

import dataclasses
import re
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from bokeh.document import Document
from tilescope.models import claims as claims_model
from tilescope.models import compare as model
from tilescope.runs import recordings, store
from tilescope.table.case import Case
from tilescope.table.run import Failure
from tilescope_dashboard.data.run_cache import claimed
from tilescope_dashboard.figures.claims import claims
from tilescope_dashboard.figures.compare import compare
from tilescope_dashboard.figures.style import LIGHT, ratio_ticks
from tilescope_dashboard.topics import baselines
from tilescope_dashboard.topics import compare as topic
from tilescope_dashboard.views.claims import Claims
from tilescope_dashboard.views.compare import Compare

from . import synthetic
from .conftest import field, grid, opened
from .conftest import said as words
from .recordings import recorded


@pytest.fixture(scope="module")
def norms() -> store.Summary:
    return recordings.of_kernel("rms_norm")[0]


@pytest.fixture(scope="module")
def rows(norms: store.Summary) -> pd.DataFrame:
    run = store.open_run(norms.path)
    return model.compare(model.Side(run, "compile"), model.Side(run, "triton"))


def drawn(plot: object) -> int:
    Document().add_root(plot)
    return sum(
        len(r.data_source.data["row"]) for r in plot.renderers if r.name in ("slower", "faster", "alike")
    )  # fmt: skip


def test_compare_draws_rows_with_a_speedup(rows: pd.DataFrame) -> None:
    one = rows.head(1).assign(speedup=2.0, speedup_low=1.9, speedup_high=2.1, verdict="faster")
    plot = compare(one, LIGHT)
    assert [r.name for r in plot.renderers if r.name in ("slower", "faster", "alike")] == ["faster"]
    assert plot.xaxis[0].axis_label == "speedup vs baseline"
    alone = compare(rows, LIGHT)
    assert not any("compile" in label or "rms_norm" in label for label in alone.y_range.factors)
    both = compare(pd.concat([rows, rows.assign(baseline_impl="eager")]), LIGHT)
    assert all("torch.compile" in label or "unfused" in label for label in both.y_range.factors)
    some = rows.head(3).copy()
    some.loc[some.index[0], ["speedup", "speedup_low", "speedup_high"]] = float("nan")
    some.loc[some.index[1], "speedup_high"] = float("inf")
    assert drawn(compare(some, LIGHT)) == 2


def every_claim() -> pd.DataFrame:
    """The claims of a few recordings."""
    kernels = {"softmax", "rms_norm", "rope", "swiglu", "matmul", "cross_entropy"}
    return claims_model.best(row for run in recorded() if run.title in kernels for row in claimed(run.path)[0])


def test_a_claim_of_a_single_figure_is_seen_and_said() -> None:
    every = every_claim()
    known = every[every["claim_low"].notna()].drop_duplicates("kernel").head(2)
    said = known.assign(claim=["1.5×", "1.2× to 2×"], claim_low=[1.5, 1.2], claim_high=[1.5, 2.0])
    bands = next(r for r in claims(said, LIGHT).renderers if r.name == "claimed")
    assert list(bands.data_source.data["claim"]) == ["1.5×", "1.2× to 2×"]
    assert all(address.startswith("https://") for address in bands.data_source.data["claim_source"])
    single, band = bands.data_source.data["edge"]
    # Its edges are all there is of it: it has no width of its own.
    assert single > band > 0
    assert bands.glyph.line_alpha == 1


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.7, 2.6), (0.7, 40.0), (0.001, 1000.0), (0.5, 1.0)])
def test_ticks_are_round_few_and_hold_one(low: float, high: float) -> None:
    ticks = ratio_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    assert 1.0 in ticks
    assert all(low <= tick <= high for tick in ticks)


def test_the_view_holds_what_the_address_says_against_the_run(norms: store.Summary) -> None:
    shown = opened(Compare, run=norms.id, kernel="rms_norm", compared=[f"{norms.id}:eager", "no-such-run"])
    assert field(shown, "Compare with").value == [f"{norms.id}:eager"]
    cases = len(grid(shown).filled)
    assert cases >= 4
    assert re.search(rf"rms_norm is [\d.]+–[\d.]+× faster than unfused in all {cases} cases", shown.head.object)
    assert set(grid(shown).filled["baseline_name"]) == {"unfused"}
    assert grid(shown).hidden_columns == ["baseline_run"], "both are of the run that is open"
    field(shown, "Compare with").value = [f"{norms.id}:eager", f"{norms.id}:compile"]
    assert shown.state.compared == [f"{norms.id}:eager", f"{norms.id}:compile"]
    assert set(grid(shown).filled["baseline_name"]) == {"unfused", "torch.compile"}
    assert shown.results.visible
    # Where none is chosen it is the one that Summary compares with.
    shown.state.compared = []
    assert (field(shown, "Compare with").value, shown.state.compared) == ([f"{norms.id}:aten"], [])
    field(shown, "Compare with").value = []
    assert (field(shown, "Compare with").value, shown.state.compared) == ([f"{norms.id}:aten"], [])
    assert f"faster than F.rms_norm in all {cases} cases" in words(shown)
    shown.state.kernel = "in_no_run"
    assert "in_no_run has no run yet" in words(shown)
    assert not shown.body.visible, "an empty figure and an empty table say nothing"


def test_runs_of_one_minute_are_baselines_apart(tmp_path: Path) -> None:
    ids = [f"20260102-030405-{end}" for end in ("aaaa", "bbbb", "cccc")]
    first, *others = (synthetic.write_run(tmp_path, name) for name in ids)
    options = baselines.possible(store.open_run(first), "softmax", store.list_runs([tmp_path]))
    assert {folder.name for folder in others} <= {*options.values()}


def test_wrong_case_leads_and_has_no_speedup(norms: store.Summary) -> None:
    loaded = store.open_run(norms.path)
    token = f"{norms.id}:eager"
    right, _ = topic.against(loaded, "rms_norm", [token], lambda _: loaded)
    wrong = right.iloc[-1]
    case = Case("rms_norm", "triton", wrong["pass"], wrong["workload"])
    failed = Failure(
        case.id, "check", f"CheckFailed: {case.id}, output 0 has NaN in 5 of 10 elements: wrong, or never written"
    )
    faulty = dataclasses.replace(loaded, run=dataclasses.replace(loaded.run, failures=(failed,)))
    rows, _ = topic.against(faulty, "rms_norm", [token], lambda _: faulty)
    assert rows["verdict"].eq("wrong").tolist() == [True] + [False] * (len(right) - 1) and rows["speedup"].isna()[0]
    title, _ = topic.sentence("rms_norm", ["eager"], rows)
    assert (
        title.startswith(f"rms_norm is wrong in 1 of {len(rows)} cases: output 0 has NaN")
        and "faster than eager" in title
    )


def test_claims_say_when_and_with_what_measured() -> None:
    shown = opened(Claims)
    text = unescape(shown.caption.object)
    told, _, more = text.partition("<details")
    assert re.search(r"Measured on NVIDIA H200, \d{4}-\d\d-\d\d( to \d{4}-\d\d-\d\d)?\. Traffic ratio", told)
    assert "triton 3" not in told
    assert "triton 3" in more
    assert more.count("<li>") == more.count("NVIDIA H200") > 0


def test_claims_are_chosen_by_kernel_family_and_standing() -> None:
    catalog = [{"name": name, "family": "norms"} for name in ("rms_norm", "layer_norm")]
    shown = opened(Claims)
    every = len(grid(shown).filled)
    assert len(grid(shown).filled) == every
    counts = {}
    for word in ("faster", "on par", "slower"):
        field(shown, "vs the fastest").value = word
        assert set(grid(shown).filled["standing"]) == {word}
        counts[word] = len(grid(shown).filled)
    assert sum(counts.values()) == every
    field(shown, "vs the fastest").value, field(shown, "kernel or family").value_input = "", "Norms"
    assert grid(shown).filled.empty
    shown.state.catalog = catalog  # a question to the worker, whose answer may come late
    assert set(grid(shown).filled["kernel"]) == {"rms_norm", "layer_norm"}
    assert f"{len(grid(shown).filled)} of {every} rows: " in words(shown)
    # A click opens the run of the row that is seen: the browser sends that row's number.
    grid(shown).open(grid(shown).value.index[-1])
    assert shown.state.kernel == grid(shown).filled["kernel"].iloc[-1]


def test_standing_follows_the_fastest_other() -> None:
    nan = float("nan")
    columns = {"over_eager": [3, 1.04, 0.96, 0.5, nan], "over_compile": [1.1, 2, nan, nan, nan], "over_library": nan}
    found = claims_model.standings(pd.DataFrame(columns))
    assert list(found) == ["faster", "on par", "on par", "slower", ""]
