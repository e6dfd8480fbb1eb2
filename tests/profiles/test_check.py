"""Comparing with the reference, in the interpreter."""

import gzip
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tilescope.collectors import check, torch_profiler
from tilescope.table.case import Case

from . import small_kernels
from .capturing import capture, figures, small

CASES = {
    "softmax": small("SOFTMAX", "67x781-fp32"), "softmax eager": small("SOFTMAX", "67x781-fp32", "eager"),
    "half": small("MATMUL", "128x256x128-bf16"), "times": small("TIMES", "500-bf16", direction="backward"),
    "wrong": small("TIMES", "500-fp32", "wrong", "backward"), "in place": small("TIMES", "500-fp32", "in_place"),
    "gather": small("GATHER", "1000-fp32"), "sums": small("SUMS", "40x300-fp32"),
    "compact": small("COMPACT", "100-fp32"), "unwritten": small("CARELESS", "128-fp32", "unwritten"),
    "beyond": small("CARELESS", "100-fp32", "beyond"), "common NaN": small("RATIO", "200-fp32"),
    "NaN": small("UNGUARDED", "200-fp32"), "compile": small("TIMES", "500-fp32", "compile"),
    "empty": small("TIMES", "0-fp32"), "asserted": small("ASSERTED", "16-fp32"),
}  # fmt: skip


@pytest.fixture(scope="module")
def found():
    answers = capture("check", list(CASES.values()))
    return {name: answers[case.id] for name, case in CASES.items()}


@pytest.mark.parametrize(
    "name", ["softmax", "softmax eager", "half", "times", "in place", "gather", "sums", "compact", "empty"]
)
def test_right_is_right_as_a_whole_and_by_row(found, name):
    judged = figures(found[name], None)
    assert judged["relative_error"] <= judged["tolerance"] == 1e-5
    assert set(found[name]["rows"]["source"]) == {"interpreter"}
    assert judged["relative_error"] / 2 <= judged["row_error"] <= judged["row_tolerance"] == pytest.approx(1e-4)
    assert set(found[name]["artefact"]["row_errors"]) == set(found[name]["artefact"]["errors"])


def test_the_largest_error_of_the_results_is_the_case_s(tmp_path):
    artefact, case = tmp_path / "a.json", Case("own", "triton", "backward", "8-fp32")
    told = {
        "source": "check",
        "errors": {"output 0": 1e-9, "gradient of x": 0.5, "gradient of y": 1e-8},
        "tolerance": 1e-6,
    }
    artefact.write_text(json.dumps({**told, "row_errors": {"output 0": 0.7, "gradient of x": 0.1}}))
    rows = check.parse(artefact, case)
    assert dict(zip(rows["metric"], rows["value"], strict=True)) == {
        "relative_error": 0.5, "tolerance": 1e-6, "row_error": 0.7, "row_tolerance": pytest.approx(1e-5),
    }  # fmt: skip
    artefact.write_text(json.dumps(told))  # as it was before rows were compared
    assert set(check.parse(artefact, case)["metric"]) == {"relative_error", "tolerance"}


def test_a_single_wrong_row_of_a_large_result_shows():
    numbers = torch.Generator().manual_seed(0)
    expected = torch.randn(40_000, 8, generator=numbers, dtype=torch.float64)
    right = expected.to(torch.bfloat16)
    whole, row = check.relative_errors(right, expected, "y")
    assert 1e-3 < whole <= row < 4e-3
    shifted = right.clone()
    shifted[-1] = right[0]
    whole, row = check.relative_errors(shifted, expected, "y")
    assert whole < 1e-2
    assert row > 0.5
    vector = right[:, 0].clone()
    vector[7] *= 1.25
    assert check.relative_errors(vector, expected[:, 0], "y").row > 0.05


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.bool])
def test_integers_are_compared(dtype):
    expected = (torch.arange(12).reshape(3, 4) % 3).to(dtype)
    assert check.relative_errors(expected.clone(), expected, "y") == (0.0, 0.0)
    other = expected.clone()
    other[0, 0] = 1
    assert check.relative_errors(other, expected, "y").row > 0.1


def test_a_row_of_next_to_nothing_is_held_against_the_others():
    expected = torch.ones(3, 4, dtype=torch.float64)
    expected[1] = 1e-20
    result = expected.clone()
    result[1] = -1e-18
    assert check.relative_errors(result, expected, "y").row < 1e-17
    nothing = torch.zeros(3, 4, dtype=torch.float64)
    assert check.relative_errors(nothing + 0.5, nothing, "y").row == 1.0
    assert check.relative_errors(nothing[:0], nothing[:0], "y") == (0.0, 0.0)


def test_check_of_each_kernel(found):
    assert set(found["times"]["artefact"]["errors"]) == {"output 0", "gradient of x"}
    assert set(found["softmax"]["artefact"]["errors"]) == {"output 0"}
    assert figures(found["wrong"], None)["relative_error"] == pytest.approx(0.5 / 3)
    assert found["unwritten"]["error"] == "CheckFailed"
    assert "NaN in 1 of 128 elements" in found["unwritten"]["message"]
    assert found["beyond"]["error"] == "InterpretationFailed"
    assert found["NaN"]["error"] == "CheckFailed"
    line = small_kernels.ratio_kernel.starting_line_number + 6
    said = f"ratio_kernel, line {line}: program (1, 0, 0) makes the first NaN that it stores, 0 / 0"
    assert "NaN in 64 of 200 elements" in found["NaN"]["message"] and said in found["NaN"]["message"]
    assert found["compile"]["error"] == "NotApplicable"


def test_common_nan_is_a_warning_with_its_origin(found, tmp_path):
    assert figures(found["common NaN"], None)["relative_error"] == 0
    artefact = tmp_path / "check.json"
    artefact.write_text(json.dumps(found["common NaN"]["artefact"]))
    counted, origin = check.warnings(artefact)
    assert counted.startswith("output 0 is NaN or infinite in 64 elements") and "0 / 0" in origin
    artefact.write_text(json.dumps(found["softmax"]["artefact"]))
    assert check.warnings(artefact) == []


def test_violated_assertion_of_right_results_fails(found, tmp_path):
    assert figures(found["asserted"], None)["relative_error"] == 0
    artefact = tmp_path / "check.json"
    artefact.write_text(json.dumps(found["asserted"]["artefact"]))
    line = small_kernels.asserted_kernel.starting_line_number + 3
    assert check.failure(artefact).startswith(f"asserted_kernel, line {line}: the assertion 'few lanes' does not hold")
    artefact.write_text(json.dumps(found["softmax"]["artefact"]))
    assert check.failure(artefact) == ""


def test_what_would_take_too_long_does_not_apply():
    (answer,) = capture("check", [small("SOFTMAX", "20000x781-fp32")], check_limit=2.0).values()
    assert answer["error"] == "NotApplicable"
    assert "choose a smaller workload" in answer["message"]


CASE = Case("softmax", "triton", "forward", "8x8-fp32", "BLOCK=8")
SPEC: Any = SimpleNamespace(tolerance={"fp32": 1e-5})


@pytest.fixture
def errors(monkeypatch):
    """The error and the worst row's, of each output, that the GPU's result is said to have."""
    found = {}
    monkeypatch.setattr(check, "errors_on_gpu", lambda case, spec, known: found)
    return found


@pytest.mark.parametrize(("wrong", "said"), [
    ({"output 0": (0.5, 0.5), "output 1": (0.0, 0.0)}, r"wrong, so not timed: .*0\.5, is above 1e-05"),
    ({"output": (5e-6, 0.5)}, "the worst row's error"),
])  # fmt: skip
def test_wrong_config_is_not_timed(errors, tmp_path, wrong, said):
    errors.update(wrong)
    with pytest.raises(check.CheckFailed, match=said):
        torch_profiler.capture(CASE, SPEC, tmp_path / "trace", {"check_first": True})
    assert not list(tmp_path.iterdir())


def test_right_config_keeps_its_error(errors, tmp_path):
    errors["output 0"] = (1e-7, 2e-7)
    checked = check.require(CASE, SPEC)
    trace = tmp_path / "a.trace.json.gz"
    trace.write_bytes(gzip.compress(json.dumps({"traceEvents": [], "checked": checked}).encode()))
    found = torch_profiler.parse(trace, CASE)
    assert dict(zip(found["metric"], found["value"], strict=True)) == {
        "relative_error": 1e-7, "tolerance": 1e-5, "row_error": 2e-7, "row_tolerance": 1e-4,
    }  # fmt: skip
    assert set(found["source"]) == {"check"}
