"""What the PTX of products by pairs of SMs rests on, in code compiled for sm_90."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from tilescope.execution import launches, offline
from tilescope_kernels.matrix_products import aligned_rows, hopper_pairs, matmul_hopper, matmul_pairs, matmul_plans
from tilescope_kernels.matrix_products.matmul_hopper_tilings import Alone
from tilescope_kernels.matrix_products.matmul_pairs_tilings import PAIRS, Pairs, few_tiles, many_tiles
from tilescope_kernels.matrix_products.matmul_tilings import Product


def caught(tiling, *, splits=1, turned_a=False, turned_b=False, dtype=torch.bfloat16):
    """The kernel of a product with this tiling, compiled for sm_90."""
    with offline.targeting("sm_90"):
        a, b = (torch.empty(1504, 1504, dtype=dtype, device="meta") for _ in range(2))
        a, b = a.T if turned_a else a, b.T if turned_b else b
        with launches.catch() as seen:
            matmul_pairs.write_product(a, b, torch.empty_like(a.contiguous()), replace(tiling, splits=splits))
        kernel = offline.compile_launch(seen[0])
        kernel._init_handles()
        return kernel


@pytest.mark.parametrize("tiling", [PAIRS[0], PAIRS[-1]], ids=str)
@pytest.mark.parametrize("splits", [1, 2])
def test_ptx_addresses_what_gluon_allocates(tiling, splits):
    kernel = caught(replace(tiling, turned=tiling.turned and splits == 1), splits=splits, turned_b=True)
    ptx, llir = kernel.asm["ptx"], kernel.asm["llir"]
    assert ".reqnctapercluster 2" in ptx
    # The rings are at the start of shared memory, as their mbarriers follow them there.
    size = tiling.stages * (tiling.groups * tiling.rows + tiling.wide) * 128
    assert min(int(found) for found in re.findall(r"@global_smem, i32 (\d+)\)", llir)) == size
    for descriptor in range(2):
        assert f".b8 matmul_pairs_kernel_param_{5 * descriptor}[128]" in ptx
        assert len(re.findall(rf"mov.b64 tiles, matmul_pairs_kernel_param_{5 * descriptor};", ptx)) > 0


@pytest.mark.parametrize("tiling", [each for each in PAIRS if each.stacked and each.turned], ids=str)
def test_a_product_is_one_instruction_wide(tiling):
    kernel = caught(tiling)
    ptx = kernel.asm["ptx"]
    # A warpgroup multiplies 16 elements of K at a time, 64 rows each.
    assert (
        ptx.count(f"wgmma.mma_async.sync.aligned.m64n{tiling.wide}k16.f32.bf16.bf16 ")
        == 4 * tiling.groups * tiling.rows // 64
    )
    assert "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in ptx
    assert kernel.n_spills == 0


def test_descriptors_say_how_operands_lie():
    # (K-contiguous, across K) of a and b, by the immediates of wgmma.
    tiling = PAIRS[0]
    for turned_a, turned_b, expected in (
        (False, False, "0, 1"),
        (True, False, "1, 1"),
        (False, True, "0, 0"),
        (True, True, "1, 0"),
    ):
        ptx = caught(replace(tiling, turned=False), turned_a=turned_a, turned_b=turned_b, dtype=torch.float16).asm[
            "ptx"
        ]
        assert f"}}, a, b, add, 1, 1, {expected};" in ptx and ".f32.f16.f16 " in ptx


@pytest.mark.parametrize("along_k", [(True, True), (True, False), (False, True), (False, False)], ids=str)
def test_tilings_fit(along_k):
    for tiling in (each.ordered(along_k) for each in PAIRS):
        step = (tiling.height + tiling.loaded) * 128
        assert (
            tiling.stages >= 3
            and tiling.stages * step + tiling.groups * tiling.buffers * 64 * tiling.piece * 2 <= 226 * 1024
        )
        assert tiling.wide % 16 == 0 and tiling.wide <= 256 and tiling.extents[0] <= 2048
        # Sums of a warpgroup fit the registers that it has.
        assert tiling.rows * tiling.wide // 128 <= (120 if tiling.groups == 3 else 200)


def test_an_operand_that_is_not_contiguous_along_k_is_loaded_in_whole_boxes():
    narrow = next(each for each in PAIRS if each.wide == 96 and each.stacked and not each.turned)
    assert narrow.ordered((False, True)) == narrow and narrow.loaded == 96
    boxed = narrow.ordered((True, False))
    assert (boxed.wide, boxed.loaded, boxed.extents) == (96, 128, (384, 96))
    assert boxed.ordered((True, True)) == narrow
    turned = replace(narrow, turned=True)
    assert turned.ordered((True, False)) == turned and turned.ordered((False, True)).loaded == 128
    # A longer load takes longer.
    product = Product(1504, 1504, 1504, 132)
    assert boxed.time(product) > narrow.time(product)
    for each in PAIRS:
        assert (each.ordered((False, False)).loaded == each.wide) == (each.wide % 64 == 0)
        assert each.serves((True, True)) and each.serves((False, False)) == (each.wide not in (96, 208))


@pytest.mark.parametrize(
    "tiling", [each for each in PAIRS if each.stacked and not each.turned and each.wide % 64], ids=str
)
def test_the_last_box_of_columns_may_be_used_in_part(tiling):
    kernel = caught(tiling)
    boxed = tiling.ordered((True, False))
    ptx = kernel.asm["ptx"]
    # Both operands' bytes are expected, and products are as wide as the tile.
    assert f", {(boxed.height + boxed.loaded) * 128};" in ptx
    assert f"wgmma.mma_async.sync.aligned.m64n{tiling.wide}k16.f32.bf16.bf16 " in ptx
    assert kernel.n_spills == 0 and kernel.metadata.shared <= 227 * 1024


def described(tiling):
    """Rows and columns of a tile, where those of a pair lie, and of what."""
    return (
        tiling.height,
        tiling.wide,
        "stacked" if tiling.stacked else "beside",
        "turned" if tiling.turned else "straight",
    )


ROW_MAJOR = (True, False)


@pytest.mark.parametrize(
    ("extents", "askew", "expected"),
    [
        ((1504, 1504, 1504), "", (192, 96, "beside", "turned")),
        ((1800, 1800, 1800), "ab", (192, 160, "beside", "turned")),
        ((10000, 1000, 1000), "ab", (256, 160, "beside", "turned")),
        ((2200, 3400, 1704), "ab", (192, 160, "beside", "turned")),
        ((3504, 1504, 1504), "", (256, 160, "beside", "turned")),
        ((5000, 1000, 5000), "ab", (256, 160, "beside", "turned")),
        ((2048, 1000, 2048), "b", (128, 128, "stacked", "straight")),
        ((1792, 1792, 1792), "", (128, 208, "stacked", "turned")),
        # Measured to be no quicker.
        ((2000, 2000, 2000), "", None),
        ((1920, 1920, 1920), "", None),
        ((3072, 3072, 3072), "", None),
        ((8192, 1536, 8192), "", None),
        ((4096, 4096, 4096), "", None),
        ((4096, 1024, 1024), "", None),
        ((4096, 4104, 64), "b", None),  # so short a K was not measured
    ],
)
def test_pairs_where_they_are_quicker(extents, askew, expected):
    chosen = many_tiles(Product(*extents, 132, ("a" in askew, "b" in askew)), ROW_MAJOR)
    assert (chosen in PAIRS) == bool(expected)
    assert (chosen and described(chosen)) == expected


def test_a_long_product_with_many_tiles_may_be_split():
    chosen = many_tiles(Product(640, 2048, 16384, 132), ROW_MAJOR)
    assert (chosen.height, chosen.wide, chosen.splits) == (128, 256, 3)
    # It was slower in parts.
    assert many_tiles(Product(520, 2040, 4000, 132, (False, True)), ROW_MAJOR).splits == 1


def test_orientations_and_orders_are_symmetric():
    for m, n, k in ((1504, 1504, 1504), (5000, 1000, 5000), (3504, 1504, 1504)):
        straight = many_tiles(Product(n, m, k, 132, (False, False)), (False, True))
        turned = many_tiles(Product(m, n, k, 132, (False, False)), (True, False))
        assert straight.time(Product(n, m, k, 132)) == turned.time(Product(m, n, k, 132))


@pytest.mark.parametrize(
    ("extents", "askew", "expected"),
    [
        ((5000, 1000, 5000), "ab", (256, 160)),
        ((3504, 1504, 1504), "", (256, 160)),
        ((5120, 1024, 2048), "", (256, 160)),
        # Two boxes for 96 columns, or four for 208, were not always quicker.
        ((1504, 1504, 1504), "", None),
        ((2560, 2560, 2560), "", None),
        ((4104, 4104, 4104), "ab", (256, 192)),
        ((2048, 2048, 2048), "", None),
        ((4096, 4096, 4096), "", None),
    ],
)
def test_gradients_of_weights_have_no_operand_that_is_contiguous_along_k(extents, askew, expected):
    chosen = many_tiles(Product(*extents, 132, ("a" in askew, "b" in askew)), (False, False))
    assert (chosen and (chosen.height, chosen.wide)) == expected


@pytest.mark.parametrize(
    ("extents", "askew", "expected"),
    [
        ((1000, 1000, 1000), (True, True), (64, 128, 1)),
        ((1000, 1000, 4000), (False, True), (64, 128, 1)),
        ((1000, 1000, 8000), (False, True), (128, 128, 2)),
        ((256, 1000, 10000), (False, True), (64, 128, 4)),
        # Small tiles whose rows start at lines are quicker than estimated.
        ((1024, 1024, 1024), (False, False), None),
        ((512, 512, 8192), (False, False), None),
        ((256, 4096, 4096), (False, False), None),
        ((264, 264, 9000), (True, True), None),  # few enough tiles for ``split_k`` to split them
        ((128, 4104, 8200), (True, True), None),
    ],
)
def test_pairs_of_products_with_few_tiles(extents, askew, expected):
    chosen = few_tiles(Product(*extents, 132, askew), ROW_MAJOR)
    assert (chosen and (chosen.height, chosen.wide, chosen.splits)) == expected
    assert not (chosen and chosen.turned and chosen.splits > 1)


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
    assert (forward.turned, dx.turned, dw.turned) == (True, True, False)
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
