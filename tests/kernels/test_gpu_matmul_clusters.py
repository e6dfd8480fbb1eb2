"""Products whose tiles a cluster shares along K, on a GPU against fp64."""

import pytest
import torch
from tilescope.execution import observe
from tilescope_kernels import matmul
from tilescope_kernels.matrix_products import matmul_clusters, matmul_plans
from tilescope_kernels.matrix_products.matmul_clusters_tilings import CLUSTERS, Clusters

from . import on_gpu
from .checks import relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.HOPPER]

DTYPES = {torch.bfloat16: 3e-3, torch.float16: 4e-4}


@pytest.mark.parametrize("tiling", CLUSTERS, ids=str)
@pytest.mark.parametrize(
    ("extents", "dtype"),
    [
        ((131, 200, 777), torch.float16),
        ((300, 333, 2001), torch.bfloat16),
        ((1000, 1000, 8), torch.bfloat16),  # most parts have no step
    ],
    ids=str,
)
def test_against_fp64(extents, dtype, tiling):
    m, n, k = extents
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    for one in (a, a.T.contiguous().T):
        for other in (b, b.T.contiguous().T):
            found = [torch.full((m, n), float("nan"), device="cuda", dtype=dtype) for _ in range(2)]
            for c in found:
                matmul_clusters.write_product(one, other, c, tiling)
            assert torch.equal(*found)
            assert relative_error(found[0], one.double() @ other.double()) <= DTYPES[dtype]


def test_what_is_not_finite_stays_in_its_row_and_column():
    a, b = draw(384, 12288), draw(12288, 384, seed=1)
    a[5, 7], b[9000, 200] = float("inf"), float("nan")
    for tiling in CLUSTERS:
        c = torch.empty(384, 384, device="cuda", dtype=torch.bfloat16)
        matmul_clusters.write_product(a, b, c, tiling)
        assert c[:, 200].isnan().all() and not c[5].isfinite().any()
        c[5], c[:, 200] = 0, 0
        assert c.isfinite().all()


def test_clusters_serve_long_k_and_a_graph_replays_them():
    a, b = draw(384, 12288), draw(12288, 384, seed=1)
    assert isinstance(matmul_plans.plan(a, b), Clusters)
    with observe.launches() as made:
        expected = matmul(a, b)
    assert [one["function"] for one in made] == ["matmul_clusters_kernel"]
    assert relative_error(expected, a.double() @ b.double()) <= DTYPES[torch.bfloat16]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b)
    c.zero_()
    graph.replay()
    assert torch.equal(c, expected)
