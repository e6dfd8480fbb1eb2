"""What the PTX of products by pairs of SMs rests on, in code compiled for sm_90."""

from __future__ import annotations

import re

import pytest
import torch
import triton
from tilescope_kernels.matrix_products import aligned_rows, hopper_pairs, matmul_hopper, matmul_pairs, matmul_plans
from tilescope_kernels.matrix_products.matmul_hopper_tilings import Alone
from tilescope_kernels.matrix_products.matmul_pairs_tilings import PAIRS, TAILS, Pairs, few_tiles, many_tiles
from tilescope_kernels.matrix_products.matmul_tilings import Product
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource


def compiled(tiling, splits):
    """The kernel for row-major operands, for several parts along K or one."""
    stacked = tiling.stacked
    a, b = (tiling.rows if stacked else tiling.rows // 2, 64), (32 if stacked else 64, 64)
    tiles = [("bf16", shape, hopper_pairs.SHARED) for shape in (a, b, b, (64, 64))]
    tiles.append(("fp32", (64, 32), hopper_pairs.SHARED_WIDE))
    types = [f"tensordesc<{dtype}[{rows},{wide}],{layout.value!r}>" for dtype, (rows, wide), layout in tiles]
    constants = {
        "A_COLUMNS": False, "B_COLUMNS": False, "GROUPS": tiling.groups, "ROWS": tiling.rows, "WIDE": tiling.wide, "SIDE": tiling.side,
        "STAGES": tiling.stages, "BUFFERS": tiling.buffers, "STACKED": stacked,
    }  # fmt: skip
    if splits == 1:
        types[4], constants["part_tiles"] = "constexpr", None
    if not tiling.side:
        types[2], constants["side_tiles"] = "constexpr", None
    names = matmul_pairs.matmul_pairs_kernel.arg_names
    signature = dict(zip(names, [*types, *6 * ["i32"]], strict=False)) | dict.fromkeys(constants, "constexpr")
    places = {(names.index(name),): value for name, value in constants.items()}
    source = GluonASTSource(matmul_pairs.matmul_pairs_kernel, signature, places, attrs={})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_ctas": 2})


@pytest.mark.parametrize("tiling", [PAIRS[0], PAIRS[-1]], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_ptx_addresses_what_gluon_allocates(tiling, splits):
    kernel = compiled(tiling, splits)
    ptx, llir = kernel.asm["ptx"], kernel.asm["llir"]
    assert ".reqnctapercluster 2" in ptx
    # The rings are at the start of shared memory, as their mbarriers follow them there.
    size = tiling.stages * (tiling.groups * tiling.rows + tiling.wide + tiling.side) * 128
    assert min(int(found) for found in re.findall(r"@global_smem, i32 (\d+)\)", llir)) == size
    for descriptor in range(3 if tiling.side else 2):
        assert f".b8 matmul_pairs_kernel_param_{5 * descriptor}[128]" in ptx
        assert len(re.findall(rf"mov.b64 tiles, matmul_pairs_kernel_param_{5 * descriptor};", ptx)) > 0


def test_rings_are_in_whole_tiles():
    for tiling in (*PAIRS, *TAILS):
        assert tiling.stages * tiling.wide % tiling.rows == 0
        assert not tiling.side or tiling.stages * (tiling.wide + tiling.groups * tiling.rows) % tiling.side == 0
        assert tiling.extents[0] <= 2048


def described(tiling):
    """Rows and columns of a tile, and where those of a pair lie."""
    return tiling.height, tiling.width, "stacked" if tiling.stacked else "beside"


@pytest.mark.parametrize(
    ("extents", "askew", "expected"),
    [
        ((1800, 1800, 1800), "ab", (128, 256, "stacked")),
        ((3000, 3000, 3000), "ab", (192, 192, "stacked")),
        ((10000, 1000, 1000), "ab", (128, 256, "stacked")),
        ((2048, 1000, 2048), "b", (128, 128, "stacked")),
        ((3000, 1000, 3336), "ab", (192, 128, "beside")),
        ((4096, 4104, 4096), "b", (256, 128, "stacked")),
        ((5000, 5000, 1000), "ab", None),  # cut tiles of copies are quicker
        ((1000, 8000, 1000), "a", None),  # only a loads slowly, and pairs with the same tiles would do two waves too
        ((4096, 4104, 64), "b", None),  # so short a K was not measured
        ((4096, 4096, 4096), "", None),
        ((3504, 3504, 3504), "", None),  # rows are slow to load only if they do not start at sectors
    ],
)
def test_pairs_where_they_are_clearly_quicker(extents, askew, expected):
    chosen = many_tiles(Product(*extents, 132, ("a" in askew, "b" in askew)))
    assert (chosen in PAIRS) == bool(expected)
    assert (chosen and described(chosen)) == expected


@pytest.mark.parametrize(
    ("extents", "askew", "expected"),
    [
        ((5000, 1000, 5000), "ab", (128, 256, "stacked", 4)),
        ((1000, 5000, 10000), "b", (128, 256, "stacked", 4)),
        ((5000, 1000, 2000), "ab", None),  # so short parts would gain little
        ((3000, 2000, 6000), "", None),
        ((1504, 1504, 1504), "", None),
    ],
)
def test_pairs_split_a_last_wave_of_few_tiles(extents, askew, expected):
    chosen = many_tiles(Product(*extents, 132, ("a" in askew, "b" in askew)))
    assert bool(chosen and chosen.tail) == bool(expected)
    assert not expected or (*described(chosen), chosen.splits) == expected


@pytest.mark.parametrize(
    ("extents", "askew", "expected"),
    [
        ((1000, 1000, 10000), (True, True), (128, 256, 4)),
        ((1000, 1000, 4000), (True, True), (128, 256, 4)),
        ((256, 1000, 10000), (False, True), (128, 128, 6)),
        ((1000, 1000, 1000), (True, True), None),
        ((1000, 1000, 10000), (False, False), (128, 256, 4)),  # rows start within lines of 128 bytes
        ((1000, 1000, 4000), (False, True), None),
        # Small tiles whose rows start at lines are quicker than estimated.
        ((512, 512, 8192), (False, False), None),
        ((256, 4096, 4096), (False, False), None),
        ((264, 264, 9000), (True, True), None),  # few enough tiles for ``split_k`` to split them
        ((128, 4104, 8200), (True, True), None),
    ],
)
def test_pairs_split_long_products_with_few_tiles(extents, askew, expected):
    chosen = few_tiles(Product(*extents, 132, askew))
    assert (chosen and (chosen.height, chosen.width, chosen.splits)) == expected


def matrix(shape, strides):
    return torch.empty_strided(shape, strides, dtype=torch.bfloat16, device="meta")


def planned(a, b):
    """The tiling of a product of matrices with these shapes and strides, on a GPU with 132 SMs."""
    return matmul_plans.plan(matrix(*a), matrix(*b))


def on(monkeypatch, capability):
    """Pretend that matrices are on such a GPU."""
    for module in (matmul_hopper, hopper_pairs):
        monkeypatch.setattr(module, "capability", lambda _: capability)


def test_plans_of_a_product_and_its_gradients(monkeypatch):
    on(monkeypatch, 90)
    # x (10000, 1000) @ w (1000, 1000), then the gradients dy @ w.T and x.T @ dy.
    rows, square, turned = ((10000, 1000), (1000, 1)), ((1000, 1000), (1000, 1)), ((1000, 1000), (1, 1000))
    forward, dx, dw = planned(rows, square), planned(rows, turned), planned(((1000, 10000), (1, 1000)), rows)
    assert (forward.stacked, dx.stacked, dw.stacked) == (True, True, True)
    assert (forward.splits, dx.splits, dw.splits) == (1, 1, 4)
    # A result with rows that TMA cannot write.
    assert isinstance(planned(((4096, 4096), (4096, 1)), ((4096, 4100), (4104, 1))), Alone)
    # Other GPUs, and other versions of Triton.
    on(monkeypatch, 100)
    assert planned(rows, square) is None
    on(monkeypatch, 90)
    monkeypatch.setattr(hopper_pairs, "KNOWN", False)
    assert isinstance(planned(rows, square), Alone)
    assert planned(((1000, 10000), (1, 1000)), rows) is None


@pytest.mark.parametrize("extents", [(3000, 3000, 3000), (5000, 1000, 5000), (1000, 1000, 10000)], ids=str)
def test_a_result_that_tma_cannot_write_has_tiles_of_one_sm(monkeypatch, extents):
    launched = []
    for module in (aligned_rows, matmul_hopper, matmul_pairs):
        monkeypatch.setattr(module, "launch", lambda kernel, *_, **__: launched.append(kernel))
    on(monkeypatch, 90)
    m, n, k = extents
    a, b = matrix((m, k), (k, 1)), matrix((k, n), (n, 1))
    chosen = matmul_plans.plan(a, b)
    assert isinstance(chosen, Pairs)
    matmul_plans.write_product(a, b, matrix((m, n), (n, 1)), chosen)
    assert matmul_pairs.matmul_pairs_kernel in launched and matmul_hopper.matmul_hopper_kernel not in launched
    launched.clear()
    matmul_plans.write_product(a, b, matrix((m, n), (n + 1, 1)), chosen)
    assert matmul_hopper.matmul_hopper_kernel in launched and matmul_pairs.matmul_pairs_kernel not in launched
    # Nor are pairs planned for one.
    assert not isinstance(matmul_plans.plan(a, b[:, 4:]), Pairs)
