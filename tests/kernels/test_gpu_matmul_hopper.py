"""Hopper's kernel of large 16-bit products, on a GPU against fp64, and what goes through it."""

from dataclasses import replace

import pytest
import torch
from tilescope_kernels import matmul
from tilescope_kernels.matrix_products import matmul_hopper
from tilescope_kernels.matrix_products.matmul_tilings import TILINGS, Product, tiling

from . import on_gpu
from .checks import relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.HOPPER]

DTYPES = {torch.bfloat16: 3e-3, torch.float16: 4e-4}
EXTENTS = [(256, 512, 1024), (129, 264, 72), (1000, 1001, 1003)]


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("extents", [*EXTENTS, (4097, 4104, 1000)])
def test_against_fp64(extents, tiling):
    m, n, k = extents
    dtype = torch.float16 if tiling.groups * tiling.rows % 128 else torch.bfloat16
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    for one in (a, a.T.contiguous().T):
        for other in (b, b.T.contiguous().T):
            found = [torch.full((m, n), float("nan"), device="cuda", dtype=dtype) for _ in range(2)]
            for c in found:
                matmul_hopper.writer(one, other, c, tiling)(one, other, c)
            assert relative_error(found[0], one.double() @ other.double()) <= DTYPES[dtype]
            assert torch.equal(*found)


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("extents", [*((m, n // 16 * 16, k // 16 * 16) for m, n, k in EXTENTS), (4097, 4104, 1040)])
def test_fp8_against_fp64(extents, tiling):
    m, n, k = extents
    a, b = (
        draw(*shape, dtype=torch.bfloat16, seed=i).to(torch.float8_e4m3fn) for i, shape in enumerate(((m, k), (n, k)))
    )
    one, rows, columns = torch.tensor(0.7, device="cuda"), draw(m, 1).abs(), draw(1, n, seed=1).abs()
    for scales in ((one, 2 * one), (rows, columns)):
        for dtype, tolerance in DTYPES.items():
            c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
            matmul_hopper.writer(a, b.T, c, tiling, scales)(a, b.T, c)
            expected = (a.double() @ b.double().T) * scales[0].double() * scales[1].double()
            assert relative_error(c, expected) <= tolerance + 1e-3  # tensor cores add FP8 products up with 14 bits


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
def test_operands_whose_rows_do_not_start_at_sectors_are_copied(dtype):
    copied = replace(TILINGS[0], copies=True)
    for m, n, k in ((1000, 1000, 1000), (264, 1304, 1024), (520, 1280, 328)):
        a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
        for one, other in ((a, b), (a.T.contiguous().T, b.T.contiguous().T)):
            c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
            matmul_hopper.writer(one, other, c, copied)(one, other, c)
            assert relative_error(c, one.double() @ other.double()) <= DTYPES[dtype]
    a, b = draw(5000, 1000, dtype=dtype), draw(1000, 5000, dtype=dtype, seed=1)
    tilings = [tiling(Product.of(a, b), aligned_c) for aligned_c in (True, False)]
    assert all(each.copies for each in tilings)
    for each in tilings:
        c = torch.empty(5000, 5000, device="cuda", dtype=dtype)
        matmul_hopper.writer(a, b, c, each)(a, b, c)
        assert relative_error(c, a.double() @ b.double()) <= DTYPES[dtype]


def test_what_is_not_finite_stays_in_its_row_and_column():
    a, b = draw(2000, 1111), draw(1111, 3001, seed=1)
    a[5, 7], b[9, 2000] = float("inf"), float("nan")
    c = matmul(a, b)
    assert c[:, 2000].isnan().all() and not c[5].isfinite().any()
    c[5], c[:, 2000] = 0, 0
    assert c.isfinite().all()
