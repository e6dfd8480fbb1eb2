"""Low-precision kernels on a GPU against their references in fp64."""

import pytest
import torch
from tilescope_kernels import dequantize, fp8_matmul, int8_matmul, quantize, w8a16_matmul
from tilescope_kernels.matrix_products import fp8_blocks_hopper, w8a16_hopper

from . import on_gpu
from .checks import SPECS, outputs_of, relative_error
from .on_gpu import CAPABILITY

pytestmark = on_gpu.MARKS


def skip_elsewhere(name):
    if f"sm_{CAPABILITY[0]}{CAPABILITY[1]}" not in SPECS[name].targets:
        pytest.skip(f"{name} is not for this GPU")


@pytest.mark.parametrize("granularity", ["row", "tensor", "block", "tile"])
def test_codes_of_what_is_not_finite(granularity):
    x = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    x[1, 3], x[130, 5] = float("nan"), float("inf")
    q, scale = quantize(x, torch.int8, granularity)
    assert q[1, 3] == 0 and q[130, 5] == 0
    assert q.unique().numel() > 3 or granularity == "tensor"
    assert dequantize(q, scale, torch.float32)[130, 5].isnan()


@pytest.mark.skipif(CAPABILITY[0] != 9, reason="Hopper's tensor cores alone add FP8 up with 14 bits")
def test_precise_accumulation_is_more_precise():
    a, b = (torch.rand(512, 8192, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device="cuda")
    wanted = a.double() @ b.double().T
    fast, precise = (
        relative_error(fp8_matmul(a, b.T, one, one, dtype=torch.float32, use_fast_accum=fast), wanted)
        for fast in (True, False)
    )
    cublas = relative_error(torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True), wanted)
    # Sums of positive numbers lose most: an H200 truncates 13 % away here.
    assert precise < 1e-3 < fast < 2 * cublas


def ready(name, workload):
    """A kernel's inputs and its Triton implementation; skipped where the GPU cannot run it."""
    skip_elsewhere(name)
    spec = SPECS[name]
    return spec.inputs(spec.workload(workload), "cuda"), spec.implementations["triton"].call


@on_gpu.INDUCTOR
@pytest.mark.parametrize(("name", "workload"), [
    ("fp8_rows", "300x1000-bf16"), ("nf4_dequantize", "300x1000-bf16"), ("fp8_matmul", "1024x528x1024-fp8"),
    ("int8_matmul", "1024x528x1024-int8"), ("w8a16_matmul", "16x4096x4096-bf16"), ("lora_linear", "1024x528x1024x16-bf16"),
])  # fmt: skip
def test_functions_are_kept_whole_by_torch_compile(name, workload):
    inputs, call = ready(name, workload)
    expected = call(**inputs)
    found = torch.compile(call, fullgraph=True)(**inputs)
    for one, other in zip(outputs_of(found), outputs_of(expected), strict=True):
        assert one.dtype == other.dtype
        assert relative_error(one, other) <= 1e-2


@pytest.mark.skipif(CAPABILITY < (8, 9), reason="e4m3 on tensor cores begins with Ada")
@pytest.mark.parametrize(("extents", "order", "dtype"), [
    ((4100, 4104, 384), "cublas", torch.bfloat16), ((193 * 7, 129 * 24, 1040), "apart", torch.float16),
    ((1, 128 * 150, 256), "one", torch.bfloat16), ((192 * 150, 8, 640), "rows", torch.float16),
    ((4096, 4096, 16), "rows", torch.bfloat16), ((5000, 5000, 2064), "cublas", torch.float16),
])  # fmt: skip
def test_blocks_in_tiles_for_every_multiprocessor(extents, order, dtype):
    m, n, k = extents
    blocks, columns = -(-k // 128), -(-n // 128)
    numbers = torch.Generator("cuda").manual_seed(m + n + k)

    def scales(*shape):
        return torch.empty(shape, device="cuda").uniform_(0.01, 0.02, generator=numbers)

    a, b = (torch.randn(shape, device="cuda", generator=numbers).to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
    scale_a, scale_b = {
        "cublas": lambda: (scales(blocks, m).T, scales(columns, blocks).T),
        "rows": lambda: (scales(m, blocks), scales(blocks, columns)),
        "apart": lambda: (scales(2 * m, 3 * blocks)[::2, ::3], scales(5 * blocks, 7 * columns)[::5, ::7]),
        "one": lambda: (scales(1, 1).expand(m, blocks), scales(1, 1).expand(blocks, columns)),
    }[order]()
    expected = SPECS["fp8_matmul_blocks"].reference(a.double(), b.double().T, scale_a, scale_b)
    found = fp8_matmul(a, b.T, scale_a, scale_b, dtype=dtype)
    assert found.dtype == dtype
    # Half a unit of bf16's last place; by element, since a few wrong ones would be lost in a norm.
    torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-4)


@pytest.mark.skipif(CAPABILITY < (8, 9), reason="e4m3 on tensor cores begins with Ada")
@pytest.mark.parametrize("name", ["fp8_matmul", "fp8_matmul_rows"])
@pytest.mark.parametrize("extents", [
    (1, 8192, 8192), (13, 9008, 12000), (16, 1024, 32768), (100, 4000, 4112), (1024, 1024, 1024), (777, 520, 1040),
    (5, 20008, 1040),
])  # fmt: skip
def test_fp8_of_few_tiles(name, extents):
    workload = "x".join(map(str, extents)) + "-fp8"
    if extents[2] <= 8192:  # Hopper's tensor cores add up with 14 bits, which shows in long sums
        on_gpu.against_reference(name, workload)
    inputs, call = ready(name, workload)
    precise = {key: value.double() for key, value in inputs.items()}
    exact = fp8_matmul(**inputs, use_fast_accum=False)
    assert relative_error(exact, SPECS[name].reference(**precise)) <= SPECS[name].tolerance["fp8"]
    found = call(**inputs)
    assert all(torch.equal(call(**inputs), found) for _ in range(5))


@on_gpu.HOPPER
@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("extents", [(1, 136, 16), (100, 1000, 400), (3000, 4104, 1040)])
def test_hoppers_blocks_of_two_and_three_warpgroups(extents, groups):
    m, n, k = extents
    blocks = -(-k // 128)
    a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
    scale_a, scale_b = (
        torch.empty(shape, device="cuda").uniform_(0.01, 0.02) for shape in ((m, blocks), (blocks, -(-n // 128)))
    )
    found = [torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    for c in found:
        fp8_blocks_hopper.launch(a, b, c, scale_a, scale_b, groups)
    expected = SPECS["fp8_matmul_blocks"].reference(a.double(), b.double().T, scale_a, scale_b)
    torch.testing.assert_close(found[0].double(), expected, rtol=2**-8, atol=1e-4)
    assert torch.equal(*found)


@on_gpu.HOPPER
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("m", "n", "k"), [(4100, 4104, 1040), (20000, 392, 208)])
def test_hoppers_w8a16(m, n, k, dtype):
    x = torch.randn(m, 2 * k, device="cuda").to(dtype)[:, :k]
    codes = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8)
    scale = torch.rand(n, 1, device="cuda") / k**0.5 / 64
    x[0], x[m // 2, k // 2], x[m - 1, k - 1] = 0, float("inf"), float("nan")
    codes[:, k // 2] |= 1
    found = w8a16_matmul(x, codes, scale)
    expected = (x.double() @ (codes * scale).double().T).to(dtype).double()
    # Two units of the last place; by element, since a few wrong ones would be lost in a norm.
    last = torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=2 * last, atol=last, equal_nan=True)
    assert all(torch.equal(w8a16_matmul(x[1 : m // 2], codes, scale), found[1 : m // 2]) for _ in range(5))


@on_gpu.HOPPER
@pytest.mark.parametrize(("tiling", "dtype"), [
    ((32, 8), torch.bfloat16), ((128, 1), torch.float16), ((256, 2), torch.bfloat16), ((256, 1), torch.float16),
])  # fmt: skip
@pytest.mark.parametrize(("m", "n", "k"), [(33, 1000, 1040), (300, 4104, 4096), (1000, 5128, 1040)])
def test_hoppers_w8a16_in_every_tiling(m, n, k, tiling, dtype):
    x = torch.randn(m, 2 * k, device="cuda").to(dtype)[:, :k]
    codes = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8)
    scale = torch.rand(n, 1, device="cuda") / k**0.5 / 64
    found = [torch.full((m, n), float("nan"), device="cuda", dtype=dtype) for _ in range(2)]
    for y in found:
        w8a16_hopper.write_product(x, codes, y, scale, w8a16_hopper.Tiling(*tiling))
    expected = (x.double() @ (codes.double() * scale.double()).T).to(dtype).double()
    # Two units of the last place; by element, since a few wrong ones would be lost in a norm.
    last = torch.finfo(dtype).eps
    torch.testing.assert_close(found[0].double(), expected, rtol=2 * last, atol=last)
    assert torch.equal(*found)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(128, 4096, 4096), (37, 517, 769), (33, 1000, 1000), (700, 515, 4100), (17, 64, 8192)]
)
def test_w8a16_of_few_tiles_and_unaligned_rows(m, n, k):
    x = torch.randn(m, k, device="cuda").bfloat16()
    codes = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8)
    scale = torch.rand(n, 1, device="cuda") / k**0.5 / 64
    found = w8a16_matmul(x, codes, scale)
    assert relative_error(found, x.double() @ (codes.double() * scale.double()).T) <= 3e-3
    assert all(torch.equal(w8a16_matmul(x, codes, scale), found) for _ in range(5))


@pytest.mark.parametrize(("m", "n", "k"), [
    (1023, 520, 776), (300, 300, 301), (130, 4099, 4101), (1536, 1544, 1536), (1, 4096, 8192), (32, 20003, 1040),
])  # fmt: skip
def test_one_byte_elements_of_few_tiles_and_unaligned_rows(m, n, k):
    a, b = (torch.randint(-128, 128, (rows, k), device="cuda", dtype=torch.int8) for rows in (m, n))
    assert torch.equal(int8_matmul(a, b.T), (a.double() @ b.double().T).int())
    wide = torch.full((n, k + 48), 77, device="cuda", dtype=torch.int8)
    wide[:, :k] = b
    assert torch.equal(int8_matmul(a, wide[:, :k].T), (a.double() @ b.double().T).int())
    one = torch.ones((), device="cuda")
    a, b = (torch.randn(rows, k, device="cuda").to(torch.float8_e4m3fn) for rows in (m, n))
    assert relative_error(fp8_matmul(a, b.T, one, one), a.double() @ b.double().T) <= 1e-2
