"""Public functions and their declarations, without running a kernel."""

import importlib
import pkgutil

import pytest
import tilescope_kernels as kernels
import torch
from tilescope.execution import launches
from tilescope_kernels import CATALOG
from tilescope_kernels.spec import DTYPES, FORWARD, KernelSpec, Workload

NAMES = [spec.name for spec in CATALOG]
SPEC_CONFIG = CATALOG[NAMES.index("matmul")].implementations["triton"].configs[0]
HEADS, TABLE, CLASSES = torch.ones(2, 4, 3, 8), torch.ones(1, 3, 8), torch.zeros(4, dtype=torch.int64)
MATRIX, ROW = torch.ones(4, 8), torch.ones(8)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: kernels.histogram(CLASSES, 8), "x is torch.int64: give torch.int32"),
    (lambda: kernels.softmax(MATRIX.double()), r"x is torch.float64: give torch.float32"),
    (lambda: kernels.softmax([1.0]), "x must be a tensor, not list"),
    (lambda: kernels.vector_add(ROW, ROW.half()), r"y is torch.float16 but x is torch.float32"),
    (lambda: kernels.vector_add(ROW, ROW.to("meta")), "y is on meta but x is on cpu"),
])  # fmt: skip
def test_function_of_an_unserved_tensor_names_it(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(("call", "message"), [
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
    (lambda: kernels.add_rms_norm(MATRIX, ROW, ROW), r"residual has shape \(8,\)"),
    (lambda: kernels.add_rms_norm(MATRIX, MATRIX, torch.ones(4)), r"weight has shape \(4,\)"),
    (lambda: kernels.matmul(MATRIX, MATRIX.T, config=SPEC_CONFIG), "config has TMA=1"),
    (lambda: kernels.matmul(ROW, MATRIX), "a has 1 dimensions"),
    (lambda: kernels.gelu(ROW, "erf"), "approximate is 'erf': give 'none' or 'tanh'"),
    (lambda: kernels.swiglu(MATRIX, ROW), r"up has shape \(8,\) but gate has \(4, 8\)"),
    (lambda: kernels.rope(MATRIX, HEADS, TABLE, TABLE), "q has 2 dimensions"),
    (lambda: kernels.rope(HEADS, HEADS[:1], TABLE, TABLE), r"k has shape \(1, 4, 3, 8\): give \(2, heads, 3, 8\)"),
    (lambda: kernels.rope(HEADS[..., :7], HEADS[..., :7], TABLE, TABLE), "q has 7 columns a head"),
    (lambda: kernels.rope(HEADS, HEADS, TABLE, TABLE[..., :4]), r"sin has shape \(1, 3, 4\)"),
    (lambda: kernels.rope(HEADS.mT.contiguous().mT, HEADS, TABLE, TABLE, inplace=True), "q has elements 3 apart"),
    (lambda: kernels.rope(HEADS, HEADS, TABLE.clone().requires_grad_(), TABLE), "cos requires a gradient"),
    (lambda: kernels.row_sum(MATRIX.clone().requires_grad_()), "x requires a gradient and row_sum has none"),
    (lambda: kernels.row_sum(torch.ones(())), "x has no dimension"),
    (lambda: kernels.online_max(torch.ones(3, 0)), r"x has shape \(3, 0\)"),
    (lambda: kernels.histogram(CLASSES.int(), 5000), "bins is 5000: at most 4096"),
    (lambda: kernels.histogram(CLASSES.int(), -1), "bins is -1"),
    (lambda: kernels.rms_norm(MATRIX, 7), r"normalized_shape is \(7,\) but x has shape \(4, 8\)"),
    (lambda: kernels.rms_norm(MATRIX, 8, torch.ones(4)), r"weight has shape \(4,\)"),
    (lambda: kernels.cross_entropy(MATRIX, CLASSES[:3]), r"target has shape \(3,\)"),
    (lambda: kernels.cross_entropy(MATRIX, MATRIX), r"target is torch.float32: give torch.int64"),
    (lambda: kernels.linear_cross_entropy(MATRIX, MATRIX, CLASSES, weight=ROW), "weight is given"),
    (lambda: kernels.linear_cross_entropy(MATRIX, MATRIX, CLASSES, chunk_rows=-1), "chunk_rows is -1"),
    (lambda: kernels.cross_entropy(MATRIX, CLASSES, ROW[:7]), r"weight has shape \(7,\): give one number a class, \(8,\)"),
    (lambda: kernels.cross_entropy(MATRIX, CLASSES, ROW.long()), "weight is torch.int64"),
    (lambda: kernels.cross_entropy(MATRIX, CLASSES, ROW.to("meta")), "weight is on meta"),
    (lambda: kernels.cross_entropy(MATRIX, CLASSES, ROW.clone().requires_grad_()), "weight requires a gradient"),
    (lambda: kernels.cross_entropy(MATRIX, CLASSES, reduction="average"), "reduction is 'average'"),
    (lambda: kernels.cross_entropy(MATRIX, CLASSES, label_smoothing=2.0), "label_smoothing is 2.0"),
    (lambda: kernels.linear_cross_entropy(MATRIX, MATRIX.T, CLASSES), r"linear_weight has shape \(8, 4\)"),
    (lambda: kernels.linear_cross_entropy(MATRIX, MATRIX, CLASSES, linear_bias=ROW), r"linear_bias has shape \(8,\)"),
    (lambda: kernels.linear_cross_entropy(MATRIX.clone().requires_grad_(), MATRIX, CLASSES, reduction="none"), "no gradient"),
    (lambda: kernels.matmul(MATRIX, MATRIX), "b has 4 rows but a has 8 columns"),
])  # fmt: skip
def test_function_of_a_wrong_shape_or_option_names_it(caught, call, message):
    with pytest.raises(ValueError, match=message):
        call()
    assert not caught


def test_function_while_launches_are_caught_needs_no_gpu(caught):
    for place in ("cpu", "meta"):
        with launches.ThroughCustomOps():
            kernels.softmax(MATRIX.to(place))
            kernels.matmul(MATRIX.to(place), MATRIX.T.to(place))
    assert caught == ["softmax_rows_kernel", "matmul_kernel"] * 2


def test_function_of_empty_tensors_launches_nothing(caught):
    empty, row = torch.empty(0, 8), ROW
    kernels.vector_add(empty, empty)
    kernels.softmax(empty)
    kernels.layer_norm(empty, 8, row)
    kernels.add_rms_norm(empty, empty, row)
    kernels.matmul(empty, MATRIX.T)
    kernels.gelu(empty)
    kernels.swiglu(empty, empty)
    kernels.rope(HEADS[:0], HEADS[:0], TABLE, TABLE)
    kernels.row_sum(empty)
    kernels.online_max(empty)
    kernels.histogram(empty[:, 0].int(), 8)
    kernels.rms_norm(empty, 8, row)
    kernels.cross_entropy(empty, CLASSES[:0], reduction="none")
    assert not caught
    # A mean of nothing is a number, NaN, which somebody has to write.
    kernels.cross_entropy(empty, CLASSES[:0])
    assert caught == ["reduce_losses_kernel"]


def test_modules_and_rotation_in_place_with_triton_off_are_pytorchs(monkeypatch):
    """The other modules have tests in the interpreter, and the functions that they call have them in test_every_kernel."""
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    x = torch.randn(4, 8)
    normed = torch.nn.functional.rms_norm(x + x, (8,), eps=1e-6)
    torch.testing.assert_close(kernels.AddRMSNorm(8)(x, x), (normed, x + x))
    turned = kernels.rope(HEADS.clone(), HEADS.clone(), 0 * TABLE, TABLE, inplace=True)[0]
    torch.testing.assert_close(turned, torch.cat((-HEADS[..., :4], HEADS[..., 4:]), -1))


def test_catalog_names_every_kernel_once():
    declared = set()
    for module in pkgutil.walk_packages(kernels.__path__, "tilescope_kernels."):
        values = vars(importlib.import_module(module.name)).values()
        declared |= {value.name for value in values if isinstance(value, KernelSpec)}
    assert sorted(NAMES) == sorted(declared)
    assert [spec for family in kernels.FAMILIES.values() for spec in family] == list(CATALOG)


@pytest.mark.parametrize("spec", CATALOG, ids=NAMES)
def test_spec_is_whole(spec):
    labels = [workload.label for workload in spec.workloads]
    assert len(set(labels)) == len(labels)
    assert {"small", "medium", "large", "ragged"} <= set(labels)
    assert len({workload.id for workload in spec.workloads}) == len(labels)
    # A loop over sequences, whose bounds it reads on the host, is nothing to compile.
    expected = {"triton", "eager"} if spec.name == "ragged_attention" else {"triton", "eager", "compile"}
    assert expected <= set(spec.implementations)
    configs = spec.implementations["triton"].configs
    assert len(configs) > 2
    assert len({tuple(config.items()) for config in configs}) == len(configs)
    # Operands of one byte are of that dtype alone.
    assert {"fp32", "fp16", "bf16"} <= set(spec.tolerance) or {w.dtype for w in spec.workloads} == set(spec.tolerance)
    for workload in spec.workloads:
        assert tuple(workload.dims) == spec.dims
        for direction in spec.passes:
            assert spec.cost(workload, direction).bytes > 0 or workload.elements == 0


@pytest.mark.parametrize("spec", CATALOG, ids=NAMES)
def test_spec_inputs_follow_seed_dtype_and_device(spec):
    first = next(iter(spec.tolerance))

    def draw(seed, dtype=first, device="cpu"):
        return spec.inputs(Workload(dict.fromkeys(spec.dims, 6), dtype, seed), device)

    # Rotary tables follow from positions alone, and keys of packed sequences are where their queries are; codes and their scales
    # have dtypes of their own.
    derived = ("cos", "sin", "cu_seqlens_k")
    tensors = [name for name, value in draw(0).items() if torch.is_tensor(value) and name not in derived]
    coded = {name for name in tensors if draw(0)[name].element_size() == 1 or "scale" in name or name == "absmax"}
    for name in tensors:
        assert torch.equal(draw(0)[name], draw(0)[name])
        assert not torch.equal(draw(0)[name], draw(1)[name])
        assert draw(0, device="meta")[name].is_meta
        floating = draw(0)[name].is_floating_point()
        frozen = (spec.name, name) == ("lora_linear", "weight")
        assert draw(0)[name].requires_grad == (floating and spec.passes != (FORWARD,) and not frozen)
        for dtype, (torch_name, _) in DTYPES.items():
            if dtype in spec.tolerance and floating and name not in coded:
                assert draw(0, dtype)[name].dtype == getattr(torch, torch_name)
    assert len({tuple(draw(0)[name].flatten().tolist()) for name in tensors}) == len(tensors)


@pytest.mark.parametrize("spec", CATALOG, ids=NAMES)
def test_spec_eager_and_aten_agree_with_reference(spec):
    inputs = spec.inputs(
        Workload({name: 12 + 2 * i for i, name in enumerate(spec.dims)}, next(iter(spec.tolerance))), "cpu"
    )

    def outputs(call):
        result = call(**inputs)
        tensors = result if isinstance(result, tuple) else (result,)
        return [tensor.float() if tensor.element_size() == 1 else tensor for tensor in tensors]

    for name in {"eager", "aten"} & set(spec.implementations):
        called = outputs(spec.implementations[name].call)
        # Without fp32 there is a 16-bit result, which may have been rounded twice.
        rtol = 1e-4 if "fp32" in spec.tolerance else 2e-2
        torch.testing.assert_close(called, outputs(spec.reference), rtol=rtol, atol=1e-5)
