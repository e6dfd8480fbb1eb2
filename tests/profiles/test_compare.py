"""Changes between two sides, and reasons not to compare them."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tilescope.cli import main
from tilescope.models import compare, renaming, verdicts, versions
from tilescope.models.compare import CompareError, Side, doubts
from tilescope.runs import recordings, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Failure, Run

DEVICE = Device("GPU", "sm_90", 100, 1, 1, True)
CASES = [Case("k", impl, "forward", size, "") for impl in ("triton", "eager") for size in ("8-fp32", "16-fp32")]


def a_run(factor=1.0, *, repetitions=20, source="torch_profiler", **fields):
    """A run where every case takes 10 us times ``factor``, with 1 % of noise."""
    noise = np.random.default_rng(1).normal(1, 0.01, (len(CASES), max(repetitions, 1)))
    rows = [
        case.row("gpu_time", 1e-5 * factor * value, source, launch=0, function="f", sample=number)
        for case, values in zip(CASES, noise, strict=True)
        for number, value in enumerate(values[:repetitions])
    ]
    rows += [case.row("registers", 32 * factor, "compiler", launch=0, function="f") for case in CASES]
    run = Run(
        "r" + str(factor), "2026-01-01T00:00:00+00:00", DEVICE, {"k": {"sha256": "a" * 64}}, {"torch": "2.11"}, {}
    )
    return store.LoadedRun(dataclasses.replace(run, **fields), schema.frame(rows).assign(run_id=run.id), Path())


def test_equal_runs_are_alike():
    rows = compare.compare(Side(a_run()), Side(a_run()))
    assert len(rows) == 4
    assert set(rows["verdict"]) == {"alike"} and set(rows["speedup"]) == {1.0}
    assert (rows["speedup_low"] <= 1).all() and (rows["speedup_high"] >= 1).all()
    assert verdicts.worst([rows]) == math.inf


def test_runs_of_two_processes_are_doubted_within_their_drift():
    base, sides = Side(a_run()), {factor: Side(a_run(factor)) for factor in (1.007, 1.3)}
    for factor, within in ((1.007, "4 of 4 differences are"), (1.3, "0 of 4 differences are")):
        (said,) = doubts(base.loaded, sides[factor].loaded, compare.compare(base, sides[factor]))
        assert said.startswith("the runs are from different processes") and said.endswith(f"{within} within that")
    other = Side(base.loaded, "triton")
    assert doubts(base.loaded, other.loaded, compare.compare(base, Side(a_run(1.3)))) == []
    alike = Side(a_run(id="another"))
    assert doubts(base.loaded, alike.loaded, compare.compare(base, alike)) == []


def test_launches_of_an_opened_file_are_repetitions():
    def opened(*times):
        rows = [Case("k", "recorded", "forward", "grid 8").row("gpu_time", time, "chrome_trace", launch=number, function="k")
                for number, time in enumerate(times)]  # fmt: skip
        run = dataclasses.replace(a_run().run, settings={"file_sha256": "0"})
        return Side(store.LoadedRun(run, schema.frame(rows), Path()))

    base = opened(*[50e-6, 51e-6] * 10)
    (warm,) = compare.compare(base, opened(5e-3, *[50e-6, 51e-6] * 20)).to_dict("records")
    assert (warm["verdict"], warm["time"]) == ("alike", 51e-6)
    (case,) = versions.cases(opened(5e-3, *[50e-6, 51e-6] * 20).loaded)
    assert case.values["gpu_time"] == 51e-6 and case.spread == (50e-6, 51e-6)
    (slow,) = compare.compare(base, opened(*[5.05e-3] * 20)).to_dict("records")
    assert slow["verdict"] == "slower"


def called(name, *, sources=(), impl="triton", slower=1.0, file="k.py"):
    """A run of a kernel of that name."""
    run = a_run(slower, kernels={name: {"file": file}}, id=f"run-{name}")
    found = store.LoadedRun(run.run, run.table.assign(kernel=name, impl=impl), Path())
    vars(found)["sources"] = {name: dict(sources)}
    return found


def test_renamed_kernel_is_compared_with_its_former_name(capsys, tmp_path):
    old, new = called("add_v1", sources={"v1.py": "x = 1\n"}), called("v2", sources={"v2.py": "x = 2\n"}, slower=2.0)
    assert renaming.renamed(old, new) == {"v2": "add_v1"}
    rows = compare.compare(Side(old), Side(new))
    assert set(rows["kernel"]) == {"v2"} and set(rows["baseline_kernel"]) == {"add_v1"}
    assert set(rows["verdict"]) == {"slower"}
    assert main(["compare", *(str(written(run, tmp_path)) for run in (old, new))]) == 0
    out = capsys.readouterr().out
    assert "\nrenamed: add_v1 → v2, which has the same cases\n" in out and "+100.0 %" in out and "-x = 1\n+x = 2" in out
    assert main(["compare", *(str(written(called(f"v{n}"), tmp_path)) for n in (3, 4))]) == 0
    assert capsys.readouterr().out.count("value differs") == 1


def test_kernels_renamed_together_are_paired_by_their_code():
    texts = {"first": "x * 2", "second": "tl.exp(x) + tl.load(p)"}
    old, new = (
        two_kernels(
            {
                to: "".join(f"def {names[k]}(x, p):\n    return {code}\n" for k, code in texts.items())
                for to in names.values()
            }
        )
        for names in ({"first": "first", "second": "second"}, {"second": "aaa", "first": "zzz"})
    )
    assert renaming.renamed(old, new) == {"aaa": "second", "zzz": "first"}
    rows = compare.compare(Side(old), Side(new))
    assert list(versions.of_kernels(old, new, rows)).count("+def zzz(x, p):") == 1, "their file is shown once"


def two_kernels(texts):
    """A run of kernels that are all declared in one file, whose text each has."""
    one = a_run(kernels={name: {} for name in texts})
    found = store.LoadedRun(one.run, pd.concat([one.table.assign(kernel=name) for name in texts]), Path())
    vars(found)["sources"] = {name: {"k.py": text} for name, text in texts.items()}
    return found


def test_command_doubts_runs_of_two_processes(capsys, tmp_path):
    sides = [str(written(a_run(factor), tmp_path)) for factor in (1.0, 1.3)]
    said = "the runs are from different processes"
    assert main(["compare", *sides]) == 0 and f"note: {said}" in capsys.readouterr().out.replace("\n", " ")
    assert main(["compare", *sides, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["comparisons"]
    assert [doubt.startswith(said) for doubt in one["doubts"]] == [True]


def written(loaded, folder):
    writer = store.RunWriter(folder, loaded.run)
    writer.append(loaded.table)
    writer.keep_sources(loaded.sources)
    return writer.finish()


@pytest.mark.parametrize(
    ("file", "impl", "name"),
    [("k.py", "triton", "k"), ("/x/tilescope_kernels/k.py", "triton", "other"), ("k.py", "recorded", "other")],
)
def test_other_kernels_are_not_taken_for_renamed(file, impl, name):
    assert renaming.renamed(called("k", file=file, impl=impl), called(name, impl=impl)) == {}


def test_kernels_are_compared_by_name():
    both = a_run(kernels={"k": {}, "other": {}})
    both = store.LoadedRun(
        both.run,
        schema.frame([*both.table.to_dict("records"), *both.table.assign(kernel="other").to_dict("records")]),
        Path(),
    )
    sides = [compare.side(f"x:{name}", str, lambda _: both) for name in ("k", "other")]
    assert [side.kernel for side in sides] == ["k", "other"]
    rows = compare.compare(*sides)
    assert len(rows) == 4 and set(rows["kernel"]) == {"other"} and set(rows["verdict"]) == {"alike"}


def test_slower_candidate_is_listed_first_with_its_interval():
    slow = a_run(1.3)
    slow.table.loc[(slow.table["workload"] == "16-fp32") & (slow.table["metric"] == "gpu_time"), "value"] *= 0.5
    rows = compare.compare(Side(a_run()), Side(slow))
    assert rows["verdict"].tolist() == ["slower", "slower", "faster", "faster"]
    assert rows["workload"].tolist() == ["8-fp32", "8-fp32", "16-fp32", "16-fp32"]
    first = rows.iloc[0]
    assert first["speedup"] == pytest.approx(1 / 1.3, rel=0.01) == first["baseline_time"] / first["time"]
    assert first["speedup_low"] < first["speedup"] < first["speedup_high"]
    assert (rows["baseline_registers"] == 32).all() and rows["registers"].tolist() == pytest.approx([41.6] * 4)
    assert rows[["baseline_run", "run"]].drop_duplicates().to_numpy().tolist() == [["r1.0", "r1.3"]]
    assert 1 / 1.3 < verdicts.worst([rows]) < 1 / 1.25


@pytest.mark.parametrize(("factor", "verdict"), [
    (1.02, "slower"), (0.98, "faster"), (1.002, "alike"),
])  # fmt: skip
def test_difference_counts_where_its_interval_excludes_one(factor, verdict):
    rows = compare.compare(Side(a_run()), Side(a_run(factor)))
    assert set(rows["verdict"]) == {verdict}
    assert all(
        (high < 1, low > 1) == (verdict == "slower", verdict == "faster")
        for low, high in zip(rows["speedup_low"], rows["speedup_high"], strict=True)
    )


def test_wrong_side_has_no_speedup_and_is_told_first():
    right, wrong = a_run(), a_run(0.5)
    checked = [CASES[1].row(name, value, "check") for name, value in (("relative_error", 0.5), ("tolerance", 0.01))]
    failed = Failure(
        CASES[0].id,
        "interpreter",
        "InterpretationFailed: f, program (0, 0, 0), line 6: reads 4 bytes past the end of x",
    )
    run = dataclasses.replace(wrong.run, failures=(failed,))
    table = pd.concat([wrong.table, schema.frame(checked)], ignore_index=True)
    wrong = dataclasses.replace(wrong, run=run, table=table)
    rows = compare.compare(Side(right), Side(wrong))
    assert rows["verdict"].tolist() == ["wrong", "wrong", "faster", "faster"] and rows["speedup"].isna()[:2].all()
    assert verdicts.worst([rows]) == 0
    said = verdicts.sentence(rows, "new", "old")
    assert (
        said.startswith("new is wrong in 2 of 4 cases: k reads past the end of x in line 6")
        and "; new is 2.00× faster" in said
    )
    rows = compare.compare(Side(wrong, "triton"), Side(right, "triton"))
    assert set(rows["verdict"]) == {"baseline wrong"} and verdicts.worst([rows]) == math.inf
    assert verdicts.sentence(rows, "new", "old").startswith("old is wrong in both cases: ")
    # The answer comes before what is wrong with the baseline.
    rows = compare.compare(Side(wrong), Side(right))
    assert verdicts.sentence(rows, "new", "old").startswith("new is 2.00× slower than old")


@pytest.mark.parametrize(("other", "said"), [
    (a_run(device=dataclasses.replace(DEVICE, measured=False)), "not measured"),
    (a_run(settings={"rotate": 1}), "different settings: rotate is not set and 1"),
])  # fmt: skip
def test_predictions_and_other_settings_are_not_compared(other, said):
    assert said in compare.obstacles(Side(a_run()), Side(other))[0]
    rows = compare.compare(Side(a_run()), Side(other))
    assert set(rows["verdict"]) == {"not comparable"}
    assert rows["speedup"].isna().all() and rows["time"].notna().all()


def test_two_gpus_are_compared_and_named():
    other = Side(a_run(device=dataclasses.replace(DEVICE, name="Other", target="sm_80"), settings={"target": "sm_80"}))
    before = Side(a_run(settings={"target": "sm_90"}))
    assert not compare.obstacles(before, other)
    assert compare.changes(before, other)[0] == "GPU GPU → Other"
    assert compare.compare(before, other)["speedup"].notna().all()


def test_number_of_repetitions_and_collectors_may_differ():
    assert not compare.obstacles(Side(a_run()), Side(a_run(settings={"repetitions": 3, "collectors": ["ncu"]})))


def test_clocks_are_not_mixed():
    rows = compare.compare(Side(a_run()), Side(a_run(source="ncu")))
    assert set(rows["verdict"]) == {"not timed"} and rows["speedup"].isna().all()


def test_single_repetition_shows_no_difference():
    rows = compare.compare(Side(a_run(repetitions=1)), Side(a_run(2.0, repetitions=1)))
    assert set(rows["verdict"]) == {"alike"}
    assert rows["speedup_high"].tolist() == [math.inf] * 4


def test_changed_versions_and_sources_are_listed():
    other = a_run(versions={"torch": "2.13", "triton": "3.6"}, kernels={"k": {"sha256": "b" * 64}})
    assert compare.changes(Side(a_run()), Side(other)) == [
        "torch 2.11 → 2.13",
        "triton absent → 3.6",
        "the source of k changed (aaaaaaaa → bbbbbbbb)",
    ]


def test_sides_without_a_common_case_are_refused():
    with pytest.raises(CompareError, match="no case in common"):
        compare.compare(Side(a_run()), Side(a_run()), kernel="other")


@pytest.fixture
def norms():
    return recordings.of_kernel("rms_norm")[0].id


def test_command_compares_recordings_and_fails_below_limit(norms, capsys):
    sides = [f"{norms}:triton", f"{norms}:eager"]
    assert main(["compare", *sides, "--kernel", "rms_norm", "--fail-below", "0.95"]) == 1
    out = capsys.readouterr().out
    assert f"{norms}:eager is" in out and "slower than" in out and "triton → eager" in out
    assert main(["compare", *reversed(sides), "--kernel", "rms_norm", "--fail-below", "0.95"]) == 0


@pytest.mark.parametrize(("other", "said"), [(":trton", "no implementation 'trton'"), ("x", "x")])
def test_command_refuses_unknown_side_in_one_line(norms, other, said, capsys):
    assert main(["compare", norms, norms + other]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


NAN = float("nan")


def rows(*cases):
    return pd.DataFrame(cases, columns=["speedup", "verdict"]).assign(fault="Wrong: NaN.")


@pytest.mark.parametrize(("cases", "said"), [
    ([(6.12, "faster"), (11.4, "faster"), (8.0, "faster")], "softmax is 6.12–11.4× faster than eager in all 3 cases"),
    ([(0.5, "slower"), (0.25, "slower")], "softmax is 2.00–4.00× slower than eager in both cases"),
    ([(1.5, "faster"), (1.501, "faster")], "softmax is 1.50× faster than eager in both cases"),
    ([(1.004, "faster"), (1.03, "faster")], "softmax is 0.4–3.0 % faster than eager in both cases"),
    ([(1.001, "alike"), (0.98, "alike")], "softmax is as fast as eager in both cases"),
    ([(1.5, "faster"), (3.0, "faster"), (0.8, "slower"), (1.0, "alike")],
     "softmax is 1.50–3.00× faster than eager in 2 of 4 cases, 1.25× slower in 1, as fast in 1"),
    ([(2.0, "faster"), (NAN, "not timed")], "softmax is 2.00× faster than eager in the one case (1 more has no times to compare)"),
    ([(NAN, "not timed")], "softmax against eager: no times to compare"),
    ([(NAN, "not comparable"), (NAN, "not timed")], "softmax against eager: times cannot be compared"),
    ([], "softmax against eager: no case in common"),
    ([(2.0, "faster"), (NAN, "wrong")],
     "softmax is wrong in 1 of 2 cases: NaN; softmax is 2.00× faster than eager in the one case"),
    ([(NAN, "wrong")], "softmax is wrong in the one case: NaN"),
])  # fmt: skip
def test_sentence_speaks_of_the_candidate(cases, said):
    assert verdicts.sentence(rows(*cases), "softmax", "eager") == said


NOISE = np.linspace(-1, 1, 51) * 1e-3


@pytest.mark.parametrize(("factor", "low", "high"), [(1.005, 1.0, 1.01), (0.995, 0.99, 1.0), (1.2, 1.19, 1.21)])
def test_interval_holds_the_speedup_within_its_noise(factor, low, high):
    ends = compare.interval(baseline=factor * (1 + NOISE), candidate=1 + NOISE)
    assert low < ends[0] <= factor <= ends[1] < high
