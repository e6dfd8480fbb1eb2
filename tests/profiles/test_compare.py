"""Changes between two sides, and reasons not to compare them."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from tilescope.cli import main
from tilescope.models import compare
from tilescope.models.compare import CompareError, Side
from tilescope.runs import recordings, store
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Run

DEVICE = Device("GPU", "sm_90", 100, 1, 1, True)
CASES = [Case("k", impl, "forward", size, "") for impl in ("triton", "eager") for size in ("8-fp32", "16-fp32")]


def a_run(factor: float = 1.0, *, repetitions: int = 20, source: str = "torch_profiler", **fields) -> store.LoadedRun:
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


def test_the_same_is_alike_and_nothing_is_certain() -> None:
    rows = compare.compare(Side(a_run()), Side(a_run()))
    assert len(rows) == 4
    assert set(rows["verdict"]) == {"alike"}
    assert rows["ratio"].tolist() == [1.0] * 4
    assert (rows["ratio_low"] <= 1).all() and (rows["ratio_high"] >= 1).all()
    assert compare.worst([rows]) == 0


def test_a_slower_run_is_said_to_be_with_its_interval_worst_first() -> None:
    slow = a_run(1.3)
    slow.table.loc[(slow.table["workload"] == "16-fp32") & (slow.table["metric"] == "gpu_time"), "value"] *= 0.5
    rows = compare.compare(Side(a_run()), Side(slow))
    assert rows["verdict"].tolist() == ["slower", "slower", "faster", "faster"]
    assert rows["workload"].tolist() == ["8-fp32", "8-fp32", "16-fp32", "16-fp32"]
    assert rows["ratio"].iloc[0] == pytest.approx(1.3, rel=0.01)
    assert rows["ratio_low"].iloc[0] < rows["ratio"].iloc[0] < rows["ratio_high"].iloc[0]
    assert (rows["registers"] == 32).all() and rows["other_registers"].tolist() == pytest.approx([41.6] * 4)
    assert 1.25 < compare.worst([rows]) < 1.3


@pytest.mark.parametrize(("factor", "verdict"), [
    (1.02, "slower"), (0.98, "faster"), (1.002, "alike"), (0.998, "alike"),
])  # fmt: skip
def test_a_difference_counts_from_where_its_interval_leaves_out_one(factor: float, verdict: str) -> None:
    rows = compare.compare(Side(a_run()), Side(a_run(factor)))
    assert set(rows["verdict"]) == {verdict}
    assert all(
        (low > 1, high < 1) == (verdict == "slower", verdict == "faster")
        for low, high in zip(rows["ratio_low"], rows["ratio_high"], strict=True)
    )


def test_implementations_of_one_run_are_held_against_each_other() -> None:
    run = a_run()
    rows = compare.compare(Side(run, "triton"), Side(run, "eager"))
    assert rows[["impl", "other_impl"]].drop_duplicates().to_numpy().tolist() == [["triton", "eager"]]
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (a_run(device=dataclasses.replace(DEVICE, name="Other")), "measured on different devices: GPU and Other"),
        (a_run(device=dataclasses.replace(DEVICE, measured=False)), "not measured"),
        (a_run(settings={"rotate": 1}), "different settings: rotate is not set and 1"),
    ],
)
def test_nothing_is_pretended_where_devices_or_settings_differ(other: store.LoadedRun, said: str) -> None:
    assert said in compare.obstacles(Side(a_run()), Side(other))[0]
    rows = compare.compare(Side(a_run()), Side(other))
    assert set(rows["verdict"]) == {"not comparable"}
    assert rows["ratio"].isna().all() and rows["time"].notna().all()


def test_how_often_and_by_which_collectors_does_not_matter() -> None:
    assert not compare.obstacles(Side(a_run()), Side(a_run(settings={"repetitions": 3, "collectors": ["ncu"]})))


def test_clocks_are_not_mixed() -> None:
    rows = compare.compare(Side(a_run()), Side(a_run(source="ncu")))
    assert set(rows["verdict"]) == {"not timed"} and rows["ratio"].isna().all()


def test_one_repetition_tells_no_difference() -> None:
    rows = compare.compare(Side(a_run(repetitions=1)), Side(a_run(2.0, repetitions=1)))
    assert set(rows["verdict"]) == {"alike"}
    assert rows["ratio_high"].tolist() == [math.inf] * 4
    assert compare.compare(Side(a_run(repetitions=0)), Side(a_run(repetitions=0)))["time"].isna().all()


def test_versions_and_sources_that_changed_are_listed() -> None:
    other = a_run(versions={"torch": "2.13", "triton": "3.6"}, kernels={"k": {"sha256": "b" * 64}})
    assert compare.changes(Side(a_run()), Side(other)) == [
        "torch 2.11 → 2.13",
        "triton absent → 3.6",
        "the source of k changed (aaaaaaaa → bbbbbbbb)",
    ]


def test_what_shares_no_case_is_refused() -> None:
    with pytest.raises(CompareError, match="no case in common"):
        compare.compare(Side(a_run()), Side(a_run()), kernel="other")


@pytest.fixture
def norms() -> str:
    return recordings.of_kernel("rms_norm")[0].id


def test_the_command_compares_recordings_and_fails_when_asked(norms: str, capsys: pytest.CaptureFixture[str]) -> None:
    sides = [f"{norms}:triton", f"{norms}:eager"]
    assert main(["compare", *sides, "--kernel", "rms_norm"]) == 0
    out = capsys.readouterr().out
    assert "triton → eager" in out and "slower" in out
    assert main(["compare", *sides, "--fail-above", "1.05"]) == 1
    assert main(["compare", *reversed(sides), "--kernel", "rms_norm", "--fail-above", "1.05"]) == 0


@pytest.mark.parametrize(("other", "said"), [(":trton", "no implementation 'trton'"), ("x", "x")])
def test_the_command_refuses_in_one_line(norms: str, other: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", norms, norms + other]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
