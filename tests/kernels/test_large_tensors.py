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
