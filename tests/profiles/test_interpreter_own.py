"""Users' operators and their gradients are counted and checked without a GPU."""

from pathlib import Path
from typing import Any

import pytest
from tilescope.table.case import Case

from .capturing import capture, figures

FILE = Path(__file__).parent / "own_operators.py"
IMPLEMENTATIONS = ("triton_op", "custom_op", "function", "module", "compiled_helper")
CASES = {
    (name, direction, dtype): Case(f"{FILE}:SINE", name, direction, f"1000-{dtype}", "")
    for name in IMPLEMENTATIONS
    for direction in ("forward", "backward")
    for dtype in ("fp32", "bf16")
}
CUDNN = Case("attention", "cudnn", "forward", "1x2x1x128x128x64-bf16")
REFUSED = {name: Case(f"{FILE}:SINE", name, "forward", "1000-fp32", "") for name in ("fullgraph", "gpu_only", "warps")}


@pytest.fixture(scope="module")
def counted() -> dict[str, Any]:
    return capture("interpreter", [*CASES.values(), *REFUSED.values()])


@pytest.fixture(scope="module")
def checked() -> dict[str, Any]:
    return capture("check", [*CASES.values(), *REFUSED.values(), CUDNN])


@pytest.mark.parametrize(("name", "direction", "dtype"), CASES)
def test_an_operator_of_ones_own_is_counted(counted: dict[str, Any], name: str, direction: str, dtype: str) -> None:
    answer = counted[CASES[name, direction, dtype].id]
    assert "rows" in answer, answer
    launches = dict(zip(answer["rows"]["function"], answer["rows"]["launch"], strict=True))
    kernel, inputs = ("sine_kernel", 1) if direction == "forward" else ("cosine_kernel", 2)
    assert ("aten.mul" in launches) is (name == "compiled_helper")
    found = figures(answer, launches[kernel])
    size = 1000 * (4 if dtype == "fp32" else 2)
    assert found["requested_bytes_read"] == found["unique_bytes_read"] == inputs * size
    assert found["requested_bytes_written"] == found["unique_bytes_written"] == size


@pytest.mark.parametrize(("name", "direction", "dtype"), CASES)
def test_an_operator_of_ones_own_is_checked(checked: dict[str, Any], name: str, direction: str, dtype: str) -> None:
    found = figures(checked[CASES[name, direction, dtype].id], None)
    assert 0 < found["relative_error"] < 1e-6


@pytest.mark.parametrize("collector", ["counted", "checked"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("fullgraph", "torch.compile generates its kernels on a GPU only"),
        ("gpu_only", "gpu_only calls tilescope_tests::gpu_sine, which runs on a GPU only"),
    ],
)
def test_what_needs_a_gpu_does_not_apply(collector: str, name: str, why: str, request: pytest.FixtureRequest) -> None:
    answer = request.getfixturevalue(collector)[REFUSED[name].id]
    assert (answer["error"], answer["message"]) == ("NotApplicable", why)


def test_a_backend_for_gpus_only_does_not_apply(checked: dict[str, Any]) -> None:
    answer = checked[CUDNN.id]
    said = "cudnn calls scaled_dot_product_attention, which runs on a GPU only"
    assert (answer["error"], answer["message"]) == ("NotApplicable", said)


@pytest.mark.parametrize("collector", ["counted", "checked"])
def test_unsupported_operations_are_skipped_with_a_message(collector: str, request: pytest.FixtureRequest) -> None:
    answer = request.getfixturevalue(collector)[REFUSED["warps"].id]
    assert answer["error"] == "NotApplicable"
    assert answer["message"].startswith("warps_kernel, program (0, 0, 0), line ")
    assert answer["message"].endswith("Triton's interpreter has no num_warps")
