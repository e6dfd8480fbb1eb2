"""Products on Hopper: which kernel and tiles each gets, and what the PTX of kernels for several SMs rests on."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from tilescope.execution import launches, offline
from tilescope_kernels import fp8_matmul, lora_linear
from tilescope_kernels.matrix_products import (
    bytes_product,
    fp8_blocks_hopper,
    matmul_hopper,
    matmul_pairs,
    matmul_tilings,
    split_k,
    w8a16_hopper,
)  # fmt: skip
from tilescope_kernels.matrix_products.matmul import choice
from tilescope_kernels.matrix_products.matmul_tilings import PAIRS, Product
from triton.experimental.gluon import language as gl

from .releases import GLUON, PAIRS_OF_SMS


@pytest.fixture(autouse=True)
def hopper():
    with offline.targeting("sm_90"):
        yield


def matrix(rows, columns, dtype=torch.bfloat16, turned=False, stride=0):
    """A matrix without values, row-major with this stride, or ``turned``."""
    strides = (1, stride or rows) if turned else (stride or columns, 1)
    return torch.empty_strided((rows, columns), strides, dtype=dtype, device="meta")


def operands(m, n, k, **options):
    return matrix(m, k, **options), matrix(k, n, **options)


def compiled(write):
    """The first kernel that ``write`` launches, compiled."""
    with launches.catch() as seen:
        write()
    return offline.compile_launch(seen[0])


@pytest.mark.parametrize(("extents", "tile", "splits"), [
    ((4097, 4099, 4101), (128, 256), 4), ((4096, 4099, 4096), (128, 256), 4), ((4096, 4096, 4101), (128, 256), 4),  # odd rows
    ((1, 1024, 4096), (16, 64), 8), ((16, 768, 768), (16, 32), 1), ((16, 1600, 1600), (16, 64), 3), ((1, 10240, 8192), (16, 128), 1),
    ((16, 28672, 4096), (16, 256), 1), ((16, 37888, 3584), (16, 64), 1), ((64, 12288, 4096), (64, 128), 1),
    ((128, 768, 768), (64, 64), 1), ((128, 1600, 6400), (64, 64), 2), ((512, 1600, 1600), (64, 128), 1),
    ((512, 3584, 4096), (128, 128), 1), ((1024, 1024, 1024), (64, 128), 1), ((16, 8192, 8192), (16, 64), 1),
    ((300, 300, 300), (64, 64), 1), ((256, 256, 256), None, 0),  # short, and rows of 600 bytes
    ((4096, 4096, 4096), None, 0), ((16, 8191, 8193), None, 0), ((8193, 16, 8193), None, 0),  # to copy an operand takes too long
])  # fmt: skip
def test_split_plan_wastes_least_of_a_wave(extents, tile, splits):
    chosen = split_k.plan(*operands(*extents))
    assert (chosen and ((chosen["BLOCK_M"], chosen["BLOCK_N"]), chosen["SPLITS"])) == (tile and (tile, splits))
    assert not chosen or chosen["SCRATCH"] == (4101 in extents or 4099 in extents)


def test_split_plan_serves_16_bits_on_hopper_alone():
    assert split_k.plan(*operands(1024, 1024, 1024, dtype=torch.float32)) is None
    with offline.targeting("sm_120"):
        assert split_k.plan(*operands(1024, 1024, 1024)) is None


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_bytes_plan_fills_one_wave(dtype):
    def planned(m, n, k):
        return bytes_product.bytes_plan(matrix(m, k, dtype), matrix(n, k, dtype).T)

    for extents in ((128, 4096, 4096), (16, 8192, 8192), (1, 14336, 4096), (1536, 1536, 1536), (1023, 517, 1040)):
        plan = planned(*extents)
        m, n, k = (plan[f"BLOCK_{axis}"] for axis in "MNK")
        if extents[0] <= 32:  # transposed
            m, n = n, m
        assert 64 <= -(-extents[0] // m) * -(-extents[1] // n) <= 2.5 * 132 and plan["SPLITS"] == 1
        # The widest result has four bytes.
        assert (m + n) * k * plan["num_stages"] + 4 * m * n <= 226 * 1024
    assert planned(16, 1024, 32768)["SPLITS"] > 1
    for extents in ((128, 4100, 4100), (64, 256, 512), (2048, 2048, 2048)):
        assert planned(*extents) is None


@pytest.mark.parametrize(("m", "n", "k", "expected"), [
    (128, 4096, 4096, (64, 2)), (256, 8192, 8192, (128, 1)), (64, 14336, 4096, (64, 1)), (1024, 4096, 4096, (256, 1)),
    (512, 10240, 8192, (256, 4)), (1024, 14336, 4096, (256, 2)), (40, 1000, 1024, None),
])  # fmt: skip
def test_w8a16_tiling_has_a_part_for_most_sms(m, n, k, expected):
    assert w8a16_hopper.tiling(m, n, k, 132) == (expected and w8a16_hopper.Tiling(*expected))


@GLUON
def test_w8a16_every_part_has_a_turn():
    x, weight, scale = matrix(128, 1024), matrix(4096, 1024, torch.int8), matrix(4096, 1, torch.float32)
    with launches.catch() as seen:
        w8a16_hopper.write_product(x, weight, matrix(128, 4096), scale, w8a16_hopper.Tiling(128, 8))
    # 1,024 elements are two turns: 32 tiles have two parts each.
    assert seen[0].grid[0] == 32 * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bytes_become_numbers(dtype):
    """What the PTX of a conversion does, one operation at a time: exact for each of the 256 bytes."""
    named = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}[dtype]
    code = w8a16_hopper._conversion(named)
    sign, power, less = (
        int(re.search(rf"{line} (0x\w+|\d+);", code)[1], 0) for line in ("wide, wide,", "b32 power,", "b32 less,")
    )
    codes = torch.arange(-128, 128, dtype=torch.int8)

    def number(bits):
        return (torch.as_tensor(bits) & 0xFFFF).to(torch.uint16).view(dtype).double()

    found = number((codes.int() & 0xFF) ^ sign) * number(power) + number(less)
    assert "prmt.b32 wide, both, 0, 0x4140" in code and sign >> 16 == sign & 0xFFFF
    assert torch.equal(found.to(dtype).double() * w8a16_hopper.unit(named), codes.double())


@GLUON
def test_w8a16_repeated_row_is_not_served():
    x, weight = matrix(256, 4096), matrix(4096, 4096, torch.int8)
    assert w8a16_hopper.serves(x, weight)
    assert not w8a16_hopper.serves(x[:1].expand(256, -1), weight)
    assert not w8a16_hopper.serves(x, weight[:1].expand(4096, -1))


@GLUON
def test_matmul_hopper_serves_what_fills_it():
    for extents in ((4096, 4096, 4096), (1024, 4096, 4096), (4097, 4099, 4101), (65, 128256, 4096)):
        assert matmul_tilings.serves(*operands(*extents))
    for extents in ((512, 4096, 4096), (64, 128256, 4096), (8192, 32, 8192), (8192, 8192, 32)):
        assert not matmul_tilings.serves(*operands(*extents))
    assert not matmul_tilings.serves(*operands(4096, 4096, 4096, dtype=torch.float32))


@pytest.mark.parametrize(("extents", "askew", "expected"), [
    ((4096, 4096, 4096), "", (128, 256, 1)),  # four waves, the last of them nearly whole
    ((4097, 4099, 4101), "", (128, 256, 4)),  # four whole ones, and 33 tiles
    ((512, 4096, 4096), "", (128, 128, 1)),  # one wave of smaller tiles
    ((2560, 2560, 2560), "", (128, 128, 2)),  # three whole waves, and four tiles
    ((3000, 3000, 3000), "ab", (192, 192, 1)),  # large tiles, because operands are slow to arrive
    ((5000, 1000, 5000), "ab", (192, 256, 1)),  # one wave of the largest
    ((4096, 4096, 1000), "a", (128, 256, 1)),  # a alone is not worth a copy
    ((5000, 5000, 1000), "ab", (128, 256, 4)),  # of copies, which are not slow
])  # fmt: skip
def test_hopper_tiling_cuts_the_last_wave(extents, askew, expected):
    tiling = matmul_tilings.tiling(Product(*extents, 132, ("a" in askew, "b" in askew)))
    found = tiling.groups * tiling.rows, tiling.wide + tiling.side, tiling.cut_rows * tiling.cut_columns
    assert found == expected
    assert tiling.copies == (extents == (5000, 5000, 1000))


@GLUON
def test_fp8_blocks_groups_have_the_faster_waves():
    for extents, expected in (((256, 7168), 2), ((4096, 4096), 2), ((1536, 1536), 3), ((8192, 8192), 3)):
        assert fp8_blocks_hopper.groups(*extents, 132) == expected, extents

    def serves(m, n, k, dtype=torch.bfloat16):
        a, b = (matrix(rows, k, torch.float8_e4m3fn) for rows in (m, n))
        return fp8_blocks_hopper.serves(a, b, matrix(m, n, dtype))

    assert serves(64, 7168, 4096) and serves(128, 4096, 4096) and serves(1024, 4096, 4096)
    assert not serves(64, 36864, 4096) and not serves(512, 512, 512) and not serves(4096, 4096, 4096, torch.float32)


@pytest.mark.parametrize(("extents", "tile"), [
    ((16, 4096, 7168), (16, 64, 6)), ((16, 36864, 7168), (16, 128, 1)), ((128, 7168, 18432), (64, 128, 2)),
    pytest.param((128, 7168, 2048), None, marks=GLUON),
])  # fmt: skip
def test_fp8_blocks_of_few_rows_have_parts_for_every_sm(extents, tile):
    m, n, k = extents
    a, b = matrix(m, k, torch.float8_e4m3fn), matrix(n, k, torch.float8_e4m3fn)
    scales = (matrix(rows, k // 128, torch.float32) for rows in (m, n // 128))
    with launches.catch() as seen:
        fp8_matmul(a, b.T, next(scales), next(scales).T)
    found = seen[0].arguments
    assert tile == (tuple(found[name] for name in ("BLOCK_M", "BLOCK_N", "SPLITS")) if "SPLITS" in found else None)


def test_lora_of_few_rows_has_a_tile_for_every_sm():
    x, of_x, of_y = matrix(16, 14336), matrix(16, 14336), matrix(4096, 16)
    with launches.catch() as seen:
        lora_linear(x, matrix(4096, 14336), of_x, of_y)
    (found,) = (launch.arguments for launch in seen)
    assert (found["BLOCK_M"], found["BLOCK_N"]) == (16, 32)


def pairs(tiling, *, turned_a=False, turned_b=False, dtype=torch.bfloat16):
    """The kernel for pairs of SMs with this tiling."""
    a, b = matrix(1504, 1504, dtype, turned_a), matrix(1504, 1504, dtype, turned_b)
    c = matrix(1504, 1504, dtype)
    return compiled(lambda: matmul_pairs.writer(a, b, c, tiling)(a, b, c))


@PAIRS_OF_SMS
@pytest.mark.parametrize("tiling", [PAIRS[0], PAIRS[-1]], ids=str)
def test_pairs_ptx_addresses_what_gluon_allocates(tiling):
    kernel = pairs(tiling, turned_b=not tiling.turned)
    ptx, llir = kernel.asm["ptx"], kernel.asm["llir"]
    assert ".reqnctapercluster 2" in ptx
    # The rings are at the start of shared memory, as their mbarriers follow them there.
    size = tiling.stages * (tiling.groups * tiling.rows + tiling.wide) * 128
    assert min(int(found) for found in re.findall(r"@global_smem, i32 (\d+)\)", llir)) == size
    for descriptor in range(2):
        assert f".b8 matmul_pairs_kernel_param_{5 * descriptor}[128]" in ptx
        assert f"mov.b64 tiles, matmul_pairs_kernel_param_{5 * descriptor};" in ptx


@PAIRS_OF_SMS
def test_pairs_product_is_one_instruction_wide():
    tiling = next(each for each in PAIRS if each.stacked and each.turned)
    ptx = pairs(tiling).asm["ptx"]
    # A warpgroup multiplies 16 elements of K at a time, 64 rows each.
    instruction = f"wgmma.mma_async.sync.aligned.m64n{tiling.wide}k16.f32.bf16.bf16 "
    assert ptx.count(instruction) == 4 * tiling.groups * tiling.rows // 64
    assert "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16" in ptx


@PAIRS_OF_SMS
@pytest.mark.parametrize(("a", "b", "expected"), [(False, False, "0, 1"), (True, False, "1, 1"), (False, True, "0, 0")])
def test_pairs_descriptors_say_how_operands_lie(a, b, expected):
    """(K-contiguous, across K) of a and b, by the immediates of wgmma."""
    ptx = pairs(replace(PAIRS[0], turned=False), turned_a=a, turned_b=b, dtype=torch.float16).asm["ptx"]
    assert f"}}, a, b, add, 1, 1, {expected};" in ptx and ".f32.f16.f16 " in ptx


def test_pairs_operand_across_k_is_loaded_in_whole_boxes():
    narrow = next(each for each in PAIRS if each.wide == 160 and each.stacked and not each.turned)
    assert narrow.ordered((False, True)) == narrow and narrow.loaded == 160
    boxed = narrow.ordered((True, False))
    assert (boxed.wide, boxed.loaded, boxed.extents) == (160, 192, (512, 160))
    # A longer load takes longer.
    product = Product(1504, 1504, 1504, 132)
    assert boxed.time(product) > narrow.time(product)


@PAIRS_OF_SMS
def test_narrow_pairs_fill_a_wave_that_square_tiles_leave():
    # 128 tiles of 128x112 for 132 SMs, where tiles of 128x128 are 112. Not where K is short, or where square tiles fill the wave.
    (module, tiling), (short, _), (full, _) = (
        choice(*operands(512, n, k)) for n, k in ((3584, 4096), (3584, 1024), (4096, 4096))
    )
    assert (module, tiling.wide, tiling.stacked) == (matmul_pairs, 112, True)
    assert short is full is split_k


@GLUON
@pytest.mark.parametrize(("extents", "rows"), [
    ((8192, 768, 768), 128), ((4096, 1024, 1024), 128), ((4096, 768, 768), 64),
    ((2048, 2304, 768), 0), ((4096, 4096, 4096), 0),  # few tiles in the last wave, and a long K
    ((8192, 8192, 256), 0), ((8192, 763, 768), 0),  # shorter than was timed, and rows that do not start at memory sectors
])  # fmt: skip
def test_short_products_have_tiles_that_start_soon(extents, rows):
    module, plan = choice(*operands(*extents))
    assert (plan["BLOCK_M"] if module is split_k else 0) == rows


@PAIRS_OF_SMS
def test_plans_of_a_product_and_its_gradients(monkeypatch):
    x, w, dy = matrix(10000, 1000), matrix(1000, 1000), matrix(10000, 1000)
    (of_y, forward), (of_dx, dx), (of_dw, _) = (choice(*of) for of in ((x, w), (dy, w.T), (x.T, dy)))
    assert (of_y, of_dx, of_dw) == (matmul_pairs, matmul_pairs, split_k)
    assert (forward.turned, dx.turned) == (True, True)
    with offline.targeting("sm_100"):
        assert choice(x, w) is None
    # A version of Triton whose PTX is not known has tiles of one SM.
    monkeypatch.setattr(matmul_tilings, "KNOWN", False)
    assert choice(x, w)[0] is matmul_hopper


@PAIRS_OF_SMS
def test_plans_result_that_tma_cannot_write_has_tiles_of_one_sm():
    a, b = operands(3000, 3000, 3000)
    module, chosen = choice(a, b)
    assert module is matmul_pairs and choice(a, b[:, 4:])[0] is not matmul_pairs
    for stride, name in ((3000, "matmul_pairs_kernel"), (3001, "matmul_hopper_kernel")):
        c = matrix(3000, 3000, stride=stride)
        with launches.catch() as seen:
            matmul_pairs.writer(a, b, c, chosen)(a, b, c)
        assert [launch.name for launch in seen if launch.name.startswith("matmul")] == [name]
