"""Low-precision kernels in the interpreter, and what their functions refuse."""

import pytest
import tilescope_kernels as kernels
import torch
from tilescope_kernels import CATALOG
from tilescope_kernels.matrix_products import lora
from tilescope_kernels.quantization import quantize as quantization
from tilescope_kernels.spec import FORWARD

SCRIPTS = ["batch_quantized.py", "batch_scaled_products.py"]
SPECS = {spec.name: spec for spec in CATALOG}
MATRIX = torch.ones(4, 256)
CODES, SCALES = torch.ones(4, 256, dtype=torch.int8), torch.ones(4, 1)
DESCRIBED = SPECS["fp8_matmul"].implementations["triton"].configs[0]
EIGHT, ONE = torch.ones(4, 16).to(torch.float8_e4m3fn), torch.ones(())
NF4 = torch.zeros(32, dtype=torch.uint8)


def test_interpreted(wrong):
    assert not wrong, wrong


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.quantize(MATRIX), "x is on cpu: Triton needs a CUDA device"),
        (lambda: kernels.dequantize(CODES, SCALES), "q is on cpu: Triton needs a CUDA device"),
        (lambda: kernels.nf4_dequantize(NF4, SCALES[:1], (8, 8)), "codes is on cpu: Triton needs a CUDA device"),
        (lambda: kernels.fp8_matmul(EIGHT, EIGHT.T, ONE, ONE), "a is on cpu: Triton needs a CUDA device"),
        (lambda: kernels.int8_matmul(CODES, CODES.T), "a is on cpu: Triton needs a CUDA device"),
        (lambda: kernels.w8a16_matmul(MATRIX, CODES, SCALES), "x is on cpu: Triton needs a CUDA device"),
        (lambda: kernels.lora_linear(MATRIX, MATRIX, MATRIX, MATRIX[:, :4]), "x is on cpu: Triton needs a CUDA device"),
    ],
)
def test_a_gpu_is_asked_for(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.quantize(MATRIX, torch.int32), "dtype is torch.int32: give torch.int8 or torch.float8_e4m3fn"),
        (lambda: kernels.quantize(MATRIX, granularity="rows"), "granularity is 'rows': give one of tensor, row, block"),
        (lambda: kernels.quantize(CODES), "x is torch.int8: give torch.float32"),
        (lambda: kernels.quantize(MATRIX[0], granularity="tile"), "x has 1 dimensions: give 2"),
        (lambda: kernels.quantize(MATRIX.clone().requires_grad_()), "x requires a gradient and quantize has none"),
        (lambda: kernels.dequantize(MATRIX, SCALES), "q is torch.float32: give torch.int8 or torch.float8_e4m3fn"),
        (lambda: kernels.dequantize(CODES, SCALES.half()), "scale is torch.float16: give torch.float32"),
        (lambda: kernels.dequantize(CODES, SCALES.to("meta")), "scale is on meta but its operand is on cpu"),
        (lambda: kernels.dequantize(CODES, SCALES, torch.int32), "dtype is torch.int32: give torch.float32"),
        (lambda: kernels.dequantize(CODES, SCALES[:3]), r"scale has shape \(3, 1\) beside q's \(4, 256\): give \(\)"),
        (lambda: kernels.nf4_dequantize(NF4, SCALES[:1], (9, 8)), r"codes has 32 elements: shape \(9, 8\) wants 36"),
        (lambda: kernels.nf4_dequantize(NF4, SCALES, (8, 8)), r"absmax has 4 elements: shape \(8, 8\) wants 1"),
        (lambda: kernels.nf4_dequantize(NF4.char(), SCALES[:1], (8, 8)), "codes is torch.int8: give torch.uint8"),
        (lambda: kernels.nf4_dequantize(NF4, SCALES[:1], (8, 8), torch.int8), "dtype is torch.int8"),
        (lambda: kernels.fp8_matmul(MATRIX, EIGHT.T, ONE, ONE), "a is torch.float32: give torch.float8_e4m3fn"),
        (lambda: kernels.fp8_matmul(EIGHT, EIGHT[0], ONE, ONE), "b has 1 dimensions: give 2"),
        (lambda: kernels.fp8_matmul(EIGHT, EIGHT, ONE, ONE), "b has 4 rows but a has 16 columns"),
        (lambda: kernels.fp8_matmul(EIGHT, EIGHT.T, ONE, ONE.half()), "scale_b is torch.float16: give torch.float32"),
        (
            lambda: kernels.fp8_matmul(EIGHT, EIGHT.T, ONE, SCALES),
            r"shapes \(\) and \(4, 1\): give \(\) and \(\), \(4, 1\) and",
        ),
        (
            lambda: kernels.fp8_matmul(EIGHT, EIGHT.T, ONE, ONE, dtype=torch.int8),
            "dtype is torch.int8: give torch.bfloat16",
        ),
        (lambda: kernels.fp8_matmul(EIGHT[:, :15], EIGHT[:, 1:].T, ONE, ONE, config=DESCRIBED), "config has TMA=1"),
        (lambda: kernels.int8_matmul(EIGHT, CODES), "a is torch.float8_e4m3fn: give torch.int8"),
        (lambda: kernels.int8_matmul(CODES, CODES), "b has 4 rows but a has 256 columns"),
        (lambda: kernels.int8_matmul(CODES, CODES.T, SCALES), "scale_b is None and the other scale is not"),
        (
            lambda: kernels.int8_matmul(CODES, CODES.T, SCALES, ONE),
            r"shapes \(4, 1\) and \(\): give \(\) and \(\), or \(4, 1\)",
        ),
        (lambda: kernels.w8a16_matmul(MATRIX[:, :9], CODES, SCALES), r"x has shape \(4, 9\): give \(..., 256\)"),
        (lambda: kernels.w8a16_matmul(MATRIX, MATRIX, SCALES), "weight is torch.float32: give torch.int8"),
        (lambda: kernels.w8a16_matmul(MATRIX, CODES, SCALES[:, 0]), r"scale has shape \(4,\): give \(4, 1\)"),
        (lambda: kernels.w8a16_matmul(MATRIX, CODES, SCALES.double()), "scale is torch.float64: give torch.float32"),
        (lambda: kernels.w8a16_matmul(MATRIX.clone().requires_grad_(), CODES, SCALES), "x requires a gradient"),
        (lambda: kernels.lora_linear(MATRIX[:, :9], MATRIX, MATRIX, MATRIX[:, :4]), r"x has shape \(4, 9\)"),
        (lambda: kernels.lora_linear(MATRIX, MATRIX[0], MATRIX, MATRIX), "weight has 1 dimensions: give 2"),
        (
            lambda: kernels.lora_linear(MATRIX, MATRIX, MATRIX[:, :9], MATRIX),
            r"lora_a has shape \(4, 9\): give \(rank, 256\)",
        ),
        (lambda: kernels.lora_linear(MATRIX, MATRIX, torch.ones(200, 256), MATRIX), "the rank from 1 to 128"),
        (lambda: kernels.lora_linear(MATRIX, MATRIX, MATRIX, MATRIX), r"lora_b has shape \(4, 256\): give \(4, 4\)"),
        (
            lambda: kernels.lora_linear(MATRIX, MATRIX.half(), MATRIX, MATRIX),
            "weight is torch.float16 but x is torch.float32",
        ),
    ],
)
def test_what_cannot_be_served_is_named(caught, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert not caught


def test_fp8_asks_for_a_gpu_that_has_it(monkeypatch):
    from tilescope_kernels._shared.one_byte import check_has_fp8

    class OnGpu:
        is_cuda, device = True, "cuda:0"

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ValueError, match=r"x is on an sm_86: FP8 .* needs sm_89 or later"):
        check_has_fp8(OnGpu(), "x")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    check_has_fp8(OnGpu(), "x")


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    x = torch.randn(200, 300)
    for granularity in ("tensor", "row", "block", "tile"):
        q, scale = kernels.quantize(x, torch.int8, granularity)
        assert (kernels.dequantize(q, scale, torch.float32) - x).abs().max() <= 0.51 * scale.max()

    codes, absmax = kernels.nf4_quantize(x)
    assert (kernels.nf4_dequantize(codes, absmax, x.shape, torch.float32) - x).abs().max() <= 0.153 * absmax.max()
    product = kernels.fp8_matmul(EIGHT, EIGHT.T, ONE, 2 * ONE)
    assert torch.equal(product, torch.full((4, 4), 32.0, dtype=torch.bfloat16))
    assert torch.equal(kernels.int8_matmul(CODES, CODES.T), torch.full((4, 4), 256, dtype=torch.int32))
    product = kernels.int8_matmul(CODES, CODES.T, SCALES, 2 * SCALES.T, dtype=torch.float32)
    assert torch.equal(product, torch.full((4, 4), 512.0))
    y = kernels.w8a16_matmul(MATRIX, CODES, 2 * SCALES)
    assert torch.equal(y, torch.full((4, 4), 512.0))
    y = kernels.lora_linear(MATRIX, MATRIX, MATRIX, MATRIX[:, :4], 0.5)
    assert torch.equal(y, torch.full((4, 4), 256.0 + 0.5 * 256 * 4))


def test_costs_of_quantization():
    def moved(name: str, workload: str) -> tuple[int, int]:
        cost = SPECS[name].cost(SPECS[name].workload(workload), FORWARD)
        return cost.bytes_read, cost.bytes_written

    assert moved("int8_rows", "10x300-bf16") == (6000, 3000 + 40)
    assert moved("int8_tensor", "10x300-bf16") == (6000, 3000 + 4)
    assert moved("fp8_blocks", "10x300-bf16") == (6000, 3000 + 4 * 30)
    assert moved("fp8_tiles", "130x300-fp32") == (156000, 39000 + 4 * 6)
    assert moved("fp8_dequantize", "10x300-bf16") == (3000 + 4 * 30, 6000)
    assert moved("nf4_dequantize", "10x300-bf16") == (1500 + 4 * 47, 6000)


def test_costs_of_fp8_products():
    for name, scales in (("fp8_matmul", 2), ("fp8_matmul_rows", 10 + 300), ("fp8_matmul_blocks", 10 * 2 + 2 * 3)):
        cost = SPECS[name].cost(SPECS[name].workload("10x300x200-fp8"), FORWARD)
        assert (cost.flops, cost.pipe) == (2 * 10 * 300 * 200, "fp8")
        assert (cost.bytes_read, cost.bytes_written) == (10 * 200 + 300 * 200 + 4 * scales, 2 * 10 * 300)


def test_costs_of_int8_products():
    for name, read, written in (("int8_matmul", 0, 4), ("int8_matmul_rows", 4 * (10 + 300), 2)):
        cost = SPECS[name].cost(SPECS[name].workload("10x300x200-int8"), FORWARD)
        assert (cost.flops, cost.pipe) == (2 * 10 * 300 * 200, "int8")
        assert (cost.bytes_read, cost.bytes_written) == (10 * 200 + 300 * 200 + read, written * 10 * 300)


def test_costs_of_products_with_int8_weights():
    cost = SPECS["w8a16_matmul"].cost(SPECS["w8a16_matmul"].workload("10x300x200-bf16"), FORWARD)
    assert (cost.flops, cost.pipe) == (2 * 10 * 300 * 200 + 10 * 300, "bf16")
    assert (cost.bytes_read, cost.bytes_written) == (2 * 10 * 200 + 300 * 200 + 4 * 300, 2 * 10 * 300)


def test_costs_of_a_linear_layer_with_an_update():
    cost = SPECS["lora_linear"].cost(SPECS["lora_linear"].workload("10x300x200x16-bf16"), FORWARD)
    assert cost.flops == 2 * 10 * (300 * 200 + 200 * 16 + 16 * 300) + 10 * 16
    assert (cost.bytes_read, cost.bytes_written) == (2 * (2000 + 60000 + 3200 + 4800), 2 * 10 * 300)


def test_more_tiles_than_a_grid_s_second_axis_has_are_quantized_in_slabs(monkeypatch):
    grids, rows = [], []

    def launch(_, grid, *args, **__):
        grids.append(grid)
        rows.append((*map(len, args[:3]), args[4]))

    monkeypatch.setattr(quantization, "launch", launch)
    x = torch.empty(65535 * 128 + 1, 2, device="meta")
    quantization._quantize._launch.function(x, torch.int8, "tile", "")
    assert grids == [(1, 65535), (1, 1)]
    assert rows == [(65535 * 128, 65535, 65535 * 128, 65535 * 128), (1, 1, 1, 1)]


def test_the_update_of_more_rows_than_32_bits_reach_is_computed_in_parts(monkeypatch):
    given = []
    monkeypatch.setattr(
        lora, "launch_tuned", lambda kernel, grid, *args, **_: given.append((kernel, *map(len, args[:2])))
    )
    x, square = torch.empty(2**27 + 3, 16, device="meta"), torch.empty(16, 16, device="meta")
    y = lora._lora_linear._launch.function(x, square, square, square, 1.0, "")
    down, whole = lora.lora_down_kernel, lora.lora_linear_kernel
    assert given == [(kernel, rows, rows) for rows in (2**27, 3) for kernel in (down, whole)]
    assert y.shape == x.shape
