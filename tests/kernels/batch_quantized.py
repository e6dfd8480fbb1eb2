"""Low-precision kernels, interpreted by tilescope, whose interpreter knows e4m3 and bf16 and refuses accesses outside.

Run by test_quantized; prints what went wrong, by name.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from checks import INF, NAN, SPECS, against_reference, draw, main, poisoned, relative_error
from tilescope.execution import launches
from tilescope.interpreter import interpret
from tilescope.interpreter.meter import Meter
from tilescope_kernels import (
    dequantize,
    fp8_matmul,
    int8_matmul,
    lora_linear,
    nf4_dequantize,
    nf4_quantize,
    quantize,
    w8a16_matmul,
)
from tilescope_kernels.matrix_products import fp8_matmul as fp8
from tilescope_kernels.matrix_products import lora, scaled_matmul, split_k, w8a16_split
from tilescope_kernels.matrix_products import w8a16_matmul as w8a16
from tilescope_kernels.matrix_products.w8a16_matmul import SMALL
from tilescope_kernels.quantization.nf4 import FRACTIONS
from tilescope_kernels.quantization.quantize import BLOCK_CONFIGS, SMALLEST, reference
from tilescope_kernels.spec import FORWARD

INT8, FP8 = torch.int8, torch.float8_e4m3fn
STEPS = {INT8: 0.5 / 127, FP8: 2.0**-4}


def run(launch: launches.Launch) -> Meter:
    meter = interpret.meter(launch)
    interpret.run(launch, meter=meter)
    return meter


def moved(name: str, workload: str, **options: Any) -> tuple[int, int]:
    """Bytes that are read and written, each once a launch."""
    spec, meters = SPECS[name], list[Meter]()
    inputs = spec.inputs(spec.workload(workload), "cpu")
    with launches.catch(lambda launch: meters.append(run(launch))):
        spec.implementations["triton"].call(**inputs, **options)
    return sum(meter.read.bytes for meter in meters), sum(meter.written.bytes for meter in meters)


def moves_its_floor(name: str, workload: str, **options: Any) -> None:
    """Each byte of the cost model is touched, and no other."""
    floor, found = SPECS[name].cost(SPECS[name].workload(workload), FORWARD), moved(name, workload, **options)
    assert found == (floor.bytes_read, floor.bytes_written), f"{name} {workload}: {found}, {floor}"


QUANTIZERS = ("int8_tensor", "fp8_tensor", "int8_rows", "fp8_rows", "fp8_blocks", "fp8_tiles")
DEQUANTIZERS = ("int8_dequantize", "fp8_dequantize")


def check_quantization_against_the_reference():
    for name in (*QUANTIZERS, *DEQUANTIZERS):
        for workload in ("1x1-fp32", "7x781-fp32", "130x300-bf16", "40x8-fp16", "3x1024-bf16"):
            against_reference(name, workload)


def check_quantization_moves_its_floor():
    for name in (*QUANTIZERS, *DEQUANTIZERS):
        if not name.endswith("_tensor"):
            for workload in ("130x256-bf16", "7x781-fp32"):
                moves_its_floor(name, workload)


def check_a_scale_of_the_tensor_takes_one_more_read_and_the_programs_magnitudes():
    spec, workload = SPECS["int8_tensor"], "130x256-bf16"
    floor, magnitudes = spec.cost(spec.workload(workload), FORWARD), 4 * 17  # 260 blocks of 1x128, 16 a program
    wanted = (2 * floor.bytes_read + magnitudes, floor.bytes_written + magnitudes)
    assert moved("int8_tensor", workload) == wanted


def check_every_config_of_quantization():
    for name in QUANTIZERS:
        for config in SPECS[name].implementations["triton"].configs:
            against_reference(name, "5x400-bf16", config)
    for config in BLOCK_CONFIGS:
        against_reference("int8_dequantize", "5x400-bf16", config)


def check_rows_longer_than_registers():
    against_reference("int8_rows", "2x40000-fp32")
    against_reference("fp8_rows", "2x70000-bf16")


def check_one_scale_for_a_tensor():
    x = draw(9, 300)
    for kind in (INT8, FP8):
        for config in (None, BLOCK_CONFIGS[5]):
            q, scale = quantize(x, kind, "tensor", config=config)
            wanted, wanted_scale = reference(x.double(), kind, "tensor")
            assert scale.shape == ()
            assert relative_error(scale, wanted_scale) < 1e-6
            assert relative_error(q, wanted) < 1e-2
            back = dequantize(q, scale, torch.float32)
            assert relative_error(back, q.double() * scale.double()) < 1e-6


def check_going_there_and_back_is_within_half_a_step():
    x = draw(200, 300).bfloat16()
    pairs = ((INT8, "row"), (INT8, "tile"), (FP8, "row"), (FP8, "block"), (FP8, "tile"), (FP8, "tensor"))
    for kind, granularity in pairs:
        q, scale = quantize(x, kind, granularity)
        back = dequantize(q, scale, torch.float32)
        if kind == INT8:
            group = x.abs().amax(-1, keepdim=True) if granularity == "row" else x.abs().max()
            bound = 1.01 * STEPS[INT8] * group
        else:
            # Half of the last of 3 bits of mantissa, or of the least number that is not zero.
            bound = 1.01 * (STEPS[FP8] * x.abs() + scale.max() * 2.0**-10)
        assert ((back - x.float()).abs() <= bound).all(), (kind, granularity)


def check_halves_are_rounded_to_even():
    x = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -126.5, 127.0]])
    q, scale = quantize(x)
    assert q.tolist() == [[0, 2, 2, 0, -2, 126, -126, 127]]
    assert scale.item() == 1.0
    x = torch.tensor([[17.0, 19.0, 21.0, -17.0, 448.0]])
    q, scale = quantize(x, FP8)
    assert torch.equal(q.float(), torch.tensor([[16.0, 20.0, 20.0, -16.0, 448.0]]))


def check_special_values_of_quantization():
    for kind, granularity in ((INT8, "row"), (FP8, "row"), (FP8, "block"), (FP8, "tile"), (INT8, "tensor")):
        x = draw(6, 40)
        x[0] = 0.0
        x[1, 3] = NAN
        if granularity in ("row", "block"):
            x[2, 5], x[3, 7] = INF, -INF
            x[4] = 1e-38
        q, scale = quantize(x, kind, granularity)
        wanted, wanted_scale = reference(x, kind, granularity)
        assert relative_error(q, wanted) < 1e-2
        assert relative_error(scale, wanted_scale) < 1e-6
        assert not q[0].float().any()
        assert bool(q[1, 3].float().isnan()) == (kind == FP8)
        back = dequantize(q, scale, torch.float32)
        assert not back[0].isnan().any()
        if granularity == "row":
            assert back[2].isnan().all() and not back[4].isnan().any()
            assert scale[0].item() == torch.tensor(SMALLEST / (127 if kind == INT8 else 448)).item()


def check_shapes_and_strides_of_quantization():
    x = draw(2, 3, 300)
    for granularity, shape in (("tensor", ()), ("row", (2, 3, 1)), ("block", (2, 3, 3))):
        q, scale = quantize(x, FP8, granularity)
        assert q.shape == x.shape and scale.shape == shape
        assert relative_error(q, reference(x, FP8, granularity)[0]) < 1e-2
        back = dequantize(q, scale, torch.float32)
        assert relative_error(back, x) < 0.04
    for view in (draw(6, 900)[:, 100:400], draw(300, 6).T, draw(12, 600)[::2, ::2], draw(300)):
        for granularity in ("row", "block"):
            q, _ = quantize(view, INT8, granularity)
            assert relative_error(q, reference(view, INT8, granularity)[0]) < 1e-2
    # Odd rows: close together, many of them in a program, and apart.
    codes = torch.arange(-127, 128, dtype=INT8).repeat(9)
    for q in (codes.view(85, 27), codes.view(765, 3), codes.view(45, 51)[:, 3:40], codes.view(45, 51)[::2]):
        for rows in (1, 128):
            scale = draw((len(q) + rows - 1) // rows, 1).abs() + 0.1
            back = dequantize(q, scale, torch.float32)
            assert relative_error(back, q.double() * scale.double().repeat_interleave(rows, 0)[: len(q)]) < 1e-6
    q, scale = quantize(draw(200, 6).T, FP8, "tile")
    assert scale.shape == (1, 2)
    assert relative_error(q, reference(draw(200, 6).T, FP8, "tile")[0]) < 2e-3


def check_nf4_against_the_reference():
    for workload in ("1x1-fp16", "7x781-fp16", "130x300-bf16", "64x64-fp32"):
        against_reference("nf4_dequantize", workload)
    for config in SPECS["nf4_dequantize"].implementations["triton"].configs:
        against_reference("nf4_dequantize", "7x781-bf16", config)
    moves_its_floor("nf4_dequantize", "7x781-fp16")
    moves_its_floor("nf4_dequantize", "64x256-bf16")


def check_nf4_layout():
    # The first code is in the high half: 0xF7 is 1 and 0.
    codes = torch.tensor([0xF7, 0x0F] + [0x77] * 30, dtype=torch.uint8)
    x = nf4_dequantize(codes, torch.tensor([3.0]), (64,), torch.float32)
    assert torch.equal(x[:5], torch.tensor([3.0, 0.0, -3.0, 3.0, 0.0]))
    every = torch.arange(16, dtype=torch.uint8)
    x = nf4_dequantize(every[::2] << 4 | every[1::2], torch.ones(1), (16,), torch.float32)
    assert torch.equal(x, torch.tensor(FRACTIONS))


def check_nf4_there_and_back():
    x = draw(37, 111)
    x[0, :64] = 0.0
    codes, absmax = nf4_quantize(x)
    assert codes.shape == (-(-x.numel() // 2), 1) and codes.dtype == torch.uint8
    back = nf4_dequantize(codes, absmax, x.shape, torch.float32)
    assert not back[0, :64].any()
    # Half of the widest gap between two fractions, of the block's magnitude.
    bound = absmax.repeat_interleave(64)[: x.numel()].reshape(x.shape) * 0.153
    assert ((back - x).abs() <= bound).all()
    again, _ = nf4_quantize(back)
    assert torch.equal(again, codes)


INT8_PRODUCTS = ("int8_matmul", "int8_matmul_rows")


def check_int8_matmul():
    for name in INT8_PRODUCTS:
        for workload in ("1x1x1-int8", "64x64x64-int8", "65x33x170-int8"):
            against_reference(name, workload)
        moves_its_floor(name, "65x33x170-int8")
        with two_programs:
            for halves in (0, 1):
                for config in small(SPECS[name].implementations["triton"].configs, TMA=1, HALVES=halves)[:3]:
                    against_reference(name, "200x264x272-int8", config)


def check_int8_matmul_extremes_and_one_scale():
    a = torch.full((3, 300), -128, dtype=INT8)
    c = int8_matmul(a, a.T)
    assert torch.equal(c, torch.full((3, 3), 300 * 128 * 128, dtype=torch.int32))
    x = draw(20, 100)
    q, scale = quantize(x, INT8, "tensor")
    c = int8_matmul(q, q.T, scale, scale, dtype=torch.float32)
    assert relative_error(c, x @ x.T) < 0.02


def check_w8a16_matmul():
    for workload in ("1x1x1-fp32", "37x70x101-fp32", "40x70x112-bf16", "37x130x101-fp16", "5x70x304-bf16"):
        against_reference("w8a16_matmul", workload)
    for workload in ("70x64x64-bf16", "37x70x101-fp32"):
        moves_its_floor("w8a16_matmul", workload)


def check_w8a16_matmul_split_along_k():
    # Parts that are whole, one that is short, and more parts than there are blocks.
    for config in SMALL[:5] + SMALL[10:12]:
        for workload in ("16x130x640-bf16", "3x70x401-fp16"):
            against_reference("w8a16_matmul", workload, config)


def check_w8a16_matmul_through_descriptors():
    with mock.patch.object(w8a16, "multiprocessors", lambda tensor: 2):
        for config in [c for c in SPECS["w8a16_matmul"].implementations["triton"].configs if c["TMA"]][::2]:
            against_reference("w8a16_matmul", "300x264x208-bf16", config)


def check_w8a16_matmul_shapes():
    weight, x = draw(70, 96), draw(2, 3, 96, seed=1)
    codes, scale = quantize(weight)
    for view in (x, x[:, 1:], x[0, 0]):
        y = w8a16_matmul(view, codes, scale)
        assert relative_error(y, view.double() @ (codes * scale).double().T) < 1e-5
        assert relative_error(y, view.double() @ weight.double().T) < 0.02


def check_lora_linear():
    for workload in ("1x1x1x1-fp32", "37x70x101x24-fp32", "40x70x112x16-bf16", "65x130x70x5-fp16", "70x70x96x100-bf16"):
        against_reference("lora_linear", workload)


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


def check_lora_linear_shapes():
    x, weight, a, b = draw(2, 3, 96), draw(70, 96, seed=1), draw(8, 96, seed=2), draw(70, 8, seed=3)
    for view in (x, x[:, 1:], x[0, 0]):
        y = lora_linear(view, weight, a, b, 0.25)
        wanted = view.double() @ weight.double().T + 0.25 * (view.double() @ a.double().T) @ b.double().T
        assert relative_error(y, wanted) < 1e-5
    y = lora_linear(x, weight.T.contiguous().T, a, b.T.contiguous().T)
    assert relative_error(y, x.double() @ weight.double().T + (x.double() @ a.double().T) @ b.double().T) < 1e-5


#: Two programs walk all tiles, as a persistent grid does on a GPU with fewer multiprocessors than there are tiles.
two_programs = mock.patch.object(scaled_matmul, "multiprocessors", lambda tensor: 2)


def small(configs, **wanted: int):
    """A few of ``configs`` whose tiles are small enough to interpret."""
    fitting = [c for c in configs if c["BLOCK_M"] * c["BLOCK_N"] <= 128 * 256 and wanted.items() <= c.items()]
    return fitting[:: max(1, len(fitting) // 4)]


def check_fp8_matmul_against_the_reference():
    for name in ("fp8_matmul", "fp8_matmul_rows", "fp8_matmul_blocks"):
        for workload in ("1x1x1-fp8", "64x64x64-fp8", "65x33x170-fp8", "130x150x300-fp8"):
            against_reference(name, workload)


def check_fp8_matmul_through_descriptors():
    with two_programs:
        for name in ("fp8_matmul", "fp8_matmul_rows"):
            for halves in (0, 1):
                for config in small(SPECS[name].implementations["triton"].configs, TMA=1, HALVES=halves):
                    against_reference(name, "300x264x272-fp8", config)


def check_fp8_matmul_of_few_tiles():
    tiles = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_M": 2, "SCRATCH": 0, "num_warps": 4, "num_stages": 2}
    with mock.patch.object(split_k, "multiprocessors", lambda tensor: 4):
        for splits in (1, 3):  # whole tiles; both, and parts alone
            with mock.patch.object(fp8, "fp8_plan", lambda *_, splits=splits: {**tiles, "SPLITS": splits}), poisoned():
                for name in ("fp8_matmul", "fp8_matmul_rows"):
                    for workload in ("70x136x272-fp8", "9x64x1040-fp8"):
                        against_reference(name, workload)


def check_every_tile_of_fp8_blocks():
    with mock.patch.object(fp8, "multiprocessors", lambda tensor: 1):
        for config in SPECS["fp8_matmul_blocks"].implementations["triton"].configs:
            against_reference("fp8_matmul_blocks", "140x328x272-fp8", config)


def check_fp8_matmul_moves_its_floor():
    for name in ("fp8_matmul", "fp8_matmul_rows", "fp8_matmul_blocks"):
        for workload in ("130x256x256-fp8", "65x33x170-fp8"):
            moves_its_floor(name, workload)


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


def check_unaligned_rows_are_copied_to_aligned_ones():
    copied = []

    def count(launch: launches.Launch) -> None:
        copied.append(launch.name)
        run(launch)

    with mock.patch.object(scaled_matmul, "_LEAST", 1), poisoned(), launches.catch(count):
        for name, dtype in (
            ("fp8_matmul", "fp8"),
            ("fp8_matmul_rows", "fp8"),
            ("int8_matmul", "int8"),
            ("w8a16_matmul", "fp16"),
        ):
            for extents in ("37x33x70", "5x130x257", "64x64x24"):
                against_reference(name, f"{extents}-{dtype}")
                assert copied.pop(0) == "copy_rows_kernel" and len(copied) in (1, 2), copied
                copied.clear()
        # Rows that start at 16 bytes and end elsewhere, beside others; and a first row that does not start there.
        a, b = ((16 * draw(50, 81, seed=seed)).to(INT8) for seed in (0, 1))
        wide = torch.zeros(50, 96, dtype=INT8)
        wide[:, :81] = b
        assert torch.equal(int8_matmul(a, wide[:, :81].T), (a.double() @ b.double().T).int())
        one, other = wide[:, 1:65], wide[:, :64]
        assert torch.equal(int8_matmul(one, other.T), (one.double() @ other.double().T).int())
        copied.clear()
        int8_matmul(other, other.T)
        assert "copy_rows_kernel" not in copied


def check_w8a16_matmul_of_few_tiles():
    for extents in ((37, 50, 300), (130, 96, 1000), (20, 16, 128)):
        m, n, k = extents
        k_wide = -(-k // 16) * 16
        x, codes = torch.zeros(m, k_wide).half(), torch.zeros(n, k_wide, dtype=INT8)
        x[:, :k], codes[:, :k] = draw(m, k).half(), (25 * draw(n, k, seed=1)).to(INT8)
        scale = draw(n, 1, seed=2).abs()
        for split in (1, 2, 5):
            plan = w8a16_split.Plan(32, 16, split, 2)
            with poisoned():
                y = torch.empty(m, n, dtype=torch.float16)
                w8a16_split.launch(y, x, codes, scale, plan)
            expected = x.double() @ (codes.double() * scale.double()).T
            assert relative_error(y, expected) <= SPECS["w8a16_matmul"].tolerance["fp16"], (extents, split)


def check_writes_every_element():
    names = (*QUANTIZERS, *DEQUANTIZERS, "nf4_dequantize", "fp8_matmul", "fp8_matmul_rows", "fp8_matmul_blocks")
    for name in (*names, *INT8_PRODUCTS, "w8a16_matmul", "lora_linear"):
        shape = {2: "131x259", 3: "33x35x41", 4: "33x35x41x5"}[len(SPECS[name].dims)]
        workload = f"{shape}-{next(iter(SPECS[name].tolerance))}"
        with poisoned():
            against_reference(name, workload)


def check_nothing_is_launched_for_nothing():
    with launches.catch() as seen:
        for shape in ((0, 5), (3, 0), (0,)):
            for granularity in ("tensor", "row", "block", "tile"):
                if granularity == "tile" and len(shape) < 2:
                    continue
                q, scale = quantize(torch.empty(shape), INT8, granularity)
                back = dequantize(q, scale)
                assert q.shape == back.shape == shape
                assert scale.shape == reference(torch.empty(shape), INT8, granularity)[1].shape
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


if __name__ == "__main__":
    with launches.catch(run):
        main(globals())
