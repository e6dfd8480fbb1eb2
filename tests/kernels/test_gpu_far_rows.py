"""Rows so far apart on a GPU that offsets within a tile exceed int32. Of the memory between them nothing is written or read."""

import pytest
import torch
import torch.nn.functional as F
from tilescope_kernels import layer_norm_linear
from tilescope_kernels.norms import norm_linear

from . import on_gpu
from .checks import relative_error

pytestmark = on_gpu.MARKS


@pytest.fixture(autouse=True)
def room():
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GB of GPU memory")


@pytest.mark.parametrize("config", [config for config in norm_linear.BEHIND if not config["TMA"]][:2])
def test_a_norm_behind_a_product(config):
    """Rows of x, then rows of y."""
    x = torch.empty((300, 2**24 + 8), dtype=torch.bfloat16, device="cuda")[:, :64]
    x.copy_(on_gpu.draw(300, 64))
    weight = on_gpu.draw(24, 64, seed=1)
    wanted = F.linear(F.layer_norm(x.double(), (64,)), weight.double())
    assert relative_error(layer_norm_linear(x, None, None, weight, config=config), wanted) <= 7e-3
    del x
    x, weight = on_gpu.draw(300, 16, seed=2), on_gpu.draw(2**24 + 8, 16, seed=3)
    y = layer_norm_linear(x, None, None, weight, config=config)
    for last in (slice(0, 24), slice(-24, None)):
        wanted = F.linear(F.layer_norm(x.double(), (16,)), weight[last].double())
        assert relative_error(y[:, last], wanted) <= 7e-3
