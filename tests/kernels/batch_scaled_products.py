"""Products of low-precision operands, interpreted by tilescope."""

import functools
from unittest import mock

import torch
from checks import SPECS, against_reference, draw, poisoned, relative_error, told_apart
from metered import moves_its_floor, run
from tilescope.execution import launches
from tilescope_kernels import fp8_matmul, int8_matmul, lora_linear, quantize, w8a16_matmul
from tilescope_kernels.matrix_products import aligned_rows, bytes_product, lora, scaled_matmul, split_k
from tilescope_kernels.matrix_products import fp8_matmul as fp8
from tilescope_kernels.matrix_products import w8a16_matmul as w8a16
from tilescope_kernels.matrix_products.w8a16_matmul import SMALL

#: What the checks run in.
AROUND = functools.partial(launches.catch, run)
INT8, FP8 = torch.int8, torch.float8_e4m3fn
INT8_PRODUCTS = ("int8_matmul", "int8_matmul_rows")
FP8_PRODUCTS = ("fp8_matmul", "fp8_matmul_rows", "fp8_matmul_blocks")
#: Two programs walk all tiles, as a persistent grid does on a GPU with fewer multiprocessors than there are tiles.
two_programs = mock.patch.object(scaled_matmul, "multiprocessors", lambda tensor: 2)


def small(configs, **wanted):
    """A few of ``configs`` whose tiles are small enough to interpret."""
    fitting = [c for c in configs if c["BLOCK_M"] * c["BLOCK_N"] <= 128 * 256 and wanted.items() <= c.items()]
    return fitting[:: max(1, len(fitting) // 4)]


def check_products_against_the_reference():
    sizes = {
        **dict.fromkeys(INT8_PRODUCTS, ("1x1x1-int8", "64x64x64-int8", "65x33x170-int8")),
        **dict.fromkeys(FP8_PRODUCTS, ("1x1x1-fp8", "64x64x64-fp8", "65x33x170-fp8", "130x150x300-fp8")),
        "w8a16_matmul": ("1x1x1-fp32", "37x70x101-fp32", "40x70x112-bf16", "37x130x101-fp16", "5x70x304-bf16"),
        "lora_linear": (
            "1x1x1x1-fp32", "37x70x101x24-fp32", "40x70x112x16-bf16", "65x130x70x5-fp16", "70x70x96x100-bf16",
            "33x9x517x100-fp16",
        ),
    }  # fmt: skip
    with poisoned():
        for name, workloads in sizes.items():
            for workload in workloads:
                against_reference(name, workload)


def check_products_move_their_floor():
    sizes = {
        **dict.fromkeys(INT8_PRODUCTS, ("65x33x170-int8",)),
        **dict.fromkeys(FP8_PRODUCTS, ("130x256x256-fp8", "65x33x170-fp8")),
        "w8a16_matmul": ("70x64x64-bf16", "37x70x101-fp32"),
    }
    for name, workloads in sizes.items():
        for workload in workloads:
            moves_its_floor(name, workload)


def check_products_of_bytes_through_descriptors():
    with two_programs:
        for name in (*INT8_PRODUCTS, *FP8_PRODUCTS[:2]):
            for halves in (0, 1):
                for config in small(SPECS[name].implementations["triton"].configs, TMA=1, HALVES=halves)[:3]:
                    against_reference(name, f"200x264x272-{name.partition('_')[0]}", config)


def check_w8a16_matmul_split_along_k():
    # Parts that are whole, one that is short, and more parts than there are blocks.
    for config in SMALL[:5] + SMALL[10:12]:
        for workload in ("16x130x640-bf16", "3x70x401-fp16"):
            against_reference("w8a16_matmul", workload, config)


def check_w8a16_matmul_of_rows_far_apart():
    """Beyond int32 within a tile. Of some gigabytes of address space only the pages of these elements are touched."""
    apart = 2**31 // 30
    codes, scale = quantize(draw(64, 40))
    weight = torch.empty(63 * apart + 40, dtype=INT8).as_strided((64, 40), (apart, 1)).copy_(codes)
    x = torch.empty(31 * apart + 40, dtype=torch.float16).as_strided((32, 40), (apart, 1)).copy_(draw(32, 40, seed=1))
    for one, other in ((x, codes), (x.contiguous(), weight)):
        y = w8a16_matmul(one, other, scale, config=w8a16.NARROW)
        assert relative_error(y, x.double() @ (codes * scale).double().T) < 1e-3


def check_lora_linear_with_the_update_beside_the_product():
    inline = [c for c in SPECS["lora_linear"].implementations["triton"].configs if c["INLINE"]]
    for config in [c for c in inline if not c["TMA"]]:
        against_reference("lora_linear", "70x140x101x24-fp16", config)
        moves_its_floor("lora_linear", "70x140x128x16-bf16", config=config)
    with mock.patch.object(lora, "multiprocessors", lambda tensor: 2):
        for config in [c for c in inline if c["TMA"]][:3]:
            against_reference("lora_linear", "200x264x208x24-bf16", config)


def check_lora_linear_through_descriptors():
    every = SPECS["lora_linear"].implementations["triton"].configs
    with mock.patch.object(lora, "multiprocessors", lambda tensor: 2):
        for config in [c for c in every if c["TMA"] and not c["INLINE"]][1::2]:
            against_reference("lora_linear", "200x264x208x24-bf16", config)


def check_products_of_bytes_of_few_tiles():
    tiles = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 2, "SCRATCH": 0, "num_warps": 4, "num_stages": 2}
    with mock.patch.object(split_k, "multiprocessors", lambda tensor: 4):
        for splits in (1, 3):  # whole tiles; both, and parts alone
            plan = {**tiles, "SPLITS": splits}
            with mock.patch.object(bytes_product, "bytes_plan", lambda *_, plan=plan: plan), poisoned():
                for name in ("fp8_matmul", "fp8_matmul_rows", "int8_matmul", "int8_matmul_rows"):
                    for extents in ("70x136x272", "9x64x1040", "33x69x200"):
                        against_reference(name, f"{extents}-{name[: name.index('_')]}")


def check_every_tile_of_fp8_blocks():
    with mock.patch.object(fp8, "multiprocessors", lambda tensor: 1):
        for config in told_apart(SPECS["fp8_matmul_blocks"].implementations["triton"].configs):
            # Two tiles along M; more of them than a group has, once.
            rows = 140 if (config["BLOCK_M"], config["SPLITS"]) == (16, 6) else config["BLOCK_M"] + 12
            against_reference("fp8_matmul_blocks", f"{rows}x200x272-fp8", config)


def check_fp8_matmul_takes_what_quantize_gives():
    x, weight = draw(40, 300), draw(200, 300, seed=1)
    expected = x.double() @ weight.double().T
    for granularity in ("tensor", "row", "block"):
        a, scale_a = quantize(x, FP8, granularity)
        b, scale_b = quantize(weight, FP8, granularity.replace("block", "tile"))
        across = scale_b if granularity == "tensor" else scale_b.T
        for fast in (True, False):
            c = fp8_matmul(a, b.T, scale_a, across, dtype=torch.float32, use_fast_accum=fast)
            assert relative_error(c, expected) < 0.05, granularity
            # Neighbours along N are copied first.
            c = fp8_matmul(a, b.T.contiguous(), scale_a, across, dtype=torch.float32)
            assert relative_error(c, expected) < 0.05, granularity


def check_unaligned_rows():
    names = {"fp8_matmul": "fp8", "fp8_matmul_rows": "fp8", "int8_matmul": "int8", "w8a16_matmul": "fp16"}
    extents = ("37x33x70", "5x130x257", "64x64x24")
    workloads = [(name, f"{size}-{dtype}") for name, dtype in names.items() for size in extents]
    for name, workload in (*workloads, ("lora_linear", "33x9x517x100-fp16")):
        for least in (1, 2**20):  # copied first, and as they are
            seen = []
            caught = launches.catch(lambda launch, seen=seen: (seen.append(launch.name), run(launch)))
            with mock.patch.object(aligned_rows, "_LEAST", least), poisoned(), caught:
                against_reference(name, workload)
            assert ("copy_rows_kernel" in seen) == (least == 1), (name, workload, seen)
    # Rows that start at 16 bytes and end elsewhere, beside others; and a first row that does not start there.
    a, b = ((16 * draw(50, 81, seed=seed)).to(INT8) for seed in (0, 1))
    wide = torch.zeros(50, 96, dtype=INT8)
    wide[:, :81] = b
    assert torch.equal(int8_matmul(a, wide[:, :81].T), (a.double() @ b.double().T).int())
    one, other = wide[:, 1:65], wide[:, :64]
    assert torch.equal(int8_matmul(one, other.T), (one.double() @ other.double().T).int())


def check_nothing_is_launched_for_products_of_nothing():
    with launches.catch() as seen:
        codes, scale = torch.empty(7, 5, dtype=INT8), torch.ones(7, 1)
        for x, shape in ((torch.empty(0, 5), (0, 7)), (torch.empty(2, 0, 5), (2, 0, 7))):
            y = w8a16_matmul(x, codes, scale)
            assert y.shape == shape
            operands = (torch.ones(7, 5), torch.ones(2, 5), torch.ones(7, 2))
            y = lora_linear(x, *operands)
            assert y.shape == shape
        one = torch.ones(())
        for m, n, k in ((0, 3, 4), (3, 0, 4), (3, 4, 0)):
            a, b = torch.empty(m, k).to(FP8), torch.empty(k, n).to(FP8)
            c = fp8_matmul(a, b, one, one)
            assert torch.equal(c, torch.zeros(m, n, dtype=torch.bfloat16))
            a, b = torch.empty(m, k, dtype=INT8), torch.empty(k, n, dtype=INT8)
            c = int8_matmul(a, b)
            assert torch.equal(c, torch.zeros(m, n, dtype=torch.int32))
    assert not seen
