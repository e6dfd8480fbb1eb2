"""Quantization, interpreted by tilescope."""

import functools

import torch
from checks import INF, SPECS, against_reference, draw, poisoned, relative_error
from metered import moved, moves_its_floor, run
from tilescope.execution import launches
from tilescope_kernels import dequantize, nf4_dequantize, nf4_quantize, quantize
from tilescope_kernels.quantization.nf4 import FRACTIONS
from tilescope_kernels.quantization.quantize import BLOCK_CONFIGS, SMALLEST, reference
from tilescope_kernels.spec import FORWARD

#: What the checks run in.
AROUND = functools.partial(launches.catch, run)
INT8, FP8 = torch.int8, torch.float8_e4m3fn
STEPS = {INT8: 0.5 / 127, FP8: 2.0**-4}
QUANTIZERS = ("int8_tensor", "fp8_tensor", "int8_rows", "fp8_rows", "fp8_blocks", "fp8_tiles")
DEQUANTIZERS = ("int8_dequantize", "fp8_dequantize")


def check_quantization_against_the_reference():
    with poisoned():
        for name in (*QUANTIZERS, *DEQUANTIZERS):
            for workload in ("1x1-fp32", "7x781-fp32", "130x300-bf16", "40x8-fp16", "3x1024-bf16"):
                against_reference(name, workload)


def check_quantization_moves_its_floor():
    for name in (*QUANTIZERS, *DEQUANTIZERS):
        if not name.endswith("_tensor"):
            for workload in ("130x256-bf16", "7x781-fp32"):
                moves_its_floor(name, workload)


def check_tensor_scale_takes_one_more_read():
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
        # As a GPU writes it, with all bits set but the sign's.
        x[1].view(torch.int32)[3] = 0x7FFFFFFF
        if granularity in ("row", "block"):
            x[2, 5], x[3, 7] = INF, -INF
            x[4] = 1e-38
        q, scale = quantize(x, kind, granularity)
        wanted, wanted_scale = reference(x, kind, granularity)
        assert relative_error(q, wanted) < 1e-2
        assert relative_error(scale, wanted_scale) < 1e-6
        assert not q[0].float().any()
        assert q[1, 3] == 0 if kind == INT8 else q[1, 3].float().isnan()
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
    with poisoned():
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
    assert not seen
