"""Hopper's kernel of large 16-bit products, on a GPU against fp64, and what goes through it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tilescope_kernels import matmul
from tilescope_kernels.matrix_products import matmul_hopper
from tilescope_kernels.matrix_products.matmul_tilings import TILINGS

from . import on_gpu
from .checks import relative_error
from .on_gpu import draw

pytestmark = [*on_gpu.MARKS, on_gpu.HOPPER]

DTYPES = {torch.bfloat16: 3e-3, torch.float16: 4e-4}
EXTENTS = [(128, 256, 64), (256, 512, 1024), (129, 264, 72), (1000, 776, 520), (333, 8192, 136), (1000, 1001, 1003)]


@pytest.mark.parametrize("tiling", TILINGS, ids=str)
@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
@pytest.mark.parametrize("extents", [*EXTENTS, (4097, 4104, 1000)])
def test_against_fp64(extents, dtype, tiling):
    m, n, k = extents
    a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
    for one in (a, a.T.contiguous().T):
        for other in (b, b.T.contiguous().T):
            found = [torch.full((m, n), float("nan"), device="cuda", dtype=dtype) for _ in range(2)]
            for c in found:
                matmul_hopper.write_product(one, other, c, tiling)
            assert relative_error(found[0], one.double() @ other.double()) <= DTYPES[dtype]
            assert torch.equal(*found)


@pytest.mark.parametrize("dtype", list(DTYPES), ids=str)
def test_operands_whose_rows_do_not_start_at_sectors_are_copied(dtype):
    copied = replace(TILINGS[0], copies=True)
    for m, n, k in ((1000, 1000, 1000), (264, 1304, 1024), (520, 1280, 328)):
        a, b = draw(m, k, dtype=dtype), draw(k, n, dtype=dtype, seed=1)
        for one, other in ((a, b), (a.T.contiguous().T, b.T.contiguous().T)):
            c = torch.full((m, n), float("nan"), device="cuda", dtype=dtype)
            matmul_hopper.write_product(one, other, c, copied)
            assert relative_error(c, one.double() @ other.double()) <= DTYPES[dtype]
    a, b = draw(5000, 1000, dtype=dtype), draw(1000, 5000, dtype=dtype, seed=1)
    assert matmul_hopper.plan(a, b).copies
    for _ in range(3):
        assert relative_error(matmul(a, b), a.double() @ b.double()) <= DTYPES[dtype]


def test_what_is_not_finite_stays_in_its_row_and_column():
    a, b = draw(2000, 1111), draw(1111, 3001, seed=1)
    a[5, 7], b[9, 2000] = float("inf"), float("nan")
    c = matmul(a, b)
    assert c[:, 2000].isnan().all() and not c[5].isfinite().any()
    c[5], c[:, 2000] = 0, 0
    assert c.isfinite().all()


def test_gradients_go_through_it(monkeypatch):
    launched, write = [], matmul_hopper.write_product
    monkeypatch.setattr(matmul_hopper, "write_product", lambda *args: launched.append(args[2].shape) or write(*args))
    a, b = draw(2048, 1536).requires_grad_(), draw(1536, 4096, seed=1).requires_grad_()
    upstream = draw(2048, 4096, seed=2)
    found = torch.autograd.grad(matmul(a, b), (a, b), upstream)
    assert launched == [(2048, 4096), (2048, 1536), (1536, 4096)]
    wanted = upstream.double() @ b.detach().double().T, a.detach().double().T @ upstream.double()
    for one, other in zip(found, wanted, strict=True):
        assert relative_error(one, other) <= DTYPES[torch.bfloat16]
