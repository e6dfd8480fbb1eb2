"""What can be said of the public functions and their declarations without running a kernel."""

from __future__ import annotations

import pytest
import tilescope_kernels as kernels
import torch
from tilescope_kernels import CATALOG
from tilescope_kernels.spec import BACKWARD, DTYPES, FORWARD, Workload

NAMES = [spec.name for spec in CATALOG]
SPEC_CONFIG = CATALOG[-1].implementations["triton"].configs[0]
MATRIX, ROW = torch.ones(4, 8), torch.ones(8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.vector_add(ROW, ROW), "x is on cpu: Triton needs a CUDA device"),
        (lambda: kernels.add_relu_mul(ROW, ROW, 2.0), "x is on cpu"),
        (lambda: kernels.softmax(MATRIX), "x is on cpu"),
        (lambda: kernels.layer_norm(MATRIX, 8), "x is on cpu"),
        (lambda: kernels.LayerNorm(8)(MATRIX), "x is on cpu"),
        (lambda: kernels.add_rms_norm(MATRIX, MATRIX, ROW), "x is on cpu"),
        (lambda: kernels.matmul(MATRIX, MATRIX.T), "a is on cpu"),
        (lambda: kernels.softmax(MATRIX.to("meta")), "x is on meta"),
        (lambda: kernels.softmax(MATRIX.double()), r"x is torch.float64: give torch.float32"),
        (lambda: kernels.softmax(MATRIX.long()), r"x is torch.int64"),
        (lambda: kernels.softmax([1.0]), "x must be a tensor, not list"),
        (lambda: kernels.vector_add(ROW, ROW.half()), r"y is torch.float16 but x is torch.float32"),
        (lambda: kernels.vector_add(ROW, ROW.to("meta")), "y is on meta but x is on cpu"),
    ],
)
def test_what_cannot_be_served_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def caught(monkeypatch):
    """Launches that would happen are counted instead, so that argument checks past the device's are reached."""
    from triton.runtime import jit

    seen = []
    monkeypatch.setattr(jit.JITFunction, "run", lambda self, *args, **kwargs: seen.append(self.fn.__name__))
    return seen


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.vector_add(ROW, MATRIX), r"y has shape \(4, 8\) but x has \(8,\)"),
        (lambda: kernels.vector_add(ROW.clone().requires_grad_(), ROW), "x requires a gradient and vector_add has none"),
        (lambda: kernels.add_relu_mul(ROW, MATRIX, 1.0), r"y has shape \(4, 8\)"),
        (lambda: kernels.add_relu_mul(ROW, ROW, torch.ones(())), "scale is a tensor"),
        (lambda: kernels.softmax(MATRIX, 2), "dim is 2: x has 2 dimensions, so give -2 to 1"),
        (lambda: kernels.softmax(torch.ones(9, 20000), config={"ROWS": 4, "num_warps": 4}), "ROWS=4"),
        (lambda: kernels.layer_norm(MATRIX, 7), r"normalized_shape is \(7,\) but x has shape \(4, 8\)"),
        (lambda: kernels.layer_norm(MATRIX, ()), "normalized_shape is"),
        (lambda: kernels.layer_norm(MATRIX, 8, torch.ones(4)), r"weight has shape \(4,\)"),
        (lambda: kernels.layer_norm(MATRIX, 8, ROW, torch.ones(4)), r"bias has shape \(4,\)"),
        (lambda: kernels.layer_norm(torch.ones(1, 40000), 40000), "normalized_shape holds 40000 elements: at most 32768"),
        (lambda: kernels.add_rms_norm(MATRIX, ROW, ROW), r"residual has shape \(8,\)"),
        (lambda: kernels.add_rms_norm(MATRIX, MATRIX, torch.ones(4)), r"weight has shape \(4,\)"),
        (lambda: kernels.add_rms_norm(torch.ones(1, 20000), torch.ones(1, 20000), torch.ones(20000)), "x has 20000 columns"),
        (lambda: kernels.matmul(MATRIX, MATRIX.T, config=SPEC_CONFIG), "config has TMA=1"),
        (lambda: kernels.matmul(ROW, MATRIX), "a has 1 dimensions"),
        (lambda: kernels.matmul(MATRIX, MATRIX), "b has 4 rows but a has 8 columns"),
    ],
)  # fmt: skip
def test_shapes_and_options_that_do_not_fit_are_named(caught, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert not caught


def test_launches_that_are_caught_need_no_gpu(caught):
    for place in ("cpu", "meta"):
        kernels.softmax(MATRIX.to(place))
        kernels.matmul(MATRIX.to(place), MATRIX.T.to(place))
    assert caught == ["softmax_rows_kernel", "matmul_kernel"] * 2


def test_nothing_is_launched_for_empty_tensors(caught):
    empty, row = torch.empty(0, 8), ROW
    kernels.vector_add(empty, empty)
    kernels.softmax(empty)
    kernels.layer_norm(empty, 8, row)
    kernels.add_rms_norm(empty, empty, row)
    kernels.matmul(empty, MATRIX.T)
    assert not caught


def test_plain_pytorch_where_triton_is_switched_off(monkeypatch):
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    x = torch.randn(4, 8)
    torch.testing.assert_close(kernels.vector_add(x, x), x + x)
    torch.testing.assert_close(kernels.add_relu_mul(x, x, 3.0), torch.relu(2 * x) * 3)
    torch.testing.assert_close(kernels.softmax(x, 0), x.softmax(0))
    torch.testing.assert_close(kernels.layer_norm(x, (4, 8)), torch.nn.functional.layer_norm(x, (4, 8)))
    torch.testing.assert_close(kernels.LayerNorm(8)(x), torch.nn.LayerNorm(8)(x))
    normed, total = kernels.AddRMSNorm(8)(x, x)
    torch.testing.assert_close(total, x + x)
    torch.testing.assert_close(normed, torch.nn.functional.rms_norm(x + x, (8,), eps=1e-6))
    torch.testing.assert_close(kernels.matmul(x, x.T), x @ x.T)


def test_catalog_names_every_kernel_once():
    assert NAMES == ["vector_add", "add_relu_mul", "softmax", "layer_norm", "add_rms_norm", "matmul"]


@pytest.mark.parametrize("spec", CATALOG, ids=NAMES)
def test_declarations_are_whole(spec):
    labels = [workload.label for workload in spec.workloads]
    assert len(set(labels)) == len(labels)
    assert {"small", "medium", "large", "ragged"} <= set(labels)
    assert len({workload.id for workload in spec.workloads}) == len(labels)
    assert {"triton", "eager", "compile"} <= set(spec.implementations)
    configs = spec.implementations["triton"].configs
    assert len(configs) > 4
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    assert {"fp32", "fp16", "bf16"} <= set(spec.tolerance)
    for workload in spec.workloads:
        assert tuple(workload.dims) == spec.dims
        for direction in spec.passes:
            assert spec.cost(workload, direction).bytes > 0


@pytest.mark.parametrize("spec", CATALOG, ids=NAMES)
def test_inputs_follow_the_seed_the_dtype_and_the_device(spec):
    def draw(seed: int, dtype: str = "fp32", device: str = "cpu"):
        return spec.inputs(Workload(dict.fromkeys(spec.dims, 5), dtype, seed), device)

    tensors = [name for name, value in draw(0).items() if torch.is_tensor(value)]
    for name in tensors:
        assert torch.equal(draw(0)[name], draw(0)[name])
        assert not torch.equal(draw(0)[name], draw(1)[name])
        assert draw(0, device="meta")[name].is_meta
        assert draw(0)[name].requires_grad == (BACKWARD in spec.passes)
        for dtype, (torch_name, _) in DTYPES.items():
            if dtype in spec.tolerance:
                assert draw(0, dtype)[name].dtype == getattr(torch, torch_name)
    assert len({tuple(draw(0)[name].flatten().tolist()) for name in tensors}) == len(tensors)


@pytest.mark.parametrize("spec", CATALOG, ids=NAMES)
def test_eager_and_aten_agree_with_the_reference(spec):
    inputs = spec.inputs(Workload({name: 37 + i for i, name in enumerate(spec.dims)}, "fp32"), "cpu")
    expected = spec.reference(**inputs)
    for name in {"eager", "aten"} & set(spec.implementations):
        torch.testing.assert_close(spec.implementations[name].call(**inputs), expected, rtol=1e-4, atol=1e-5)


def test_costs_are_the_analytic_counts():
    by_name = {spec.name: spec for spec in CATALOG}
    ragged = by_name["softmax"].workload("ragged")
    assert ragged.id == "1823x781-fp32"
    forward = by_name["softmax"].cost(ragged, FORWARD)
    assert (forward.bytes_read, forward.bytes_written) == (5_695_052, 5_695_052)
    large = by_name["matmul"].workload("large")
    assert by_name["matmul"].cost(large, FORWARD).flops == 137_438_953_472
    assert by_name["matmul"].cost(large, FORWARD).pipe == "bf16"
    norm = by_name["layer_norm"].cost(Workload({"rows": 10, "columns": 100}, "bf16"), BACKWARD)
    assert (norm.bytes_read, norm.bytes_written) == (2 * 2000 + 200, 2000 + 400)
