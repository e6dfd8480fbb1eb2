"""Launches of tensors too large for a machine without a GPU: what their kernels compute in int32 stays in its range."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope.execution import launches


@pytest.fixture
def caught():
    with launches.catch() as caught:
        yield caught


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.parametrize("count", [kernels.histogram, kernels.histogram_naive])
def test_a_histogram_s_number_of_blocks(caught, count):
    count(meta(2**31 - 1, dtype=torch.int32), 40)
    extents = [launch.arguments["n"] for launch in caught]
    assert sum(extents) == 2**31 - 1
    assert max(extents) < 2**31 - 8192


@pytest.mark.parametrize("elements", [2**31 - 1, 2**31 - 2047])
def test_the_number_of_blocks_of_gated_activations(caught, elements):
    gate = meta(1, elements)
    kernels.swiglu(gate, gate)
    torch.ops.tilescope.gated_backward(gate, gate, gate, 0, "")
    for two in (caught[:2], caught[2:]):
        extents = [launch.arguments["columns"] for launch in two]
        assert sum(extents) == elements
        assert max(extents) < 2**31 - 8192
