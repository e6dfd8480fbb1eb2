"""Published claims against measurements."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from tilescope.cli import main
from tilescope.commands.claims import BEGIN, END, block
from tilescope.models import claims, claims_text, recorded_claims
from tilescope.runs import store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Ceiling, Device, Failure, Run

MEASURED = Path(__file__).parents[2] / "docs" / "measured.md"
ROOF = Ceiling("hbm", 4e12, "byte/second", "measured", "copy")


KERNEL = "softmax"
CLAIM = claims.published(KERNEL, "forward")
LARGE = f"{KERNEL}/liger/forward/8x8-fp32"
#: The kernel's file, and the digest of a function that it no longer has.
FORMER = {"file": "tilescope_kernels/reductions/softmax.py", "functions": {"gone": "0"}}


def rows(impl, seconds, moved, workload="8x8-fp32", size=1.0, *, error=0.0, interval=None, samples=1, function=""):
    case = Case(KERNEL, impl, "forward", workload)
    yield case.row("relative_error", error, "check")
    yield case.row("tolerance", 1e-2, "check")
    if interval is not None:
        yield case.row("interval", interval, "events", sample=0)
    yield case.row("algorithm_bytes_read", 3e8 * size, "model")
    yield case.row("algorithm_bytes_written", 1e8 * size, "model")
    yield case.row("algorithm_flops", 1e8 * size, "model")
    for sample in range(samples):
        yield case.row(
            "gpu_time", seconds * (1 + 0.01 * (sample % 3)), "torch_profiler", launch=0, sample=sample,
            function=function,
        )  # fmt: skip
    yield case.row("unique_bytes_read", moved, "interpreter", launch=0)
    yield case.row("unique_bytes_written", 0.0, "interpreter", launch=0)


def loaded(*tables, measured=True, versions=None, failures=(), facts=None):
    device = Device("H200", "sm_90", 132, 1, 1, measured, (ROOF,))
    run = Run(
        "20261120-000000-aaaa", "2026-11-20T00:00:00", device, {KERNEL: facts or {}}, versions or {"torch": "2"}, {},
        failures=failures,
    )  # fmt: skip
    return store.LoadedRun(run, schema.frame(row for table in tables for row in table), Path())


def claimed(runs):
    return claims.best(row for run in runs for row in claims.of_run(run))


@pytest.mark.parametrize(("eager", "verdict"), [(3.5e-4, "less"), (4.2e-4, "holds"), (4.5e-4, "more")])
def test_claim_is_compared_with_clock_and_bytes(eager, verdict):
    (row,) = claimed([loaded(rows("triton", 1e-4, 4e8), rows("eager", eager, 9e8))]).to_dict("records")
    assert row["over_eager"] == pytest.approx(eager / 1e-4)
    assert row["bound"] == pytest.approx(9 / 4)
    assert row["of_roof"] == pytest.approx(1.0)
    assert (row["roof"], row["verdict"], row["library"]) == ("measured copy bandwidth", verdict, "")


def sizes():
    """A small problem that eager wins and a large one that it loses."""
    small = [rows("triton", 1e-5, 4e6, "4x4-fp32", 0.01), rows("eager", 9e-6, 9e6, "4x4-fp32", 0.01)]
    large = [rows("triton", 1e-4, 4e8), rows("eager", 4e-4, 9e8)]
    return [*large, *small]


def test_predictions_make_no_claim():
    found = claimed([loaded(*sizes())])
    assert list(found["workload"]) == ["4x4-fp32", "8x8-fp32"]
    assert list(found["over_eager"]) == [pytest.approx(0.9), pytest.approx(4.0)]
    assert dict(claims.verdicts(found)) == {(KERNEL, "forward"): "holds at 1, less at 1 of 2"}
    assert claimed([loaded(*sizes(), measured=False)]).empty


def test_changed_sizes_of_other_runs_are_left_out():
    one = loaded(*sizes()[:2])
    two = loaded(*sizes()[2:])
    two = dataclasses.replace(two, run=dataclasses.replace(two.run, id="20261121-000000-bbbb"))
    assert list(claimed([one, two])["workload"]) == ["4x4-fp32", "8x8-fp32"]
    former = loaded(rows("triton", 1e-4, 4e8, function="gone"), rows("eager", 4e-4, 9e8), facts=FORMER)
    assert list(claimed([former, two])["workload"]) == ["4x4-fp32"]
    # A run's sizes stand together.
    small = [rows("triton", 1e-5, 4e6, "4x4-fp32", 0.01), rows("eager", 9e-6, 9e6, "4x4-fp32", 0.01)]
    both = claimed([loaded(rows("triton", 1e-4, 4e8, function="gone"), rows("eager", 4e-4, 9e8), *small, facts=FORMER)])
    assert list(both["workload"]) == ["4x4-fp32", "8x8-fp32"]
    assert list(both["changed"]) == [False, True]


def test_disagreeing_clocks_are_both_shown():
    tables = [rows("triton", 1e-4, 4e8, interval=9e-4), rows("eager", 4e-4, 9e8, interval=4.5e-4)]
    found = claimed([loaded(*tables)])
    (row,) = found.to_dict("records")
    assert (row["over_eager"], row["interval_eager"]) == (pytest.approx(4.0), pytest.approx(0.5))
    assert (row["verdict"], row["verdict_interval"]) == ("holds", "less")
    assert claims.disagree(found, "eager").all()
    text = claims_text.markdown(found)
    assert "4.00× `8x8-fp32`<br>interval 0.50×" in text
    assert "In 1 of 1 it takes less by GPU time and longer by the interval" in text
    agreeing = claimed([loaded(rows("triton", 1e-4, 4e8, interval=1e-4), rows("eager", 4e-4, 9e8, interval=4e-4))])
    assert not claims.disagree(agreeing, "eager").any()
    assert "interval 4" not in claims_text.markdown(agreeing)


@pytest.mark.parametrize(("error", "failures"), [
    (1.1, ()),
    (0.0, (Failure(LARGE, "check", "has shape (1,)"),)),
    (0.0, (Failure(f"own.py:{LARGE}", "check", "NaN"),)),
])  # fmt: skip
def test_failed_case_feeds_no_ratio(error, failures):
    tables = [rows("triton", 1e-4, 4e8), rows("liger", 1e-6, 4e8, error=error), rows("aten", 1.2e-4, 4e8)]
    (row,) = claimed([loaded(*tables, failures=failures)]).to_dict("records")
    assert (row["library"], row["over_library"]) == ("aten", pytest.approx(1.2))
    wrong = loaded(rows("triton", 1e-6, 4e8, error=0.5), rows("eager", 4e-4, 9e8))
    assert claimed([wrong]).empty


def test_page_has_the_claims_of_the_recordings():
    page = MEASURED.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == block(), "run: tilescope claims --into docs/measured.md"


def test_claims_writes_between_the_marks(recordings, runs, tmp_path, capsys):
    for loaded in recordings:
        if loaded.run.title in ("softmax", "rms_norm"):
            shutil.copytree(loaded.folder, tmp_path / "recorded" / loaded.folder.name)
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
    assert kernels == {"softmax", "rms_norm"}


def test_every_claim_is_of_a_recorded_kernel():
    measured, _ = recorded_claims.every()
    recorded = {(row.kernel, row.direction) for row in claims.CLAIMS}
    assert recorded <= set(zip(measured["kernel"], measured["pass"], strict=True))
    assert all(claim.low < claim.high for claim in claims.CLAIMS)


def test_every_claim_has_a_source():
    assert all(re.match(r"https://\S+$", claim.source) and claim.title and claim.said for claim in claims.CLAIMS)
    page = MEASURED.read_text(encoding="utf-8")
    assert all(f"]({claim.source})" in page for claim in claims.CLAIMS)


def test_fuller_comparison_counts():
    alone, full = loaded(rows("triton", 1e-4, 4e8)), loaded(rows("triton", 2e-4, 4e8), rows("eager", 4e-4, 9e8))
    for runs in ((alone, full), (full, alone)):
        (row,) = claimed(runs).to_dict("records")
        assert row["over_eager"] == pytest.approx(2.0)
        assert row["changed"] is False


def test_later_run_of_one_size_replaces_no_other():
    many = loaded(rows("triton", 1e-4, 4e8), rows("triton", 1e-5, 4e6, "4x4-fp32", 0.01))
    one = loaded(rows("triton", 9e-4, 4e9, "9x9-fp32", 10.0))
    later = dataclasses.replace(one, run=dataclasses.replace(one.run, id="20261121-000000-bbbb"))
    found = claimed([many, later, dataclasses.replace(many, table=one.table)])
    assert list(found["workload"]) == ["4x4-fp32", "8x8-fp32", "9x9-fp32"]
    again = loaded(rows("triton", 9e-5, 4e8), rows("aten", 9e-5, 4e8))
    (first,) = claimed([again, many]).query("workload == '8x8-fp32'").to_dict("records")
    assert first["over_library"] == pytest.approx(1.0)


def test_changed_sizes_are_counted():
    tables = [
        list(rows(impl, seconds, 4e8, size, function=function))
        for impl, seconds in (("triton", 1e-4), ("eager", 4e-4))
        for size, function in (("4x4-fp32", ""), ("8x8-fp32", "gone"))
    ]
    assert f"| {KERNEL} | 2, 1 changed since |" in claims_text.markdown(claimed([loaded(*tables, facts=FORMER)]))


def test_names_are_escaped():
    table = claimed([loaded(rows("triton", 1e-4, 4e8), rows("eager", 4e-4, 9e8))])
    table = table.assign(kernel="a|<!-- b`c", workload="8|8`<b>")
    (line,) = [line for line in claims_text.markdown(table).splitlines() if line.startswith("| a")]
    assert line.startswith(r"| a\|&lt;!-- b\`c | 1 |")
    assert line.count(r"`8\|8'<b>`") == 2
    assert len(re.split(r"(?<!\\)\|", line)) == 10


AGAIN = "run: tilescope claims --keep"


def test_every_recording_has_kept_claims():
    found = {folder.name: recorded_claims.kept(folder) for folder in store.recorded_dir().iterdir() if folder.is_dir()}
    assert [name for name, kept in found.items() if kept is None] == [], AGAIN


def test_kept_claims_are_those_computed(recording):
    rows, said = recorded_claims.kept(recording.folder)
    computed = claims.of_run(recording)
    apart = [
        (row["kernel"], name, row[name], other[name])
        for row, other in zip(rows, computed, strict=True)
        for name in other
        # As text, for NaN is not NaN.
        if str(row[name]) != str(other[name])
    ]
    assert apart == [], AGAIN
    assert said == claims_text.provenance([recording]), AGAIN


def test_claims_of_another_table_are_computed(recordings, runs, tmp_path, capsys):
    (source,) = (loaded.folder for loaded in recordings if loaded.run.title == "losses: autotune sweeps")
    folder = shutil.copytree(source, tmp_path / "recorded" / source.name)
    assert recorded_claims.kept(folder) is None
    assert len(recorded_claims.every()[0]) == len(claimed([store.open_run(folder)]))
    for said in (folder.name, "none, all are up to date"):
        assert main(["claims", "--keep"]) == 0
        assert capsys.readouterr().out == f"computed again: {said}\n"
    assert recorded_claims.kept(folder) is not None
    with (folder / "run.json").open("ab") as table:
        table.write(b" ")
    assert recorded_claims.kept(folder) is None
