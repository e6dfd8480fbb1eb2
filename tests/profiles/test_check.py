"""Comparing with the reference, in the interpreter."""

from __future__ import annotations

from typing import Any

import pytest

from .capturing import capture, figures, small

CASES = {
    "softmax": small("SOFTMAX", "67x781-fp32"),
    "softmax eager": small("SOFTMAX", "67x781-fp32", "eager"),
    "half": small("MATMUL", "128x256x128-bf16"),
    "times": small("TIMES", "500-bf16", direction="backward"),
    "wrong": small("TIMES", "500-fp32", "wrong", "backward"),
    "in place": small("TIMES", "500-fp32", "in_place"),
    "gather": small("GATHER", "1000-fp32"),
    "sums": small("SUMS", "40x300-fp32"),
    "compact": small("COMPACT", "100-fp32"),
    "unwritten": small("CARELESS", "128-fp32", "unwritten"),
    "beyond": small("CARELESS", "100-fp32", "beyond"),
    "compile": small("TIMES", "500-fp32", "compile"),
    "empty": small("TIMES", "0-fp32"),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    answers = capture("check", list(CASES.values()))
    return {name: answers[case.id] for name, case in CASES.items()}


@pytest.mark.parametrize(
    "name", ["softmax", "softmax eager", "half", "times", "in place", "gather", "sums", "compact", "empty"]
)
def test_right_is_right(found: dict[str, Any], name: str) -> None:
    judged = figures(found[name], None)
    assert judged["relative_error"] <= judged["tolerance"] == 1e-5
    assert set(found[name]["rows"]["source"]) == {"interpreter"}


def test_gradients_are_compared_too(found: dict[str, Any]) -> None:
    assert set(found["times"]["artefact"]["errors"]) == {"output 0", "gradient of x"}
    assert set(found["softmax"]["artefact"]["errors"]) == {"output 0"}


def test_wrong_is_wrong(found: dict[str, Any]) -> None:
    assert figures(found["wrong"], None)["relative_error"] == pytest.approx(0.5 / 3)


def test_an_element_that_is_never_written_shows(found: dict[str, Any]) -> None:
    assert found["unwritten"]["error"] == "CheckFailed"
    assert "NaN in 1 of 128 elements" in found["unwritten"]["message"]


def test_an_access_outside_of_every_tensor_is_an_error_not_a_crash(found: dict[str, Any]) -> None:
    assert found["beyond"]["error"] == "InterpretationFailed"


def test_compiled_code_needs_a_gpu(found: dict[str, Any]) -> None:
    assert found["compile"]["error"] == "NotApplicable"


def test_what_would_take_too_long_does_not_apply() -> None:
    (answer,) = capture("check", [small("SOFTMAX", "20000x781-fp32")], check_limit=0.5).values()
    assert answer["error"] == "NotApplicable"
    assert "choose a smaller workload" in answer["message"]
