"""What people are told against what was measured."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from tilescope import claims, schema, store
from tilescope.case import Case
from tilescope.cli import main
from tilescope.commands.claims import BEGIN, END, block
from tilescope.schema import Ceiling, Device, Run

README = Path(__file__).parents[2] / "README.md"
ROOF = Ceiling("hbm", 4e12, "byte/second", "measured", "copy")


def rows(impl, seconds, moved, workload="8x8-fp32", size=1.0):
    case = Case("add_relu_mul", impl, "forward", workload)
    yield case.row("algorithm_bytes_read", 3e8 * size, "model")
    yield case.row("algorithm_bytes_written", 1e8 * size, "model")
    yield case.row("algorithm_flops", 1e8 * size, "model")
    yield case.row("gpu_time", seconds, "torch_profiler", launch=0, sample=0)
    yield case.row("unique_bytes_read", moved, "interpreter", launch=0)
    yield case.row("unique_bytes_written", 0.0, "interpreter", launch=0)


def loaded(*tables, measured=True):
    device = Device("H200", "sm_90", 132, 1, 1, measured, (ROOF,))
    run = Run("20261120-000000-aaaa", "2026-11-20T00:00:00", device, {"add_relu_mul": {}}, {"torch": "2"}, {})
    return store.LoadedRun(run, schema.frame(row for table in tables for row in table), Path())


@pytest.mark.parametrize(("eager", "verdict"), [(2.4e-4, "less"), (3.5e-4, "holds"), (5e-4, "more")])
def test_a_claim_is_held_against_the_clock_and_the_bytes(eager, verdict):
    (row,) = claims.claims([loaded(rows("triton", 1e-4, 4e8), rows("eager", eager, 9e8))]).to_dict("records")
    assert row["over_eager"] == pytest.approx(eager / 1e-4)
    assert row["bound"] == pytest.approx(9 / 4)
    assert row["of_roof"] == pytest.approx(1.0)
    assert (row["roof"], row["verdict"], row["library"]) == ("measured copy bandwidth", verdict, "")


def test_the_largest_problem_speaks_and_predictions_do_not():
    small = [rows("triton", 1e-5, 4e6, "4x4-fp32", 0.01), rows("eager", 9e-5, 9e6, "4x4-fp32", 0.01)]
    large = [rows("triton", 1e-4, 4e8), rows("eager", 2e-4, 9e8)]
    (row,) = claims.claims([loaded(*small, *large)]).to_dict("records")
    assert row["workload"] == "8x8-fp32"
    assert claims.claims([loaded(*large, measured=False)]).empty


def test_the_quickest_library_that_was_timed_stands_for_them():
    tables = [
        rows("triton", 1e-4, 4e8),
        rows("liger", 1.5e-4, 4e8),
        rows("aten", 1.2e-4, 4e8),
        rows("cudnn", float("nan"), 4e8),
    ]
    (row,) = claims.claims([loaded(*tables)]).to_dict("records")
    assert (row["library"], row["over_library"]) == ("aten", pytest.approx(1.2))


def test_what_is_absent_is_a_dash():
    text = claims.markdown(claims.claims([loaded(rows("triton", 1e-4, 4e8))]))
    assert text.splitlines()[-1].startswith("| add_relu_mul | 8x8-fp32 | 3–4× (not measured) | – | – | – | – | 100 %")


def test_what_is_left_out_of_a_recording_says_nothing_of_claims(monkeypatch):
    runs = [store.open_run(run.path) for run in store.list_runs([store.recorded_dir()])]
    found = claims.claims(runs)
    every = {metric for run in runs for metric in run.table["metric"].unique()}
    monkeypatch.setattr(claims, "_NEEDED", every)
    pd.testing.assert_frame_equal(claims.claims(runs), found)


def test_the_readme_says_what_the_recordings_say():
    page = README.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == block(), "run: tilescope claims --into README.md"


def test_the_command_writes_between_the_marks_and_nowhere_else(tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main(["claims", "--into", str(page)]) == 0
    assert page.read_text() == f"before\n{BEGIN}\n{block()}\n{END}\nafter\n"
    page.write_text("no marks")
    assert main(["claims", "--into", str(page)]) == 2
    assert page.read_text() == "no marks"
    capsys.readouterr()
    assert main(["claims", "--json"]) == 0
    kernels = {row["kernel"] for row in json.loads(capsys.readouterr().out)}
    assert {"softmax", "matmul"} <= kernels


def test_every_claim_is_of_a_kernel_that_is_recorded():
    recorded = {(row.kernel, row.direction) for row in claims.CLAIMS}
    measured = claims.claims(store.open_run(run.path) for run in store.list_runs([store.recorded_dir()]))
    assert recorded <= set(zip(measured["kernel"], measured["pass"], strict=True))
    assert all(claim.low <= claim.high for claim in claims.CLAIMS)


def test_the_kernel_of_today_and_then_the_fuller_comparison_count():
    alone, full = loaded(rows("triton", 1e-4, 4e8)), loaded(rows("triton", 2e-4, 4e8), rows("eager", 4e-4, 9e8))
    for runs in ((alone, full), (full, alone)):
        (row,) = claims.claims(runs).to_dict("records")
        assert row["over_eager"] == pytest.approx(2.0)
        assert row["changed"] is False


def test_a_later_run_of_a_single_workload_does_not_speak_for_the_kernel():
    many = loaded(rows("triton", 1e-4, 4e8), rows("triton", 1e-5, 4e6, "4x4-fp32", 0.01))
    one = loaded(rows("triton", 9e-4, 4e9, "9x9-fp32", 10.0))
    later = dataclasses.replace(one, run=dataclasses.replace(one.run, id="20261121-000000-bbbb"))
    (row,) = claims.claims([many, later]).to_dict("records")
    assert row["workload"] == "8x8-fp32"


def test_what_was_measured_before_a_change_is_marked(monkeypatch):
    monkeypatch.setattr(claims, "stale_kernels", lambda loaded: list(loaded.run.kernels))
    table = claims.claims([loaded(rows("triton", 1e-4, 4e8))])
    assert table["changed"].all()
    text = claims.markdown(table)
    assert re.search(r"^\| \w+\* \|", text, re.MULTILINE) and text.endswith("to be measured again.")
