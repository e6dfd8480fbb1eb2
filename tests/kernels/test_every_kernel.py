"""What holds for every kernel: its declared costs, that it asks for a GPU, and that it is PyTorch's without Triton.

Bytes are those of the tensors themselves: what the inputs hold, and what the plain implementation returns for them.
Operations are written down here anew, from the formula of each function, at extents of which no two are alike.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from tilescope_kernels import CATALOG
from tilescope_kernels.spec import BACKWARD, FORWARD, STEP, Workload

from . import checks

SPECS = {spec.name: spec for spec in CATALOG}
_EXTENTS = {
    "attention": {"batch": 2, "kv_heads": 3, "group": 2, "queries": 10, "keys": 14, "columns": 16},
    "causal_attention": {"batch": 2, "kv_heads": 3, "group": 2, "queries": 10, "keys": 14, "columns": 16},
    # A page of one key, so that a cache holds no more than its sequences' keys.
    "paged_attention": {"batch": 3, "kv_heads": 2, "group": 3, "queries": 5, "keys": 14, "page": 1, "columns": 16},
    "conv2d": {"batch": 2, "channels": 5, "height": 7, "width": 11, "filters": 6, "kernel": 3},
    "depthwise_conv2d": {"batch": 2, "channels": 5, "height": 7, "width": 11, "kernel": 3, "stride": 2},
}
_NOT_READ = {"w8a16_matmul": {"dequantized"}}  # what cuBLAS is given instead of the codes
#: Beside the outputs' gradients, what a backward pass must read: inputs and outputs by name.
_KEPT = {
    "gelu": ["x"], "swiglu": ["gate", "up"], "geglu": ["gate", "up"], "rope": ["cos", "sin"], "softmax": ["output"],
    "dropout": ["seed"], "group_norm": ["x", "weight"],
    "layer_norm": ["x", "weight"], "rms_norm": ["x", "weight"], "add_rms_norm": ["sum", "weight"],
    "matmul": ["a", "b"], "lora_linear": ["x", "weight", "lora_a", "lora_b"],
    "layer_norm_linear": ["x", "norm_weight", "norm_bias", "weight"], "rms_norm_gelu_linear": ["x", "norm_weight", "weight"],
    "attention": ["query", "key", "value", "output"], "causal_attention": ["query", "key", "value", "output"],
    "ragged_attention": ["query", "key", "value", "output", "cu_seqlens_q", "cu_seqlens_k"],
}  # fmt: skip


def workload(spec):
    extents = _EXTENTS.get(spec.name) or dict(zip(spec.dims, (10, 14, 6, 22, 26), strict=False))
    return Workload(extents, spec.workloads[0].dtype)


def tensors(spec):
    """The inputs that the kernel needs, and the outputs."""
    inputs: dict[str, Any] = spec.inputs(workload(spec), torch.device("cpu"))
    outputs = spec.implementations["eager"].call(**inputs)
    known = {name: value for name, value in inputs.items() if torch.is_tensor(value)}
    needed = {name: value for name, value in known.items() if name not in _NOT_READ.get(spec.name, ())}
    return needed, list(outputs) if isinstance(outputs, tuple) else [outputs]


def total(values):
    return sum(value.nbytes for value in values)


@pytest.mark.parametrize("name", SPECS)
def test_cost_forward_bytes_are_inputs_and_outputs(name):
    spec = SPECS[name]
    inputs, outputs = tensors(spec)
    cost = spec.cost(workload(spec), FORWARD)
    assert (cost.bytes_read, cost.bytes_written) == (total(inputs.values()), total(outputs))


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if BACKWARD in spec.passes])
def test_cost_backward_bytes_are_needed_tensors_and_gradients(name):
    spec = SPECS[name]
    inputs, outputs = tensors(spec)
    known = {**inputs, "output": outputs[0], "sum": outputs[-1]}
    gradients = [value for key, value in inputs.items() if value.requires_grad and key != "residual"]
    cost = spec.cost(workload(spec), BACKWARD)
    assert cost.bytes_read == total(outputs) + total(known[key] for key in _KEPT[name])
    assert cost.bytes_written == total(gradients)


@pytest.mark.parametrize("name", [name for name, spec in SPECS.items() if STEP in spec.passes])
def test_cost_step_bytes_are_inputs_loss_and_gradients(name):
    spec = SPECS[name]
    inputs, outputs = tensors(spec)
    cost = spec.cost(workload(spec), STEP)
    assert cost.bytes_read == total(inputs.values())
    assert cost.bytes_written == total(outputs) + total(value for value in inputs.values() if value.requires_grad)


def _rows(element, row=0):
    """So many operations an element and a row more, of rows x columns."""
    return lambda d: element * math.prod(d.values()) + row * d.get("rows", 0)


def _product(m="m", n="n", k="k"):
    return lambda d: 2 * d[m] * d[n] * d[k]


def _pairs(products, causal):
    """Of ``products`` products of all pairs of query and key, or those that a causal mask leaves."""

    def count(d):
        pairs = sum(min(i + 1, d["keys"]) if causal else d["keys"] for i in range(d["queries"]))
        return products * 2 * pairs * d["columns"] * d["batch"] * d["kv_heads"] * d["group"]

    return count


def _drawn(name, tensor, d):
    """What a tensor of integers holds of the inputs of a workload of so many sequences of so many rows."""
    few = {key: extent if key in ("sequences", "longest", "batch", "keys") else 1 for key, extent in d.items()}
    drawn: torch.Tensor = SPECS[name].inputs(Workload(few, "fp16"), torch.device("cpu"))[tensor]
    return list(map(int, drawn))


def _ragged_pairs(products):
    """Of products of the pairs that a causal mask leaves in each sequence."""

    def count(d):
        ends = _drawn("ragged_attention", "cu_seqlens_q", d)
        pairs = sum(i + 1 for first, last in pairwise(ends) for i in range(last - first))
        return products * 2 * pairs * d["columns"] * d["kv_heads"] * d["group"]

    return count


def _paged_pairs(d):
    keys = sum(_drawn("paged_attention", "lengths", d))
    return 2 * 2 * keys * d["queries"] * d["columns"] * d["kv_heads"] * d["group"]


def _taps(d):
    return 2 * d["batch"] * d["height"] * d["width"] * d["filters"] * d["channels"] * d["kernel"] ** 2


def _own_taps(d):
    """An odd filter on padding that keeps the extents leaves one output a stride begun."""
    outputs = d["batch"] * d["channels"] * math.ceil(d["height"] / d["stride"]) * math.ceil(d["width"] / d["stride"])
    return 2 * outputs * d["kernel"] ** 2


def _layer(d):
    """Gate, up and down projections, SiLU's five operations and the product of an MLP."""
    return d["tokens"] * (3 * 2 * d["columns"] * d["hidden"] + 6 * d["hidden"])


def _one_a_group(groups):
    """A multiplication an element; for each group a division for the scale and one for its inverse."""
    return lambda d: d["rows"] * d["columns"] + 2 * groups(d)


def _in_groups(element, group):
    """So many operations an element of groups of channels and positions, and a group more."""
    return lambda d: d["batch"] * d["groups"] * (element * d["channels"] * d["positions"] + group)


def _rope(d):
    return 3 * d["batch"] * d["tokens"] * d["columns"] * (d["q_heads"] + d["k_heads"])


def _normed_linear(products, element):
    """Products, a bias, and so many operations an element of the norm."""
    return lambda d: products * 2 * math.prod(d.values()) + d["m"] * d["n"] + element * d["m"] * d["k"]


def _with_update(times):
    """A product of LoRA, and so often those with its factors."""
    return lambda d: 2 * d["m"] * (d["n"] * d["k"] + times * d["rank"] * (d["k"] + d["n"])) + d["m"] * d["rank"]


#: The operations of a kernel by its sizes: a function for each pass that it declares, in that order.
OPERATIONS: dict[str, tuple[Callable[[dict[str, int]], int], ...]] = {
    **dict.fromkeys(("vector_add", "row_sum", "block_reduction", "int8_dequantize", "fp8_dequantize", "nf4_dequantize"), (_rows(1),)),
    **dict.fromkeys(("tma_copy", "strided_copy"), (_rows(0),)),
    "add_relu_mul": (_rows(2),),
    "gelu": (_rows(4 + 1 + 2 + 1 + 1), _rows(8 + 2 + 4 + 2 + 1)),
    "dropout": (_rows(1), _rows(1)),
    "group_norm": (_in_groups(7, 4), _in_groups(13, 2)),
    "swiglu": (_rows(5 + 1), _rows(5 + 4 + 3)),
    "geglu": (_rows(9 + 1), _rows(9 + 8 + 3)),
    "rope": (_rope, _rope),
    "online_max": (_rows(3, 2),),
    "softmax": (_rows(1 + 1 + 1 + 1), _rows(2 + 1 + 1)),
    "histogram": (lambda d: d["n"],),
    "layer_norm": (_rows(1 + 1 + 2 + 3, 4), _rows(2 + 1 + 3 + 4 + 3, 2)),
    "rms_norm": (_rows(2 + 2, 3), _rows(1 + 1 + 2 + 3 + 2, 1)),
    "add_rms_norm": (_rows(1 + 2 + 2, 3), _rows(1 + 1 + 2 + 3 + 1 + 2, 1)),
    "layer_norm_linear": (_normed_linear(1, 7), _normed_linear(2, 13)),
    "rms_norm_gelu_linear": (_normed_linear(1, 4 + 5), _normed_linear(2, 9 + 1 + 5 + 4 + 3)),
    "cross_entropy": (_rows(3), _rows(3 + 2 + 1 + 1)),
    "linear_cross_entropy": tuple(
        lambda d, products=products, element=element: (products * 2 * d["columns"] + element) * d["rows"] * d["classes"]
        for products, element in ((1, 3), (3, 7))
    ),
    "matmul": (_product(), lambda d: 2 * _product()(d)),
    **dict.fromkeys(("fp8_matmul", "fp8_matmul_rows", "fp8_matmul_blocks", "int8_matmul", "int8_matmul_rows"), (_product(),)),
    "w8a16_matmul": (lambda d: _product()(d) + d["m"] * d["n"],),
    "lora_linear": (_with_update(1), _with_update(2)),
    **dict.fromkeys(("int8_tensor", "fp8_tensor"), (_one_a_group(lambda d: 1),)),
    **dict.fromkeys(("int8_rows", "fp8_rows"), (_one_a_group(lambda d: d["rows"]),)),
    "fp8_blocks": (_one_a_group(lambda d: d["rows"] * math.ceil(d["columns"] / 128)),),
    "fp8_tiles": (_one_a_group(lambda d: math.ceil(d["rows"] / 128) * math.ceil(d["columns"] / 128)),),
    "attention": (_pairs(2, causal=False), _pairs(5, causal=False)),
    "causal_attention": (_pairs(2, causal=True), _pairs(5, causal=True)),
    "ragged_attention": (_ragged_pairs(2), _ragged_pairs(5)),
    "paged_attention": (_paged_pairs,),
    "conv2d": (_taps,),
    "depthwise_conv2d": (_own_taps,),
    "mlp_compile_modes": (_layer,),
    "mlp_compile_regions": (lambda d: d["layers"] * (_layer(d) + (4 + 1) * d["tokens"] * d["columns"]),),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_cost_operations_are_those_counted_by_hand(name):
    spec = SPECS[name]
    one = workload(spec)
    for direction, operations in zip(spec.passes, OPERATIONS[name], strict=True):
        for again in (one, replace(one, dims={key: extent + 128 for key, extent in one.dims.items()})):
            if name == "conv2d" and again is not one:
                continue  # a filter of 131 x 131 is none
            assert spec.cost(again, direction).flops == operations(again.dims), (again.id, direction)


@pytest.fixture(params=[name for name, spec in SPECS.items() if "triton" in spec.implementations])
def called(request):
    """A kernel with a call of its Triton implementation on small tensors of the CPU."""
    spec = SPECS[request.param]
    inputs = spec.inputs(workload(spec), torch.device("cpu"))
    return spec, inputs, lambda: spec.implementations["triton"].call(**inputs)


def test_kernel_on_cpu_tensors_asks_for_a_gpu(called):
    with pytest.raises(ValueError, match=r"is on cpu: Triton needs a CUDA device"):
        called[2]()


def test_kernel_without_triton_is_pytorchs(called, monkeypatch):
    spec, inputs, call = called
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    precise = {key: as_double(value) for key, value in inputs.items()}
    for one, other in zip(checks.outputs_of(call()), checks.outputs_of(spec.reference(**precise)), strict=True):
        checks.close(one, other, max(spec.tolerance[workload(spec).dtype], 1e-6))


def as_double(value):
    return value.detach().double() if torch.is_tensor(value) and value.is_floating_point() else value
