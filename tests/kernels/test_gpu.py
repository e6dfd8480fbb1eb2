"""Every kernel on a GPU against its reference in fp64, in every dtype, forward and backward."""

import pytest
import torch
from tilescope.execution import execute
from tilescope_kernels import matmul, softmax
from triton.runtime.errors import OutOfResources

from . import on_gpu
from .checks import SPECS

pytestmark = on_gpu.MARKS

ROWS = ("1x1", "300x1000", "1823x781", "3x100000")
EXTENTS = ("1x1x1", "1024x528x1024", "1023x517x769", "300x4096x4096")
SHAPES = {
    "vector_add": ("1", "65536", "1423763"),
    "add_relu_mul": ("1", "65536", "1423763"),
    # One read of 16 and 32 bits, recomputed exponentials, online; backward in one read and in blocks.
    "softmax": (
        "64x64", "1823x781", "512x4096", "64x16384", "16x32768", "16x65536", "300x5120", "131x12289", "33x32001", "40x100003",
    ),
    # Sums beside a row read once, beside a row read twice, and of rows in parts.
    "layer_norm": (
        "64x64", "1823x781", "2048x4096", "256x16384", "300x12288", "131x12304", "700x5120", "3000x1024", "70x9001",
        "300x65536", "7x100003", "40x100016", "1100x1029", "300x12289",
    ),
    "add_rms_norm": (
        "64x64", "1823x781", "2048x4096", "256x16384", "300x5120", "130x2056", "300x20480", "7x100003", "70x20484",
    ),
    # Few tiles, and rows that do not start at 16 bytes, too.
    "matmul": (
        "1x1x1", "512x512x512", "1x8192x8192", "16x1024x32768", "17x5000x7000", "1023x1025x1027", "3000x3001x777", "4097x4099x4101",
        "1024x2048x512", "1023x517x769",
    ),
    "gelu": ("1", "65536", "1423763"),
    "dropout": ("1", "65536", "1423763"),
    # A group in a tile, in many, and in tiles of channels and positions that are not full.
    "group_norm": ("2x32x40x64", "2x32x10x4096", "13x7x6x781", "1x4x4x300000", "3x2x35x1000", "2x64x1x49", "4x2x4x1"),
    "swiglu": ("1x1", "64x64", "1823x781", "128x14336"),
    "geglu": ("1x1", "64x64", "1823x781", "128x14336"),
    "rope": ("1x1x1x1x2", "3x7x3x781x80", "2x32x8x130x128", "1x4x4x64x64"),
    "row_sum": ("1x1", "64x64", "1823x781", "2048x4096", "8x100000"),
    "online_max": ("1x1", "64x64", "1823x781", "2048x4096", "8x100000", "9x50257"),
    "histogram": ("1x1x0", "65536x256x0", "1423763x1000x50", "1000003x4096x100"),
    "rms_norm": (
        "64x64", "1823x781", "2048x4096", "256x16384", "300x5120", "130x2056", "5000x128", "300x65536", "7x100003", "1x524288",
        "1300x2051", "300x12289",
    ),
    # Fewer classes than a warp reads, a ragged row, and language models' vocabularies: rows start at 16 bytes, or not.
    "cross_entropy": ("7x3", "1823x781", "130x128256", "9x31999", "9x50257", "9x128257", "300x32001"),
    "linear_cross_entropy": ("7x8x3", "781x130x1823", "600x256x32000"),
    # Backward in one launch, and of small problems on Hopper.
    "attention": (
        "1x1x2x3x2x16", "1x3x2x517x769x64", "2x2x4x1024x1024x128", "1x2x1x130x70x32", "1x2x1x1000x3x128",
        "1x12x1x512x500x64", "1x3x2x100x300x96", "2x8x1x1000x1000x128", "2x8x2x1024x1000x64",
    ),
    "causal_attention": (
        "1x1x2x3x2x16", "1x3x2x781x781x64", "2x2x4x1024x1024x128", "1x2x1x130x70x32", "1x2x1x70x1000x128",
        "1x2x3x300x300x96", "2x8x1x1000x1000x128",
    ),
    "ragged_attention": ("1x1x2x3x16", "9x3x2x517x64", "16x4x1x1024x128", "3x2x1x130x32", "5x2x3x300x96"),
    "paged_attention": ("1x1x1x1x3x16x16", "3x2x3x2x517x24x96", "7x2x4x1x2000x16x128", "2x1x8x1x20000x64x128"),
    # Through pointers (odd channels) and rectangles; more taps than pixels.
    "conv2d": ("1x1x1x1x1x1", "3x72x37x29x96x3", "4x128x56x56x130x3", "2x7x20x21x9x5", "1x24x3x2x40x7"),
    "depthwise_conv2d": ("1x1x1x1x1x1", "3x73x37x29x5x2", "4x144x56x56x3x2", "2x96x30x31x7x1", "1x24x3x2x9x1"),
    "layer_norm_linear": ("70x24x40", "3000x512x2048", "517x769x1023", "3001x261x263", "300x4096x264"),
    "rms_norm_gelu_linear": ("7x24x40", "517x769x1023", "5000x512x2048"),
    "tma_copy": ("1x16", "1823x784", "4096x4096"),
    "strided_copy": ("1x1", "1423763x7", "65536x32", "5x100"),
    "block_reduction": ("1x1", "1823x781", "2048x4096", "17x50000"),
    "mlp_compile_modes": ("1x16x24", "517x769x1023", "256x512x1024"),
    "mlp_compile_regions": ("1x16x24x1", "517x769x1023x3", "256x512x1024x2"),
    **dict.fromkeys(("int8_tensor", "fp8_tensor", "int8_rows", "fp8_rows", "fp8_blocks", "fp8_tiles"), ROWS),
    **dict.fromkeys(("int8_dequantize", "fp8_dequantize", "nf4_dequantize"), ROWS),
    **dict.fromkeys(("fp8_matmul", "fp8_matmul_rows", "fp8_matmul_blocks", "int8_matmul", "int8_matmul_rows"), EXTENTS),
    "w8a16_matmul": ("1x1x1", "16x4096x4096", "37x517x769", "512x528x1024"),
    "lora_linear": ("1x1x1x1", "1024x528x1024x16", "1023x517x769x24", "300x512x512x128"),
}  # fmt: skip


def dtypes(name):
    return ["int32"] if name == "histogram" else list(SPECS[name].tolerance)


#: Two problems in every dtype, the others in the last.
CASES = [
    (name, shape, dtype)
    for name, shapes in SHAPES.items()
    for place, shape in enumerate(shapes)
    for dtype in dtypes(name)[0 if place in (1, len(shapes) - 1) else -1 :]
]


def against_reference(name, shape, dtype="", config=None, impl="triton"):
    """``shape`` in this dtype, or in the kernel's last."""
    if f"sm_{on_gpu.CAPABILITY[0]}{on_gpu.CAPABILITY[1]}" not in SPECS[name].targets:
        pytest.skip(f"{name} is not for this GPU")
    workload = f"{shape}-{dtype or dtypes(name)[-1]}"
    try:
        # LoRA's gradients have a test of their own: the declared tolerance is its output's.
        on_gpu.against_reference(name, workload, config, impl=impl, backward=name != "lora_linear")
    except OutOfResources:
        pytest.skip("needs more shared memory than this GPU has")
    except RuntimeError as error:
        if impl not in ("cublas", "cudnn", "fa2"):
            raise
        pytest.skip(f"no {impl} here: {str(error).splitlines()[0]}")


@pytest.mark.parametrize(("name", "shape", "dtype"), CASES, ids=["-".join(case) for case in CASES])
def test_triton_equals_the_reference(name, shape, dtype):
    against_reference(name, shape, dtype)


OTHERS = [(name, impl) for name in SHAPES for impl in SPECS[name].implementations if impl != "triton"]


@on_gpu.INDUCTOR
@pytest.mark.parametrize(("name", "impl"), OTHERS, ids=["-".join(other) for other in OTHERS])
def test_other_implementation_equals_the_reference(name, impl):
    if execute.missing(SPECS[name].implementations[impl]):
        pytest.skip(f"{impl} is not installed")
    # Twice: a CUDA graph is recorded before it is replayed.
    for config in SPECS[name].implementations[impl].configs or (None, None):
        against_reference(name, SHAPES[name][1], config=config, impl=impl)


def some_configs(name):
    """Every config of kernels with few, and every n-th of the products' sweeps, which take a compilation each."""
    configs = SPECS[name].implementations["triton"].configs
    return configs[:: 1 + len(configs) // 24]


CONFIGS = [(name, config) for name in SHAPES for config in some_configs(name)]


@pytest.mark.parametrize(("name", "config"), CONFIGS, ids=str)
def test_config_equals_the_reference(name, config):
    # Two places of the columns of a head, and of what is cut.
    served = 0
    for shape in ["300x1000"] if len(SPECS[name].dims) == 2 else SHAPES[name][1:5]:
        try:
            against_reference(name, shape, config=config)
        except ValueError as error:
            if "do not allow" not in str(error):
                raise
        else:
            served += 1
        if served == 2:
            return
    assert served, "no shape of the kernel has this config"


def test_a_product_whose_rows_are_far_apart():
    """Offsets within a tile of the result pass 2^31."""
    if torch.cuda.mem_get_info()[0] < 6e9:
        pytest.skip("needs 6 GB")
    a, b = (
        torch.ones(64, 1, device="cuda", dtype=torch.half),
        torch.ones(1, 34_200_000, device="cuda", dtype=torch.half),
    )
    c = matmul(a, b)
    assert all(bool((row == 1).all()) for row in c[::9])


def test_softmax_special_values():
    for columns in (6, 40000, 70000):
        x = torch.randn(5, columns, device="cuda", dtype=torch.bfloat16)
        x[0] = float("-inf")
        x[1, 1] = float("nan")
        x[2, 2] = float("inf")
        x[3] = torch.finfo(torch.bfloat16).min
        x[4, ::2] = float("-inf")
        torch.testing.assert_close(softmax(x), torch.softmax(x, -1), equal_nan=True, rtol=2e-2, atol=1e-3)


def test_waiting_programs_run_on_any_stream_and_in_graphs():
    x, dy = (torch.randn(300, 65536, device="cuda").bfloat16() for _ in range(2))
    weight = torch.randn(65536, device="cuda").bfloat16()
    _, stats = torch.ops.tilescope.layer_norm(x, weight, None, 1e-5, True, "")

    def backward():
        return torch.ops.tilescope.layer_norm_backward(dy, x, weight, stats, True, "")

    results = [backward()]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for stream in streams * 4:
        with torch.cuda.stream(stream):
            results.append(backward())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results.append(backward())
    graph.replay()
    torch.cuda.synchronize()
    for dx, sums in results[1:]:
        assert torch.equal(dx, results[0][0])
        assert torch.equal(sums, results[0][1])
