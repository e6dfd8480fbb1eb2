"""Users' operators and their gradients are counted and checked without a GPU."""

from pathlib import Path
from typing import Any

import pytest
from tilescope.table.case import Case

from .capturing import capture, figures

FILE = Path(__file__).parent / "own_operators.py"
CASES = {
    (name, direction): Case(f"{FILE}:SINE", name, direction, f"1000-{dtype}", "")
    for name, dtype in {"triton_op": "fp32", "custom_op": "bf16", "module": "fp32", "compiled_helper": "fp32"}.items()
    for direction in ("forward", "backward")
}
CUDNN = Case("attention", "cudnn", "forward", "1x2x1x128x128x64-bf16")
REFUSED = {name: Case(f"{FILE}:SINE", name, "forward", "1000-fp32", "") for name in ("fullgraph", "gpu_only", "warps")}


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    return capture("interpreter", [*CASES.values(), *REFUSED.values()])


@pytest.fixture(scope="module")
def checked() -> dict[str, Any]:
    return capture("check", [*CASES.values(), *REFUSED.values(), CUDNN])


@pytest.mark.parametrize(("name", "direction"), CASES)
def test_own_operator_is_counted(counted: dict[str, Any], checked: dict[str, Any], name: str, direction: str) -> None:
    answer = counted[CASES[name, direction].id]
    assert "rows" in answer, answer
    launches = dict(zip(answer["rows"]["function"], answer["rows"]["launch"], strict=True))
    kernel, inputs = ("sine_kernel", 1) if direction == "forward" else ("cosine_kernel", 2)
    assert ("aten.mul" in launches) is (name == "compiled_helper")
    found = figures(answer, launches[kernel])
    size = 1000 * (2 if name == "custom_op" else 4)
    assert found["requested_bytes_read"] == found["unique_bytes_read"] == inputs * size
    assert found["requested_bytes_written"] == found["unique_bytes_written"] == size
    assert 0 < figures(checked[CASES[name, direction].id], None)["relative_error"] < 1e-6


@pytest.mark.parametrize("collector", ["counted", "checked"])
def test_own_operator_unsupported_says_why(collector: str, request: pytest.FixtureRequest) -> None:
    answers = request.getfixturevalue(collector)
    reasons = {
        "fullgraph": "torch.compile generates its kernels on a GPU only",
        "gpu_only": "gpu_only calls tilescope_tests::gpu_sine, which runs on a GPU only",
    }
    for name, why in reasons.items():
        assert (answers[REFUSED[name].id]["error"], answers[REFUSED[name].id]["message"]) == ("NotApplicable", why)
    warps = answers[REFUSED["warps"].id]
    assert warps["error"] == "NotApplicable"
    assert warps["message"].startswith("warps_kernel, program (0, 0, 0), line ")
    assert warps["message"].endswith("Triton's interpreter has no num_warps")


def test_backend_for_gpus_only_says_why(checked: dict[str, Any]) -> None:
    why = "cudnn calls scaled_dot_product_attention, which runs on a GPU only"
    assert (checked[CUDNN.id]["error"], checked[CUDNN.id]["message"]) == ("NotApplicable", why)
