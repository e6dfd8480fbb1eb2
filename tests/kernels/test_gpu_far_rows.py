"""Rows so far apart on a GPU that offsets within a tile exceed int32. Of the memory between them nothing is written or read."""

import pytest
import torch
import torch.nn.functional as F
from tilescope_kernels import layer_norm_linear, quantize, ragged_attention, w8a16_matmul
from tilescope_kernels import scaled_dot_product_attention as sdpa
from tilescope_kernels.matrix_products import w8a16_matmul as w8a16
from tilescope_kernels.norms import norm_linear

from . import on_gpu
from .checks import relative_error

pytestmark = on_gpu.MARKS


@pytest.fixture(autouse=True)
def room():
    if torch.cuda.mem_get_info()[0] < 60 << 30:
        pytest.skip("needs 60 GB of GPU memory")


@pytest.mark.parametrize("config", [config for config in norm_linear.BEHIND if not config["TMA"]][:2])
def test_a_norm_behind_a_product(config):
    """Rows of x, then rows of y."""
    x = torch.empty((300, 17 * 2**20), dtype=torch.bfloat16, device="cuda")[:, :64]
    x.copy_(on_gpu.draw(300, 64))
    weight = on_gpu.draw(24, 64, seed=1)
    wanted = F.linear(F.layer_norm(x.double(), (64,)), weight.double())
    assert relative_error(layer_norm_linear(x, None, None, weight, config=config), wanted) <= 7e-3
    del x
    x, weight = on_gpu.draw(300, 16, seed=2), on_gpu.draw(17 * 2**20, 16, seed=3)
    y = layer_norm_linear(x, None, None, weight, config=config)
    for last in (slice(0, 24), slice(-24, None)):
        wanted = F.linear(F.layer_norm(x.double(), (16,)), weight[last].double())
        assert relative_error(y[:, last], wanted) <= 7e-3


def rows_of_heads(rows, heads, dtype, tile):
    """Rows of ``heads`` heads (1, heads, rows, 64), drawn, so far apart that int32 does not reach those of a tile of ``tile`` rows."""
    memory = torch.empty((rows, 2**31 // (tile - 1) // 64 * 64 + 64), dtype=dtype, device="cuda")
    x = memory[:, : heads * 64].unflatten(1, (heads, 64)).transpose(0, 1)[None]
    x.copy_(on_gpu.draw(*x.shape, dtype=dtype, seed=rows))
    return x.requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(dtype, causal):
    """One tensor as queries, keys and values. In fp32 the loops of the backward pass are shared by programs."""
    tolerance = 1e-5 if dtype == torch.float32 else 9e-3
    x = rows_of_heads(100, 2, dtype, 32)
    twin = x.detach().double().requires_grad_()
    ours, wanted = (f(t, t, t, is_causal=causal) for f, t in ((sdpa, x), (F.scaled_dot_product_attention, twin)))
    assert relative_error(ours, wanted) <= tolerance
    found, known = (torch.autograd.grad(o.square().sum(), t)[0] for o, t in ((ours, x), (wanted, twin)))
    assert relative_error(found, known) <= 4 * tolerance
    ends = torch.tensor([0, 100], dtype=torch.int32, device="cuda")
    packed = x[0].transpose(0, 1)
    ours = ragged_attention(packed, packed, packed, ends, ends, 100, 100, is_causal=causal)
    assert relative_error(ours.transpose(0, 1)[None], wanted) <= tolerance
    found = torch.autograd.grad(ours.square().sum(), x)[0]
    assert relative_error(found, known) <= 4 * tolerance


def test_attention_of_one_query():
    x = rows_of_heads(600, 2, torch.bfloat16, 64).detach()
    q = x[:, :, :1]
    assert relative_error(sdpa(q, x, x), F.scaled_dot_product_attention(q.double(), x.double(), x.double())) <= 9e-3


def test_w8a16():
    """Rows of x, then of weights, in tiles of 128 rows through pointers."""
    config = next(each for each in w8a16.TUNED if (each["BLOCK_M"], each["BLOCK_N"]) == (128, 128))
    near, (codes, scale) = on_gpu.draw(300, 64), quantize(on_gpu.draw(300, 64, seed=1))
    x, weight = (torch.empty((300, 17 * 2**20), dtype=t.dtype, device="cuda")[:, :64].copy_(t) for t in (near, codes))
    wanted = near.double() @ (codes * scale).double().T
    for operands in ((x, codes), (near, weight)):
        assert relative_error(w8a16_matmul(*operands, scale, config=config), wanted) <= 6e-3
