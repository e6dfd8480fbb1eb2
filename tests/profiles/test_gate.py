"""The gate on runs with known answers: failures, passes, and undecided checks."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tilescope import cli
from tilescope.commands import gate as gate_command
from tilescope.models import compare, gate, json_documents
from tilescope.notebook import opening
from tilescope.runs import store
from tilescope.runs.store import LoadedRun
from tilescope.table import schema
from tilescope.table.case import Case
from tilescope.table.run import Device, Failure, Run

from tests.recorded import recorded

from . import made_up
from .test_json_documents import check

CASE = made_up.CASE
GPU = made_up.gpu(sheet_hbm=1e12)
LIMITS = gate.Limits()
#: What the compiler says of a launch.
COMPILED = {"registers": 64, "shared_memory": 4096, "spill_bytes_stored": 0, "spill_bytes_loaded": 0,
            "theoretical_occupancy": 0.5}  # fmt: skip
Launch = Mapping[str, float]


def times(median: float = 100e-6, noise: float = 0.01, seed: int = 0) -> list[float]:
    """Seconds of 50 repetitions."""
    return list(median * (1 + noise * np.random.default_rng(seed).standard_normal(50)))


def run(
    *launches: Launch, repeated: list[float] | None = None, case: Mapping[str, float] | None = None, of: Case = CASE,
    failures: tuple[Failure, ...] = (), device: Device = GPU, target: str = "sm_90",
) -> LoadedRun:  # fmt: skip
    """A run of one case: the compiler's values of its launches, its times, and values of the whole case (``metric@source``)."""
    rows = [of.row("algorithm_bytes_read", 1e6, "model"), of.row("algorithm_bytes_written", 1e6, "model")]
    for number, launch in enumerate(launches):
        at = {"launch": number, "function": f"kernel_{number}"}
        rows += [of.row(metric, value, "compiler", **at) for metric, value in launch.items()]
    for sample, value in enumerate(repeated or []):
        rows.append(of.row("gpu_time", value, "torch_profiler", launch=0, function="kernel_0", sample=sample))
    for key, value in (case or {}).items():
        metric, source = key.split("@")
        rows.append(of.row(metric, value, source))
    described = Run(
        "20261125-000000-abcd", "2026-11-25T00:00:00+00:00", device, {}, {}, {"target": target}, failures=failures
    )
    return LoadedRun(described, schema.frame(rows), Path("nowhere"))


@pytest.mark.parametrize("name", ["add_v2", "add_v1"])
def test_renamed_kernel_is_paired(name: str) -> None:
    base, head = (
        run(COMPILED, of=Case("add_v1", "triton", "forward", "8-fp32")),
        run({**COMPILED, "registers": 128}, of=Case(name, "triton", "forward", "8-fp32")),
    )
    found = gate.gate(base, head, LIMITS)
    assert {check.what: check.verdict for check in found.checks}["registers"] == "fail"
    assert any(note.startswith("renamed: add_v1 → add_v2") for note in found.notes) == (name != "add_v1")


def test_absent_kernel_may_be_renamed() -> None:
    cases = [Case("add_v1", "triton", "forward", size) for size in ("8-fp32", "9-fp32")]
    base, head = (run(COMPILED, of=case) for case in (cases[0], Case("add_v2", "triton", "forward", "9-fp32")))
    both = LoadedRun(head.run, pd.concat([head.table, base.table.assign(kernel="same")]), Path("nowhere"))
    base = LoadedRun(base.run, pd.concat([base.table, base.table.assign(kernel="same")]), Path("nowhere"))
    (gone,) = [check for check in gate.gate(base, both, LIMITS).checks if check.what == "case"]
    assert gone.said == "absent in the candidate: renamed? It has add_v2"
    # A kernel that is there at another size was not renamed, nor is a kernel of the library another's new name.
    other = LoadedRun(
        both.run, pd.concat([both.table, head.table.assign(kernel="add_v1", workload="10-fp32")]), Path("nowhere")
    )
    kernels = {"softmax": {"file": "tilescope_kernels/reductions/softmax.py"}}
    library = LoadedRun(
        dataclasses.replace(both.run, kernels=kernels), both.table.replace("add_v2", "softmax"), Path("nowhere")
    )
    for candidate in (other, library):
        found = gate.gate(base, candidate, LIMITS, allow_missing=True).of(gate.ABSENT)
        assert {check.said for check in found if check.kernel == "add_v1"} == {"absent in the candidate"}


def verdicts(base: LoadedRun, head: LoadedRun, limits: gate.Limits = LIMITS, **more: Any) -> dict[str, str]:
    return {check.what: check.verdict for check in gate.gate(base, head, limits, **more).checks}


@pytest.mark.parametrize(("slowdown", "noise", "verdict"), [
    (1.0, 0.01, "pass"), (1.02, 0.005, "pass"), (0.8, 0.01, "pass"), (1.05, 0.01, "fail"), (2.0, 0.2, "fail"),
    (1.05, 0.2, "undecided"), (1.03, 0.02, "undecided"),
])  # fmt: skip
def test_a_slowdown_counts_beyond_its_noise(slowdown: float, noise: float, verdict: str) -> None:
    base, head = run(repeated=times(noise=noise)), run(repeated=times(100e-6 * slowdown, noise, seed=1))
    found = gate.gate(base, head, LIMITS)
    (check,) = found.checks
    assert (check.what, check.verdict, found.verdict) == ("gpu_time", verdict, verdict)
    assert check.low is not None and check.high is not None and check.low <= check.change <= check.high  # type: ignore[operator]
    assert ("too noisy" in check.said) == (verdict == "undecided")


def test_one_repetition_decides_nothing() -> None:
    found = gate.gate(run(repeated=[100e-6]), run(repeated=[300e-6]), LIMITS)
    assert found.verdict == "undecided" and "one repetition shows no noise" in found.checks[0].said
    json_documents.text(json_documents.gate(found))


@pytest.mark.parametrize(("candidate", "verdict"), [
    ([50, 51] * 15, "pass"), ([5000, *[50, 51] * 10], "pass"),  # a warm-up, and another number of launches
    ([5050] * 3, "fail"), ([5000, 5050, 5100] * 5, "fail"), ([5000, 50], "undecided"), ([5050], "undecided"),
])  # fmt: skip
def test_launches_of_an_opened_trace_are_repetitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], candidate: list[float], verdict: str
) -> None:
    def opened(name: str, *microseconds: float) -> str:
        events = [{"ph": "X", "cat": "kernel", "name": "scale", "ts": 10_000 * n, "dur": time, "pid": 0, "tid": 7,
                   "args": {"device": 0, "stream": 7, "grid": [8, 1, 1], "block": [128, 1, 1]}}
                  for n, time in enumerate(microseconds)]  # fmt: skip
        file = tmp_path / name
        file.write_text(
            json.dumps({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "GPU"}], "traceEvents": events})
        )
        return str(opening.open_file(file, tmp_path / "runs").folder)

    runs = [opened("before.json", *[50, 51] * 10), opened("after.json", *candidate)]
    assert cli.main(["gate", *runs, "--json"]) == (verdict == "fail")
    assert json.loads(capsys.readouterr().out)["verdict"] == verdict


@pytest.mark.parametrize(("moved", "verdict"), [((1e6, 1e6, 1e6), "pass"), ((2e6, 2e6), "fail")])
def test_bytes_of_an_opened_file_are_those_of_a_launch(moved: tuple[float, ...], verdict: str) -> None:
    def opened(*launches: float) -> LoadedRun:
        rows = [row for number, value in enumerate(launches) for way in ("read", "written")
                for row in made_up.values({f"dram_bytes_{way}@ncu": value}, number)]  # fmt: skip
        described = dataclasses.replace(run().run, settings={"target": "sm_90", "file_sha256": "0"})
        return LoadedRun(described, schema.frame(rows), Path("nowhere"))

    assert verdicts(opened(1e6, 1e6), opened(*moved)) == {"bytes": verdict}


@pytest.mark.parametrize(("change", "what", "limit"), [
    ({"registers": 72}, "registers", {"registers": 0.13}),
    ({"shared_memory": 8192}, "shared_memory", {"shared_memory": 1.0}),
    ({"spill_bytes_stored": 4}, "spill_bytes", {"spills": 4}),
    ({"theoretical_occupancy": 0.4375}, "theoretical_occupancy", {"occupancy": 0.0625}),
])  # fmt: skip
def test_what_the_compiler_says_has_no_noise(change: Launch, what: str, limit: dict[str, float]) -> None:
    base, head = run(COMPILED), run({**COMPILED, **change})
    assert verdicts(base, head)[what] == "fail"
    assert [name for name, verdict in verdicts(base, head).items() if verdict != "pass"] == [what]
    assert set(verdicts(base, head, gate.Limits(**limit)).values()) == {"pass"}
    assert what not in verdicts(base, head, gate.Limits(**dict.fromkeys(limit)))  # it is off
    assert set(verdicts(head, base).values()) == {"pass"}  # the other way round nothing is lost
    assert set(verdicts(base, base).values()) == {"pass"}


def test_gate_compares_equal_launches_one_by_one() -> None:
    small = {**COMPILED, "registers": 32}
    (check,) = gate.gate(run(COMPILED, small), run(COMPILED, {**small, "registers": 40}), LIMITS).of("fail")
    assert (check.baseline, check.candidate, check.function) == (32, 40, "kernel_1")
    # Fused into one: the largest of each side.
    assert verdicts(run(COMPILED, small), run(COMPILED))["registers"] == "pass"
    (check,) = gate.gate(run(COMPILED, small), run({**COMPILED, "registers": 80}), LIMITS).of("fail")
    assert (check.baseline, check.candidate, check.function) == (64, 80, "")


@pytest.mark.parametrize(("source", "factor", "verdict"), [
    ("ncu", 1.01, "pass"), ("ncu", 1.05, "fail"), ("interpreter", 1.05, "fail"), ("interpreter", 0.5, "pass"),
])  # fmt: skip
def test_bytes_are_by_the_same_source_on_both_sides(source: str, factor: float, verdict: str) -> None:
    stem = {"ncu": "dram", "interpreter": "unique"}[source]
    base = {f"{stem}_bytes_{way}@{source}": 1e6 for way in ("read", "written")}
    head = {name: value * factor for name, value in base.items()}
    assert verdicts(run(case=base), run(case=head)) == {"bytes": verdict}
    other = {"requested_bytes_read@interpreter": 1e6, "requested_bytes_written@interpreter": 1e6}
    if source == "ncu":
        assert verdicts(run(COMPILED, case=base), run(COMPILED, case=other))["bytes"] == "not compared"


FAILED = Failure(CASE.id, "events", "illegal memory access")


def test_gate_fails_for_missing_or_failed_cases() -> None:
    base = run(COMPILED)
    other = dataclasses.replace(run(COMPILED, of=Case("other", "triton", "forward", "8-fp32")))
    both = dataclasses.replace(base, table=pd.concat([base.table, other.table], ignore_index=True))
    assert verdicts(both, base)["case"] == "fail"
    assert verdicts(both, base, allow_missing=True)["case"] == "not compared"
    assert "case" not in verdicts(both, base, kernels=["scale"])
    failed = run(COMPILED, failures=(FAILED,))
    assert verdicts(base, failed)["case"] == "fail"
    assert "case" not in verdicts(failed, failed)  # it failed before, too
    own = run(COMPILED, failures=(dataclasses.replace(FAILED, case=f"path/to/own.py:{CASE.id}"),))
    assert verdicts(base, own)["case"] == "fail"
    added = "1 case of the candidate is not in the baseline, and not judged"
    # A slowdown was to be judged, and nothing was timed.
    assert gate.gate(base, both, LIMITS).notes == ("no times are compared: no case was timed in both runs", added)
    assert gate.gate(base, both, gate.Limits(slowdown=None)).notes == (added,)


def test_gate_of_different_gpus_compares_compiled_part_only() -> None:
    other = dataclasses.replace(GPU, name="Another GPU")
    found = gate.gate(run(COMPILED, repeated=times()), run(COMPILED, repeated=times(1), device=other), LIMITS)
    assert found.verdict == "not compared" and [check.what for check in found.of("not compared")] == ["gpu_time"]
    assert "measured on different devices" in found.notes[0]
    with pytest.raises(compare.CompareError, match=r"nothing of .* can be compared: measured on different devices"):
        gate.gate(run(repeated=times()), run(repeated=times(), device=other), LIMITS)
    with pytest.raises(compare.CompareError, match="compiled for different targets"):
        gate.gate(run(COMPILED), run(COMPILED, target="sm_80"), LIMITS)
    with pytest.raises(compare.CompareError, match="has no softmax to compare with"):
        gate.gate(run(COMPILED), run(COMPILED), LIMITS, kernels=["softmax"])


def test_a_quicker_head_that_cannot_be_shuts_the_gate() -> None:
    # 2 MB take 2 us at the roof of this GPU.
    too_fast, right = run(repeated=times(0.1e-6)), run(repeated=times(3e-6))
    found = gate.gate(right, too_fast, LIMITS)
    assert found.verdict == "fail" and "impossible" in found.checks[0].said
    assert gate.gate(too_fast, right, LIMITS).verdict == "undecided"


def test_wrong_results_shut_the_gate() -> None:
    right, wrong = (
        run(COMPILED, case={"relative_error@check": error, "tolerance@check": 1e-3}, repeated=times(seconds))
        for error, seconds in ((1e-5, 100e-6), (0.1, 10e-6))
    )
    assert verdicts(right, wrong) == {"result": "fail"}
    assert gate.gate(right, wrong, LIMITS).checks[0].said.startswith("Wrong: the error against the reference, 0.1")
    for known in (verdicts(wrong, wrong), verdicts(wrong, right)):
        assert known["result"] == "not compared" and "gpu_time" not in known and known["registers"] == "pass"


@pytest.mark.parametrize(("clock", "verdict"), [(1.98e9, "fail"), (1.70e9, "undecided"), (1.95e9, "fail")])
def test_a_lower_clock_that_explains_the_slowdown_leaves_it_open(clock: float, verdict: str) -> None:
    base = run(repeated=times(noise=0.002), case={"sm_clock@torch_profiler": 1.98e9})
    head = run(repeated=times(108e-6, 0.002, 1), case={"sm_clock@torch_profiler": clock})
    found = gate.gate(base, head, LIMITS)
    assert found.verdict == verdict
    assert ("SM clock" in found.checks[0].said) == (verdict == "undecided")


#: A product recorded whole, and one of its cases before.
WHOLE, AGAIN = recorded("matmul"), recorded("matmul: inside")


def test_the_same_kernel_recorded_twice_is_let_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["gate", AGAIN, WHOLE]) == 0
    assert capsys.readouterr().out.startswith(f"gate passed: 5 checks pass ({AGAIN} → {WHOLE})")


def test_the_command_says_why_and_writes_summaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = tmp_path / "step.md"
    step.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    monkeypatch.setenv("COLUMNS", "400")
    arguments = ["gate", WHOLE, AGAIN, "--impl", "triton", "--markdown", str(tmp_path / "own.md")]
    assert cli.main(arguments) == 1
    said = capsys.readouterr().out
    assert said.startswith("gate failed: 11 of 17 checks fail, 1 not compared") and "absent in the candidate" in said
    markdown = (tmp_path / "own.md").read_text()
    assert markdown.startswith("## ❌ Kernels: gate failed") and "| --- |" in markdown
    assert step.read_text() == "before\n" + markdown
    assert cli.main([*arguments, "--json", "--allow-missing"]) == 0
    document = json.loads(capsys.readouterr().out)
    check(document, "gate")
    assert document["verdict"] == "not compared" and document["limits"]["slowdown"] == 0.03
    assert cli.main([*arguments, "--allow-missing", "--strict"]) == 1
    other = next(
        each.path for each in store.list_runs([store.recorded_dir()]) if each.title == "reductions: autotune sweeps"
    )
    assert cli.main(["gate", WHOLE, str(other)]) == 1  # another kernel: every case is gone
    assert cli.main(["gate", WHOLE, "nowhere"]) == 2


@pytest.mark.parametrize("wrong", [["--max-slowdown", "much"], ["--max-slowdown=-1%"], ["--max-spills", "1.5"]])
def test_a_limit_that_is_none_is_refused_in_a_line(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["gate", WHOLE, WHOLE, *wrong])
    assert ended.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


def test_a_name_from_a_run_stays_text_in_the_summary() -> None:
    case = Case("scale|`x`", "triton", "forward", "8<script>-fp32")
    written = gate_command.markdown(
        gate.gate(run(COMPILED, of=case), run({**COMPILED, "registers": 255}, of=case), LIMITS)
    )
    (row,) = (line for line in written.splitlines() if "scale" in line)
    assert r"scale\|\`x\`/triton/forward/8\<script\>-fp32" in row and row.replace(r"\|", "").count("|") == 8
