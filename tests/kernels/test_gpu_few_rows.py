"""Few queries over many keys, and products of few tiles or unaligned rows, on a GPU against fp64."""

import pytest
import torch
import torch.nn.functional as F
from tilescope_kernels import matmul
from tilescope_kernels import scaled_dot_product_attention as sdpa

from . import on_gpu
from .checks import relative_error
from .on_gpu import draw

pytestmark = on_gpu.MARKS

DTYPES = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize(
    "extents",
    [(2, 3, 1, 1, 515, 64), (2, 2, 4, 1, 8192, 128), (1, 3, 8, 16, 1000, 128), (2, 4, 4, 1, 5000, 96), (1, 3, 2, 3, 1000, 256)],
)  # fmt: skip
def test_few_queries(extents, dtype):
    batch, kv_heads, group, queries, keys, columns = extents
    q = draw(batch, kv_heads * group, queries, columns, dtype=dtype)
    k, v = (draw(batch, kv_heads, keys, columns, dtype=dtype, seed=seed) for seed in (1, 2))
    actual = sdpa(q, k, v, enable_gqa=True)
    wanted = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), enable_gqa=True)
    assert relative_error(actual, wanted) <= DTYPES[dtype]
    assert torch.equal(actual, sdpa(q, k, v, enable_gqa=True))


def test_keys_beyond_32_bit_offsets():
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GB of GPU memory")
    rows = 2**31 // 64 + 130
    k = torch.zeros(1, 1, rows, 64, device="cuda", dtype=torch.bfloat16)
    v = torch.zeros_like(k)
    v[..., -100:, :] = draw(1, 1, 100, 64)
    wanted = v[..., -100:, :].double().sum(2, keepdim=True) / rows  # all scores are 0
    torch.testing.assert_close(sdpa(draw(1, 1, 1, 64, seed=1), k, v).double(), wanted, rtol=2e-2, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("extents", [
    (1, 8192, 8192), (16, 1024, 32768), (17, 5000, 7000), (1024, 1024, 1024), (1023, 1025, 1027), (3000, 3001, 777),
    (4097, 4099, 4101),
])  # fmt: skip
def test_few_tiles_and_unaligned_rows(extents, dtype):
    m, n, k = extents
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    for one, other in ((a, b), (a, b.T.contiguous().T), (a.T.contiguous().T, b)):
        actual = matmul(one, other)
        assert relative_error(actual, one.double() @ other.double()) <= DTYPES[dtype]
        assert torch.equal(actual, matmul(one, other))
