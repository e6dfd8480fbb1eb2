"""The matrix product of few tiles and of unaligned rows: interpreted values, and which products it serves."""

import pytest
import torch
from tilescope_kernels.matrix_products import (
    fp8_blocks_hopper,
    matmul_hopper,
    matmul_hopper_tilings,
    scaled_matmul,
    split_k,
    w8a16_hopper,
    w8a16_rows_hopper,
)
from tilescope_kernels.matrix_products.matmul_tilings import Product
from tilescope_kernels.matrix_products.split_k import split_plan
from tilescope_kernels.norms import norm_linear

SCRIPTS = ["batch_matmul_split.py"]


def test_interpreted(wrong):
    assert not wrong, wrong


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(split_k, "capability", lambda _: 90)
    monkeypatch.setattr(split_k, "shared_memory", lambda _: 227 * 1024)


def planned(m, n, k, dtype=torch.bfloat16, turned=False):
    a = torch.empty(m, k, dtype=dtype, device="meta")
    b = torch.empty(n, k, dtype=dtype, device="meta").T if turned else torch.empty(k, n, dtype=dtype, device="meta")
    return split_plan(a, b)


@pytest.mark.parametrize(
    "extents", [(1024, 1024, 1024), (128, 4096, 4096), (64, 4096, 4096), (16, 8192, 8192), (1, 8192, 8192)]
)
def test_few_tiles_are_one_wave_of_small_ones(hopper, extents):
    for turned in (False, True):
        plan = planned(*extents, turned=turned)
        tiles = -(-extents[0] // plan["BLOCK_M"]) * -(-extents[1] // plan["BLOCK_N"])
        assert 64 <= tiles <= 132 and plan["SPLITS"] == 1


def test_too_few_tiles_are_cut(hopper):
    for m, n, k in ((16, 1024, 32768), (64, 64, 65536), (256, 256, 16384), (1000, 40, 20000)):
        plan = planned(m, n, k)
        tiles = -(-m // plan["BLOCK_M"]) * -(-n // plan["BLOCK_N"])
        assert 64 <= tiles * plan["SPLITS"] <= 132, plan


@pytest.mark.parametrize("odd", [(4097, 4099, 4101), (4096, 4099, 4096), (4096, 4096, 4101)])
def test_large_products_of_odd_rows_are_whole_waves_and_parts(hopper, odd):
    plan = planned(*odd)
    assert (plan["BLOCK_M"], plan["BLOCK_N"], plan["SPLITS"], plan["SCRATCH"]) == (128, 256, 4, 1)
    assert planned(4096, 4096, 4096) is None


def test_what_others_serve_better_is_left_to_them(hopper, monkeypatch):
    assert (
        planned(256, 256, 256) is None and planned(300, 300, 300) is not None
    )  # too short, but for its rows of 600 bytes
    assert planned(1024, 1024, 1024, torch.float32) is None
    assert planned(16, 8191, 8193) is None and planned(16, 8192, 8192) is not None  # to copy b takes too long
    assert planned(8193, 16, 8193) is None  # to copy a, too
    monkeypatch.setattr(split_k, "shared_memory", lambda _: 99 * 1024)
    assert planned(1024, 1024, 1024) is None
    monkeypatch.undo()
    assert planned(1024, 1024, 1024) is None  # interpreted


@pytest.mark.parametrize("extents", [(1024, 1024, 1024), (128, 8192, 4096), (33, 4096, 4096), (5, 8192, 8192)])
def test_blocks_fit_shared_memory(hopper, extents):
    plan = planned(*extents)
    m, n, k = (plan[f"BLOCK_{axis}"] for axis in "MNK")
    assert 2 * ((m + n) * k * plan["num_stages"] + m * n) <= 226 * 1024


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_products_of_bytes_of_few_tiles_are_one_wave(hopper, dtype):
    def planned_bytes(m, n, k):
        a, b = (torch.empty(rows, k, dtype=dtype, device="meta") for rows in (m, n))
        return split_k.bytes_plan(a, b.T)

    for extents in (
        (128, 4096, 4096), (64, 4096, 4096), (16, 8192, 8192), (1024, 1024, 1024), (1, 14336, 4096), (512, 512, 512),
        (1536, 1536, 1536), (1023, 517, 1040),
    ):  # fmt: skip
        plan = planned_bytes(*extents)
        m, n, k = (plan[f"BLOCK_{axis}"] for axis in "MNK")
        if extents[0] <= 32:  # transposed
            assert n <= 32
            m, n = n, m
        assert 64 <= -(-extents[0] // m) * -(-extents[1] // n) <= 2.5 * 132 and plan["SPLITS"] == 1
        # The widest result has four bytes.
        assert (m + n) * k * plan["num_stages"] + 4 * m * n <= 226 * 1024
    assert planned_bytes(16, 1024, 32768)["SPLITS"] > 1
    for extents in ((128, 4100, 4100), (128, 4096, 4100), (64, 256, 512), (2048, 2048, 2048)):
        assert planned_bytes(*extents) is None


def test_products_of_int8_on_hopper_are_not_timed(hopper, monkeypatch):
    launched = []
    monkeypatch.setattr(scaled_matmul, "capability", lambda _: 90)
    monkeypatch.setattr(scaled_matmul, "launch_tuned", lambda *args, **options: launched.append((args[0], options)))
    for (m, n, k), tile, descriptors in (
        ((4096, 4096, 4096), 128, 0), ((5000, 1008, 5008), 128, 1), ((8192, 8192, 8200), 128, 0), ((100000, 40, 1024), 64, 0),
        ((100, 100, 32), 64, 0),
    ):  # fmt: skip
        a, b = (torch.empty(rows, k, dtype=torch.int8, device="meta") for rows in (m, n))
        c = torch.empty(m, n, dtype=torch.int32, device="meta")
        scaled_matmul.launch(a, b, c, (None, None), True, None)
        kernel, options = launched.pop()
        assert kernel is scaled_matmul.scaled_matmul_kernel
        assert (options["BLOCK_M"], options["TMA"]) == (tile, descriptors), (m, n, k)


def test_w8a16_on_hopper_has_a_part_for_most_multiprocessors():
    for extents, expected in (
        ((128, 4096, 4096), (128, 4)), ((320, 4096, 4096), (128, 1)), ((512, 4096, 4096), (128, 1)), ((256, 8192, 8192), (256, 2)), ((64, 14336, 4096), (64, 1)),
        ((1024, 4096, 4096), (256, 1)), ((1024, 14336, 4096), (256, 1, 2)), ((1024, 5120, 4096), (256, 1, 2)), ((40, 1000, 1024), None), ((200, 4096, 320), (64, 1)), ((200, 2048, 320), None),
    ):  # fmt: skip
        tiling = w8a16_hopper.tiling(*extents, 132)
        assert tiling == (expected and w8a16_hopper.Tiling(*expected)), extents
    for m in range(33, 1200, 61):
        for n, k in ((4096, 4096), (1000, 8192), (14336, 640), (520, 784)):
            if tiling := w8a16_hopper.tiling(m, n, k, 132):
                tiles, turns = -(-m // tiling.block_m) * -(-n // 128), -(-k // 256)
                assert tiling.split == 1 or tiles * tiling.split <= 132
                assert tiling.cut == 1 or 0 < tiles % 132 * tiling.cut <= 132 < tiles
                assert (tiling.split - 1) * -(-turns // tiling.split) < turns  # no part without a turn


@pytest.mark.parametrize(
    ("m", "n", "k", "expected"),
    [
        (144, 4096, 4096, (96, True)), (160, 4096, 4096, (96, True)), (192, 4096, 4096, (96, True)), (256, 4096, 4096, (128, True)),
        (320, 4096, 4096, (160, True)), (384, 4096, 4096, (192, True)), (448, 4096, 4096, (112,)), (512, 4096, 4096, (128,)),
        (640, 4096, 4096, (160,)), (768, 4096, 4096, (192,)), (1000, 4096, 4096, None), (320, 14336, 4096, (160,)),
        (512, 14336, 4096, None), (320, 4096, 14336, (160, True)), (512, 4096, 14336, None), (256, 8192, 8192, None),
        (500, 5000, 5008, (176,)), (300, 4104, 3008, (160, True)), (320, 4096, 1024, None), (40, 1000, 1024, None),
    ],
)  # fmt: skip
def test_w8a16_of_some_rows_has_tiles_that_fill_hopper(m, n, k, expected):
    assert w8a16_rows_hopper.tiling(m, n, k, 132) == (expected and w8a16_rows_hopper.Tiling(*expected))


@pytest.mark.parametrize("n", [4096, 14336])
@pytest.mark.parametrize("k", [4096, 14336])
def test_w8a16_of_few_and_of_many_rows_is_as_it_was(n, k):
    for m in (*range(1, 129), *range(1024, 2049, 32), 4096, 8192, 65536):
        assert w8a16_rows_hopper.tiling(m, n, k, 132) is None, m


def test_w8a16_split_within_clusters_has_one_wave():
    for m in range(129, 1024, 5):
        for n, k in ((4096, 4096), (1000, 8192), (14336, 2064), (5000, 3008)):
            if chosen := w8a16_rows_hopper.tiling(m, n, k, 132):
                # Each program of a cluster stores whole parts of 16 rows.
                assert chosen.block_m % (32 if chosen.split else 16) == 0
                assert not chosen.split or 2 * -(-m // chosen.block_m) * -(-n // 128) <= 132


@pytest.fixture
def hoppers(monkeypatch):
    monkeypatch.setattr(matmul_hopper, "capability", lambda _: 90)


def test_hopper_serves_what_fills_it(hoppers):
    def serves(m, n, k, dtype=torch.bfloat16):
        a, b = torch.empty(m, k, dtype=dtype, device="meta"), torch.empty(k, n, dtype=dtype, device="meta")
        return matmul_hopper.serves(a, b)

    for extents in ((4096, 4096, 4096), (512, 4096, 4096), (4097, 4099, 4101), (65, 128256, 4096)):
        assert serves(*extents)
    for extents in ((1024, 1024, 1024), (64, 128256, 4096), (8192, 32, 8192), (8192, 8192, 32), (16, 8192, 8192)):
        assert not serves(*extents)
    assert not serves(4096, 4096, 4096, torch.float32)


@pytest.mark.parametrize(
    ("extents", "askew", "expected"),
    [
        ((4096, 4096, 4096), "", (128, 256, 1)),  # four waves, the last of them nearly whole
        ((4097, 4099, 4101), "", (128, 256, 4)),  # four whole ones, and 33 tiles
        ((512, 4096, 4096), "", (128, 128, 1)),  # one wave of smaller tiles
        ((1536, 1536, 1536), "", (128, 160, 1)),
        ((2304, 2304, 2304), "", (128, 256, 4)),
        ((2560, 2560, 2560), "", (128, 128, 2)),  # three whole waves, and four tiles
        ((3000, 3000, 3000), "ab", (192, 192, 1)),  # large tiles, because operands are slow to arrive
        ((5000, 1000, 5000), "ab", (192, 256, 1)),  # one wave of the largest
        ((3072, 3000, 3072), "b", (192, 192, 1)),
        ((4096, 4096, 1000), "a", (128, 256, 1)),  # a alone is not worth a copy
        ((5000, 5000, 1000), "ab", (128, 256, 4)),  # of copies, which are not slow
    ],
)
def test_the_last_wave_is_cut_where_that_is_quicker(extents, askew, expected):
    tiling = matmul_hopper_tilings.tiling(Product(*extents, 132, ("a" in askew, "b" in askew)))
    assert (
        tiling.groups * tiling.rows,
        tiling.wide + tiling.side,
        tiling.cut_rows * tiling.cut_columns,
    ) == expected
    assert tiling.copies == (extents == (5000, 5000, 1000))


def test_a_cut_wave_fits_the_gpu():
    for m in range(130, 6000, 321):
        for n, k in ((1000, 4096), (4096, 8192), (5000, 640)):
            tiling = matmul_hopper_tilings.tiling(Product(m, n, k, 132))
            tiles = -(-m // (tiling.groups * tiling.rows)) * -(-n // (tiling.wide + tiling.side))
            cut = tiling.cut_rows * tiling.cut_columns
            assert cut == 1 or 0 < tiles % 132 * cut <= 132


def test_rings_fit_shared_memory():
    for tiling in matmul_hopper_tilings.TILINGS:
        step = (tiling.groups * tiling.rows + tiling.wide + tiling.side) * 64
        assert 2 * (tiling.stages * step + tiling.groups * tiling.buffers * 64 * 64) <= 226 * 1024


def test_blocks_have_the_warpgroups_whose_waves_are_quicker(monkeypatch):
    for extents, expected in (
        ((256, 7168), 2), ((2048, 2048), 2), ((4096, 4096), 2), ((4096, 2048), 2),
        ((1536, 1536), 3), ((3072, 3072), 3), ((8192, 8192), 3), ((4096, 7168), 3),
    ):  # fmt: skip
        assert fp8_blocks_hopper.groups(*extents, 132) == expected, extents

    def serves(m, n, k, dtype=torch.bfloat16):
        a, b = (torch.empty(rows, k, dtype=torch.float8_e4m3fn, device="meta") for rows in (m, n))
        return fp8_blocks_hopper.serves(a, b, torch.empty(m, n, dtype=dtype, device="meta"))

    monkeypatch.setattr(fp8_blocks_hopper, "capability", lambda _: 90)
    monkeypatch.setattr(fp8_blocks_hopper, "tma_serves", lambda *_: True)
    assert serves(64, 7168, 4096) and serves(1024, 4096, 4096)
    assert not serves(64, 6000, 4096) and not serves(512, 512, 512) and not serves(4096, 4096, 4096, torch.float32)


def test_a_row_that_repeats_is_not_loaded_by_descriptors(monkeypatch):
    monkeypatch.setattr(w8a16_hopper, "capability", lambda _: 90)
    x = torch.empty(256, 4096, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(4096, 4096, dtype=torch.int8, device="meta")
    assert w8a16_hopper.serves(x, weight)
    assert not w8a16_hopper.serves(x[:1].expand(256, -1), weight)
    assert not w8a16_hopper.serves(x, weight[:1].expand(4096, -1))
    assert norm_linear._tma_serves(x, 4096) and not norm_linear._tma_serves(x[:1].expand(256, -1), 4096)
