"""Studies: interpreted values, and what can be said without running a kernel."""

import pytest
import torch
from tilescope_kernels import FAMILIES
from tilescope_kernels.spec import FORWARD
from tilescope_kernels.studies import compile_modes, strided_copy, tma_copy

SCRIPTS = ["batch_studies.py"]
BY_NAME = {spec.name: spec for spec in FAMILIES["studies"]}
MATRIX, ROW = torch.ones(4, 6), torch.ones(6)


def test_interpreted(wrong):
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tma_copy.copy_through_pointers(ROW), "x has 1 dimensions: give a matrix"),
        (
            lambda: tma_copy.copy_through_descriptors(MATRIX),
            "x has 6 columns of torch.float32: give rows of a multiple",
        ),
        (lambda: tma_copy.copy_through_pointers(MATRIX.clone().requires_grad_()), "x requires a gradient"),
        (lambda: strided_copy.strided_copy(ROW, 0), "stride is 0: give at least 1"),
        (lambda: strided_copy.unit_copy(MATRIX, 1), "x has 2 dimensions: give 1"),
        (lambda: BY_NAME["block_reduction"].implementations["warps"].call(ROW), "x has 1 dimensions: give a matrix"),
    ],
)
def test_what_does_not_fit_is_named(caught, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert not caught


def test_layers_add_up():
    spec = BY_NAME["mlp_compile_regions"]
    inputs = spec.inputs(spec.workload("3x4x5x2-fp32"), "cpu")
    x = inputs["x"]
    for weights in zip(inputs["gate"], inputs["up"], inputs["down"], strict=True):
        x = x + compile_modes.plain_mlp(torch.nn.functional.rms_norm(x, (4,)), *weights)
    torch.testing.assert_close(spec.reference(**inputs), x)


def test_costs():
    def moved(name, workload):
        cost = BY_NAME[name].cost(BY_NAME[name].workload(workload), FORWARD)
        return cost.bytes_read, cost.bytes_written

    assert moved("tma_copy", "3x16-fp16") == (96, 96)
    assert moved("strided_copy", "100x7-fp32") == (400, 400)
    assert moved("block_reduction", "3x16-fp32") == (192, 12)
    assert moved("mlp_compile_modes", "3x5x7-fp32") == (4 * (15 + 3 * 35), 60)
    assert moved("mlp_compile_regions", "3x5x7x2-fp32") == (4 * (15 + 2 * 3 * 35), 60)
    stack = BY_NAME["mlp_compile_regions"]
    flops = stack.cost(stack.workload("3x5x7x2-fp32"), FORWARD).flops
    assert flops == 2 * 3 * (3 * 2 * 5 * 7 + 6 * 7 + 5 * 5)
