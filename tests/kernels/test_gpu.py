"""Every kernel on a GPU against its reference in fp64, in every dtype, forward and backward."""

from __future__ import annotations

import pytest
import torch
from tilescope_kernels import CATALOG, layer_norm, softmax
from tilescope_kernels.spec import BACKWARD

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

SPECS = {spec.name: spec for spec in CATALOG}
SHAPES = {
    "vector_add": ("1", "65536", "1423763"),
    "add_relu_mul": ("1", "65536", "1423763"),
    # One read of 16 and 32 bits, recomputed exponentials, online; backward in one read and in blocks.
    "softmax": ("64x64", "1823x781", "512x4096", "64x16384", "16x32768", "16x65536", "8x100000"),
    # Sums beside a row read once, beside a row read twice, and by columns.
    "layer_norm": ("64x64", "1823x781", "2048x4096", "512x8192", "256x16384", "64x32768"),
    "add_rms_norm": ("64x64", "1823x781", "2048x4096", "512x8192", "256x16384"),
    "matmul": ("1x1x1", "512x512x512", "1023x517x769", "1024x2048x512"),
}
CASES = [
    (name, shape, dtype) for name, shapes in SHAPES.items() for shape in shapes for dtype in ("fp32", "fp16", "bf16")
]


def tuple_of(result):
    return result if isinstance(result, tuple) else (result,)


def relative_error(actual, expected):
    return float((actual.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp_min(1e-30))


def compare(name: str, workload: str, impl: str = "triton", **options):
    spec = SPECS[name]
    inputs = spec.inputs(spec.workload(workload), "cuda")
    precise = {
        key: value.detach().double().requires_grad_(value.requires_grad) if torch.is_tensor(value) else value
        for key, value in inputs.items()
    }
    tolerance = spec.tolerance[workload.split("-")[1]]
    outputs = tuple_of(spec.implementations[impl].call(**inputs, **options))
    expected = tuple_of(spec.reference(**precise))
    for out, wanted in zip(outputs, expected, strict=True):
        assert out.isfinite().all()
        assert relative_error(out, wanted) <= tolerance
    if BACKWARD in spec.passes:
        grads = [torch.randn_like(out) for out in outputs]
        leaves = [key for key, value in inputs.items() if torch.is_tensor(value) and value.requires_grad]
        actual = torch.autograd.grad(outputs, [inputs[key] for key in leaves], grads)
        wanted = torch.autograd.grad(expected, [precise[key] for key in leaves], [g.double() for g in grads])
        for key, one, other in zip(leaves, actual, wanted, strict=True):
            assert relative_error(one, other) <= 3 * tolerance, f"gradient of {key}"


@pytest.mark.parametrize(("name", "shape", "dtype"), CASES, ids=["-".join(case) for case in CASES])
def test_triton_against_the_reference(name, shape, dtype):
    if name == "layer_norm" and shape == "64x32768" and dtype == "fp32":
        pytest.skip("the widest fp32 rows take minutes in fp64 on small GPUs and add no path")
    compare(name, f"{shape}-{dtype}")


# Inductor imports what torch itself deprecates, and advises tf32 for the fp32 parts.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("impl", ["eager", "compile", "aten"])
@pytest.mark.parametrize("name", list(SPECS))
def test_the_other_implementations(name, impl):
    if impl not in SPECS[name].implementations:
        pytest.skip(f"{name} has no {impl}")
    compare(name, f"{SHAPES[name][1]}-bf16", impl)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "matmul"])
def test_every_config(name):
    shape = SHAPES[name][1] if len(SPECS[name].dims) == 1 else "300x1000"
    for config in SPECS[name].implementations["triton"].configs:
        compare(name, f"{shape}-bf16", config=config)


@pytest.mark.parametrize("which", range(0, len(SPECS["matmul"].implementations["triton"].configs), 9))
def test_some_configs_of_matmul(which):
    from triton.runtime.errors import OutOfResources

    config = SPECS["matmul"].implementations["triton"].configs[which]
    try:
        compare("matmul", "304x504x200-bf16", config=config)
    except OutOfResources:
        pytest.skip("needs more shared memory than this GPU has")


def test_softmax_special_values():
    for columns in (6, 40000, 70000):
        x = torch.randn(5, columns, device="cuda", dtype=torch.bfloat16)
        x[0] = float("-inf")
        x[1, 1] = float("nan")
        x[2, 2] = float("inf")
        x[3] = torch.finfo(torch.bfloat16).min
        x[4, ::2] = float("-inf")
        torch.testing.assert_close(softmax(x), torch.softmax(x, -1), equal_nan=True, rtol=2e-2, atol=1e-3)


def test_gradients_are_the_same_every_time():
    def gradients():
        spec = SPECS["layer_norm"]
        inputs = spec.inputs(spec.workload("1823x4096-bf16"), "cuda")
        leaves = [inputs[key] for key in ("x", "weight", "bias")]
        return torch.autograd.grad(layer_norm(leaves[0], 4096, *leaves[1:]).sum(), leaves)

    first = gradients()
    for _ in range(5):
        for one, other in zip(first, gradients(), strict=True):
            assert torch.equal(one, other)


def test_more_than_two_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GB of GPU memory")
    x = torch.zeros(2**31 // 4096 + 3, 4096, device="cuda", dtype=torch.bfloat16)
    x[-1] = torch.randn(4096, device="cuda")
    torch.testing.assert_close(softmax(x)[-1], torch.softmax(x[-1], -1), rtol=2e-2, atol=1e-4)
