"""Products by pairs of SMs, on a GPU against fp64."""

from dataclasses import replace

import pytest
import torch
from tilescope_kernels import matmul
from tilescope_kernels.matrix_products import matmul_pairs, matmul_plans
from tilescope_kernels.matrix_products.matmul_pairs_tilings import PAIRS, Pairs

from . import on_gpu
from .checks import relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.HOPPER]

DTYPES = {torch.bfloat16: 3e-3, torch.float16: 4e-4}
EXTENTS = [
    (1, 8, 16),
    (128, 256, 64),
    (256, 512, 1024),
    (129, 264, 72),
    (1000, 776, 520),
    (333, 8192, 136),
    (4097, 4104, 1000),
]


#: Every tile, straight and turned, and every place of a pair's two tiles, but not all of these together.
SOME = [each for each in PAIRS if each.stacked != each.turned] + [
    each for each in PAIRS if each.stacked == each.turned and each.wide in (128, 160)
]


def products(a, b, tiling):
    """The product twice, of every memory order of the operands, with those operands."""
    for one in (a, a.T.contiguous().T):
        for other in (b, b.T.contiguous().T):
            found = [torch.full((len(a), b.shape[1]), float("nan"), device="cuda", dtype=a.dtype) for _ in range(2)]
            for c in found:
                matmul_pairs.write_product(one, other, c, tiling)
            assert torch.equal(*found)
            yield found[0], one, other


@pytest.mark.parametrize("tiling", SOME, ids=str)
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
def test_against_fp64(extents, tiling):
    m, n, k = extents
    # In fp16 too, with half of the tilings.
    dtype = torch.bfloat16 if tiling.stacked else torch.float16
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    for c, one, other in products(a, b, tiling):
        assert relative_error(c, one.double() @ other.double()) <= DTYPES[dtype]


@pytest.mark.parametrize("tiling", [each for each in SOME if not each.turned], ids=str)
@pytest.mark.parametrize("extents", [(128, 256, 128), (129, 264, 200), (1000, 776, 4104), (256, 384, 16384)], ids=str)
def test_parts_along_k(extents, tiling):
    m, n, k = extents
    a, b = draw(m, k), draw(k, n, seed=1)
    for splits in (2, 3, 7):
        for c, one, other in products(a, b, replace(tiling, splits=splits)):
            assert relative_error(c, one.double() @ other.double()) <= DTYPES[torch.bfloat16]


def test_results_between_others_are_written_alone():
    a, b = draw(300, 1000), draw(1000, 520, seed=1)
    for tiling in (*SOME, replace(SOME[0], splits=3)):
        room = torch.zeros(302, 600, device="cuda", dtype=torch.bfloat16)
        matmul_pairs.write_product(a, b, room[1:-1, 8:528], tiling)
        assert relative_error(room[1:-1, 8:528], a.double() @ b.double()) <= DTYPES[torch.bfloat16]
        room[1:-1, 8:528] = 0
        assert not room.any()


def test_rows_that_do_not_start_at_sectors_go_through_it(monkeypatch):
    launched, write = [], matmul_pairs.write_product
    monkeypatch.setattr(matmul_pairs, "write_product", lambda *args: launched.append(args[2].shape) or write(*args))
    a, b = draw(3000, 3000).requires_grad_(), draw(3000, 3000, seed=1).requires_grad_()
    upstream = draw(3000, 3000, seed=2)
    c = matmul(a, b)
    found = torch.autograd.grad(c, (a, b), upstream)
    assert launched == 3 * [(3000, 3000)]
    wanted = upstream.double() @ b.detach().double().T, a.detach().double().T @ upstream.double()
    for one, other in zip((c, *found), (a.detach().double() @ b.detach().double(), *wanted), strict=True):
        assert relative_error(one, other) <= DTYPES[torch.bfloat16]


def test_a_long_product_with_few_tiles_goes_through_it_in_parts(monkeypatch):
    launched, write = [], matmul_pairs.write_product
    monkeypatch.setattr(matmul_pairs, "write_product", lambda *args: launched.append(args[3].splits) or write(*args))
    x, w = draw(10000, 1000).requires_grad_(), draw(1000, 1000, seed=1).requires_grad_()
    upstream = draw(10000, 1000, seed=2)
    dx, dw = torch.autograd.grad(matmul(x, w), (x, w), upstream)
    assert sorted(launched) == [1, 1, 4]
    assert relative_error(dx, upstream.double() @ w.detach().double().T) <= DTYPES[torch.bfloat16]
    assert relative_error(dw, x.detach().double().T @ upstream.double()) <= DTYPES[torch.bfloat16]


@pytest.mark.parametrize(
    "extents",
    [(1504, 1504, 1504), (5000, 1000, 5000), (1000, 1000, 1000), (700, 3000, 2000), (3504, 1504, 1504)],
    ids=str,
)
def test_ragged_products_go_through_it_and_so_does_a_linear_layer(extents):
    m, n, k = extents
    a, b = draw(m, k), draw(k, n, seed=1)
    for other in (b, b.T.contiguous().T):
        assert isinstance(matmul_plans.plan(a, other), Pairs)
        assert relative_error(matmul(a, other), a.double() @ b.double()) <= DTYPES[torch.bfloat16]


def test_a_result_that_tma_cannot_write_goes_elsewhere():
    a, b = draw(3000, 3000), draw(3000, 3000, seed=1)
    tiling = matmul_plans.plan(a, b)
    assert isinstance(tiling, Pairs)
    room = torch.zeros(3000, 3004, device="cuda", dtype=torch.bfloat16)
    matmul_plans.write_product(a, b, room[:, 1:3001], tiling)
    assert relative_error(room[:, 1:3001], a.double() @ b.double()) <= DTYPES[torch.bfloat16]
    assert not room[:, 0].any() and not room[:, 3001:].any()


def test_what_is_not_finite_stays_in_its_row_and_column():
    a, b = draw(3000, 1800), draw(1800, 3000, seed=1)
    a[5, 7], b[9, 2000] = float("inf"), float("nan")
    assert isinstance(matmul_plans.plan(a, b), Pairs)
    c = matmul(a, b)
    assert c[:, 2000].isnan().all() and not c[5].isfinite().any()
    c[5], c[:, 2000] = 0, 0
    assert c.isfinite().all()


def test_a_graph_replays_it():
    a, b = draw(3000, 3000), draw(3000, 3000, seed=1)
    assert isinstance(matmul_plans.plan(a, b), Pairs)
    expected = matmul(a, b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = matmul(a, b)
    c.zero_()
    graph.replay()
    assert torch.equal(c, expected)
