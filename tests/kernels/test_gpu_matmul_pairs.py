"""Products by pairs of SMs, on a GPU against fp64."""

import pytest
import torch
from tilescope.execution import observe
from tilescope_kernels import matmul
from tilescope_kernels.matrix_products import matmul_pairs
from tilescope_kernels.matrix_products.matmul import choice
from tilescope_kernels.matrix_products.matmul_tilings import PAIRS

from . import on_gpu
from .checks import relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.HOPPER]

DTYPES = {torch.bfloat16: 3e-3, torch.float16: 4e-4}
EXTENTS = [(1, 8, 16), (256, 512, 1024), (1000, 776, 520), (4097, 4104, 1000)]


def products(a, b, tiling):
    """The product twice, of every memory order of the operands, with those operands."""
    for one in (a, a.T.contiguous().T):
        for other in (b, b.T.contiguous().T):
            found = [torch.full((len(a), b.shape[1]), float("nan"), device="cuda", dtype=a.dtype) for _ in range(2)]
            for c in found:
                matmul_pairs.writer(one, other, c, tiling)(one, other, c)
            assert torch.equal(*found)
            yield found[0], one, other


@pytest.mark.parametrize("tiling", PAIRS, ids=str)
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_against_fp64(extents, tiling):
    m, n, k = extents
    # In fp16 too, with half of the tilings.
    dtype = torch.bfloat16 if tiling.stacked else torch.float16
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    for c, one, other in products(a, b, tiling):
        assert relative_error(c, one.double() @ other.double()) <= DTYPES[dtype]


def test_rows_that_do_not_start_at_sectors_go_through_it():
    a, b = draw(3000, 3000).requires_grad_(), draw(3000, 3000, seed=1).requires_grad_()
    upstream = draw(3000, 3000, seed=2)
    with observe.launches() as made:
        c = matmul(a, b)
        found = torch.autograd.grad(c, (a, b), upstream)
    assert sum(one["function"] == "matmul_pairs_kernel" for one in made) >= 1
    wanted = upstream.double() @ b.detach().double().T, a.detach().double().T @ upstream.double()
    for one, other in zip((c, *found), (a.detach().double() @ b.detach().double(), *wanted), strict=True):
        assert relative_error(one, other) <= DTYPES[torch.bfloat16]


def test_a_graph_replays_it():
    a, b = draw(3000, 3000), draw(3000, 3000, seed=1)
    assert choice(a, b)[0] is matmul_pairs
    expected = matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b)
    c.zero_()
    graph.replay()
    assert torch.equal(c, expected)
