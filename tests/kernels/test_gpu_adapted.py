"""What the suites of PyTorch and Liger-Kernel ask of these functions, asked of ours: shapes, strides, dtypes, autograd.

Every value and gradient is compared with autograd in fp64. On the CPU the functions are routed to PyTorch, which tests the
tests. ``TRITON_INTERPRET=1 pytest tests/kernels/test_gpu_adapted.py`` runs the kernels themselves there, in a minute, in fp32
and fp16 (the interpreter computes bf16 wrongly).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

NAN, INF = float("nan"), float("inf")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
CPU = "cpu" if INTERPRETED else pytest.param("cpu", marks=pytest.mark.slow("kernels"))
GPU = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
)
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
#: Where what is tested is our kernels' own, which routing to PyTorch does not show.
kernels_only = pytest.mark.parametrize("device", ["cpu", GPU] if INTERPRETED else [GPU], indirect=True)
on_a_gpu = pytest.mark.parametrize("device", [GPU], indirect=True)


if INTERPRETED:
    # NumPy warns of the NaN and infinity that these kernels are meant to produce, and of how triton 3.6 uses it.
    pytestmark = [
        pytest.mark.filterwarnings("ignore::RuntimeWarning"),
        pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    ]


@pytest.fixture(params=[CPU, GPU])
def device(request, monkeypatch):
    if request.param == "cpu" and not INTERPRETED:
        monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    if request.param == "cpu" and INTERPRETED and "bf16" in request.node.name:
        pytest.skip("the interpreter computes bf16 wrongly")
    return request.param


def draw(*shape, device, dtype=torch.float32, seed=0):
    # Drawn on the CPU, so that both devices are given the same numbers.
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def outputs_of(result):
    return result if isinstance(result, tuple) else (result,)


def relative_error(actual, expected):
    return float((actual.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp_min(1e-30))


def bound(dtype):
    """Of relative norms: some roundings to ``dtype``, or in fp32 sums in another order and approximate exponentials."""
    return (16 if dtype == torch.float32 else 4) * torch.finfo(dtype).eps


def compare(ours, plain, *tensors):
    """Values, shapes and dtypes of ``ours(*tensors)`` and the gradient of each tensor, against ``plain`` in fp64."""
    dtype = tensors[0].dtype
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]
    twins = [tensor.detach().double().requires_grad_() for tensor in tensors]
    actual, wanted = outputs_of(ours(*leaves)), outputs_of(plain(*twins))
    for one, other in zip(actual, wanted, strict=True):
        assert one.shape == other.shape
        assert one.dtype == dtype
        assert one.device == tensors[0].device
        assert relative_error(one, other) <= bound(dtype)
    upstream = [draw(*out.shape, device=out.device, dtype=dtype, seed=99) for out in actual]
    found = torch.autograd.grad(actual, leaves, upstream)
    expected = torch.autograd.grad(wanted, twins, [gradient.double() for gradient in upstream])
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert one.shape == other.shape
        assert one.dtype == dtype
        assert relative_error(one, other) <= 2 * bound(dtype), f"gradient of input {number}"


def rotary_tables(tokens, columns, device):
    frequency = 10000.0 ** (-torch.arange(0, columns, 2, device=device) / columns)
    angles = torch.outer(torch.arange(tokens, device=device), frequency).repeat(1, 2)[None]
    return angles.cos(), angles.sin()


def rotated(q, k, cos, sin):
    """The formula of rotary embedding by halves, in the dtype of ``q``."""
    cos, sin = cos[:, None].to(q.dtype), sin[:, None].to(q.dtype)

    def turn(x):
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    return turn(q), turn(k)


def classes(rows, columns, device, ignore=-100):
    # Computed where it is needed: a copy from the CPU could not be captured in a CUDA graph.
    row = torch.arange(rows, device=device)
    return ((row * 7919 + 5) % columns).masked_fill(row % 4 == 1, ignore)


@dataclass(frozen=True)
class Operation:
    """A function, the same in PyTorch, and the shapes of its tensors for a first extent: rows, or a batch."""

    ours: Callable[..., Any]
    plain: Callable[..., Any]
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]

    def tensors(self, device, dtype=torch.float32, rows=6):
        return [draw(*s, device=device, dtype=dtype, seed=i) for i, s in enumerate(self.shapes(rows))]


def _rope(q, k):
    return kernels.rope(q, k, *rotary_tables(q.shape[2], q.shape[3], q.device))


def _plain_rope(q, k):
    return rotated(q, k, *rotary_tables(q.shape[2], q.shape[3], q.device))


def _plain_add_rms_norm(x, residual, weight):
    return F.rms_norm(x + residual, weight.shape, weight, 1e-6), x + residual


def _target(x, columns):
    return classes(x.shape[0], columns, x.device)


OPERATIONS = {
    "gelu": Operation(kernels.gelu, F.gelu, lambda rows: ((rows, 5, 65),)),
    "gelu_tanh": Operation(
        lambda x: kernels.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), lambda rows: ((rows, 5, 65),)
    ),
    "swiglu": Operation(kernels.swiglu, lambda gate, up: F.silu(gate) * up, lambda rows: ((rows, 5, 65),) * 2),
    "geglu": Operation(
        kernels.geglu, lambda gate, up: F.gelu(gate, approximate="tanh") * up, lambda rows: ((rows, 5, 65),) * 2
    ),
    "geglu_none": Operation(
        lambda gate, up: kernels.geglu(gate, up, "none"), lambda gate, up: F.gelu(gate) * up,
        lambda rows: ((rows, 5, 65),) * 2,
    ),
    "softmax": Operation(kernels.softmax, lambda x: F.softmax(x, -1), lambda rows: ((rows, 5, 65),)),
    "layer_norm": Operation(
        lambda x, w, b: kernels.layer_norm(x, 65, w, b), lambda x, w, b: F.layer_norm(x, (65,), w, b),
        lambda rows: ((rows, 5, 65), (65,), (65,)),
    ),
    "rms_norm": Operation(
        lambda x, w: kernels.rms_norm(x, 65, w, 1e-6), lambda x, w: F.rms_norm(x, (65,), w, 1e-6),
        lambda rows: ((rows, 5, 65), (65,)),
    ),
    "add_rms_norm": Operation(
        kernels.add_rms_norm, _plain_add_rms_norm, lambda rows: ((rows, 5, 65), (rows, 5, 65), (65,))
    ),
    "rope": Operation(_rope, _plain_rope, lambda rows: ((rows, 4, 7, 16), (rows, 2, 7, 16))),
    "cross_entropy": Operation(
        lambda x: kernels.cross_entropy(x, _target(x, 65)), lambda x: F.cross_entropy(x, _target(x, 65)),
        lambda rows: ((rows, 65),),
    ),
    "linear_cross_entropy": Operation(
        lambda x, w: kernels.linear_cross_entropy(x, w, _target(x, 65)),
        lambda x, w: F.cross_entropy(F.linear(x, w), _target(x, 65)),
        lambda rows: ((rows, 40), (65, 40)),
    ),
    "attention": Operation(
        lambda q, k, v: kernels.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        lambda rows: ((rows, 4, 19, 64), (rows, 2, 19, 64), (rows, 2, 19, 64)),
    ),
}  # fmt: skip
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
#: Another layout of the same or of similar numbers.
LAYOUTS = {
    "transposed": lambda x: x.mT.contiguous().mT if x.dim() > 2 else x.T.contiguous().T,
    "unaligned": lambda x: F.pad(x, (1, 2))[..., 1:-2],
    "every second column": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "every second row": lambda x: x.repeat_interleave(2, 0)[::2],
    "expanded": lambda x: x[:1].expand_as(x),
}


# Of what is routed to PyTorch, quick enough for every run: it shows that the comparison holds what is right to be right.
@pytest.mark.parametrize("device", ["cpu", GPU], indirect=True)
@each_dtype
@each_operation
def test_values_and_gradients(device, operation, dtype):
    compare(operation.ours, operation.plain, *operation.tensors(device, dtype))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@each_operation
def test_layouts_of_the_first_input(device, operation, layout):
    first, *others = operation.tensors(device)
    changed = layout(first)
    assert changed.shape == first.shape
    assert not changed.is_contiguous() or layout is LAYOUTS["unaligned"]
    compare(operation.ours, operation.plain, changed, *others)


@each_operation
def test_gradients_may_come_in_any_layout(device, operation):
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    actual = outputs_of(operation.ours(*leaves))
    dense = [draw(*out.shape, device=device, seed=7) for out in actual]
    strided = [LAYOUTS["transposed"](g) if g.dim() > 1 else g for g in dense]
    expanded = [torch.ones((), device=device).expand_as(g) for g in dense]
    for given, same in ((strided, dense), (expanded, [torch.ones_like(g) for g in dense])):
        found, wanted = (torch.autograd.grad(operation.ours(*leaves), leaves, upstream) for upstream in (given, same))
        torch.testing.assert_close(found, wanted)


@each_operation
def test_no_rows(device, operation):
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device, rows=0)]
    twins = [tensor.detach().clone().requires_grad_() for tensor in leaves]
    actual, wanted = outputs_of(operation.ours(*leaves)), outputs_of(operation.plain(*twins))
    torch.testing.assert_close(actual, wanted, equal_nan=True)
    for one in torch.autograd.grad(actual, leaves, [torch.ones_like(out) for out in actual]):
        assert not one.any()


@each_operation
def test_an_input_may_have_several_uses(device, operation):
    def several(call):
        def used(first, *others):
            once, twice = (outputs_of(call(first * scale, *others)) for scale in (1.0, 0.5))
            return tuple(one + 2.0 * other + first.sum() for one, other in zip(once, twice, strict=True))

        return used

    compare(several(operation.ours), several(operation.plain), *operation.tensors(device))


@pytest.mark.parametrize("name", ["swiglu", "geglu", "add_rms_norm"])
def test_one_tensor_may_be_two_inputs(device, name):
    operation = OPERATIONS[name]
    x, _, *others = operation.tensors(device)
    compare(
        *((lambda x, *rest, call=call: call(x, x, *rest)) for call in (operation.ours, operation.plain)), x, *others
    )


@each_operation
def test_only_inputs_that_require_a_gradient_get_one(device, operation):
    count = len(operation.tensors(device))
    everything = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    wanted = torch.autograd.grad(sum(out.sum() for out in outputs_of(operation.ours(*everything))), everything)
    for chosen in range(count):
        tensors = operation.tensors(device)
        tensors[chosen].requires_grad_()
        sum(out.sum() for out in outputs_of(operation.ours(*tensors))).backward()
        assert [tensor.grad is not None for tensor in tensors] == [number == chosen for number in range(count)]
        torch.testing.assert_close(tensors[chosen].grad, wanted[chosen])


@each_operation
def test_without_gradients_nothing_is_recorded(device, operation):
    wanted = outputs_of(operation.ours(*operation.tensors(device)))
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    with torch.no_grad():
        quiet = outputs_of(operation.ours(*leaves))
    with torch.inference_mode():
        inferred = outputs_of(operation.ours(*operation.tensors(device)))
    for out in (*wanted, *quiet, *inferred):
        assert not out.requires_grad
    torch.testing.assert_close(quiet, wanted, rtol=0, atol=0)
    torch.testing.assert_close(inferred, wanted, rtol=0, atol=0)


@each_operation
def test_inputs_are_left_as_they_are(device, operation):
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    versions = [tensor._version for tensor in leaves]
    torch.autograd.grad([out.sum() for out in outputs_of(operation.ours(*leaves))], leaves)
    assert [tensor._version for tensor in leaves] == versions
    for tensor, same in zip(leaves, operation.tensors(device), strict=True):
        assert torch.equal(tensor.detach(), same)


@each_operation
def test_two_runs_are_equal_bit_for_bit(device, operation):
    def run():
        leaves = [tensor.requires_grad_() for tensor in operation.tensors(device, rows=70 if device == "cuda" else 6)]
        actual = outputs_of(operation.ours(*leaves))
        return *actual, *torch.autograd.grad([out.sum() for out in actual], leaves)

    for one, other in zip(run(), run(), strict=True):
        assert torch.equal(one, other)


@each_operation
def test_activations_may_be_recomputed(device, operation):
    def gradients(call):
        leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
        return torch.autograd.grad([out.sum() for out in outputs_of(call(*leaves))], leaves)

    recomputed = gradients(lambda *leaves: checkpoint(operation.ours, *leaves, use_reentrant=False))
    torch.testing.assert_close(recomputed, gradients(operation.ours), rtol=0, atol=0)


@kernels_only
@each_operation
def test_a_second_derivative_is_refused_but_for_a_rotation_s(device, operation):
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    loss = sum(out.sin().sum() for out in outputs_of(operation.ours(*leaves)))

    def second():
        gradients = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), leaves)

    if operation is not OPERATIONS["rope"]:
        refusals = r"no autograd formula was registered|does not require grad|no second derivative"
        with pytest.raises(RuntimeError, match=refusals):
            second()
        return
    twins = [tensor.detach().double().requires_grad_() for tensor in leaves]
    other_loss = sum(out.sin().sum() for out in operation.plain(*twins))
    wanted = sum(gradient.square().sum() for gradient in torch.autograd.grad(other_loss, twins, create_graph=True))
    for one, other in zip(second(), torch.autograd.grad(wanted, twins), strict=True):
        assert relative_error(one, other) <= 4 * bound(torch.float32)


@kernels_only
@each_operation
def test_a_second_backward_pass_is_the_first_or_is_refused(device, operation):
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    loss = sum(out.sum() for out in outputs_of(operation.ours(*leaves)))
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    if operation is OPERATIONS["linear_cross_entropy"]:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, leaves)
    else:
        torch.testing.assert_close(torch.autograd.grad(loss, leaves), first, rtol=0, atol=0)


@kernels_only
@each_operation
def test_autocast_changes_nothing_where_inputs_have_one_dtype(device, operation):
    def run():
        leaves = [tensor.requires_grad_() for tensor in operation.tensors(device, torch.bfloat16)]
        actual = outputs_of(operation.ours(*leaves))
        return *actual, *torch.autograd.grad([out.sum() for out in actual], leaves)

    wanted = run()
    with torch.autocast(device, torch.float16):
        actual = run()
    # But for losses, which autocast has in fp32, as it has PyTorch's, and for a product, which it computes in its own dtype.
    loss, *gradients = actual
    rounded = [loss if loss.dim() else loss.to(wanted[0].dtype), *gradients]
    if operation is OPERATIONS["linear_cross_entropy"]:
        for one, other in zip(rounded, wanted, strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            assert relative_error(one, other) <= 4 * bound(torch.bfloat16)
    else:
        torch.testing.assert_close(rounded, list(wanted), rtol=0, atol=0)


# Leaves are older than the stream that a graph is captured on, as in any such use.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@on_a_gpu
@each_operation
def test_cuda_graphs_replay_forward_and_backward(device, operation):
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]

    def run():
        actual = outputs_of(operation.ours(*leaves))
        return *actual, *torch.autograd.grad([out.sum() for out in actual], leaves)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Compiles, and lets cuBLAS take its workspace.
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    with torch.no_grad():
        for number, leaf in enumerate(leaves):
            leaf.copy_(draw(*leaf.shape, device=device, seed=50 + number))
    graph.replay()
    torch.testing.assert_close(captured, run(), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("shape", "dim"), [((4, 9), 0), ((3, 4, 5), 1), ((3, 4, 5), -3), ((2, 3, 4, 5), -2), ((7,), 0)]
)
def test_softmax_along_any_dimension(device, shape, dim):
    compare(lambda x: kernels.softmax(x, dim), lambda x: F.softmax(x, dim), draw(*shape, device=device))


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (0,), (3, 0), (0, 3)])
def test_softmax_of_next_to_nothing(device, shape):
    x = draw(*shape, device=device)
    torch.testing.assert_close(kernels.softmax(x), F.softmax(x, -1))


@each_dtype
def test_softmax_of_large_values_and_infinities(device, dtype):
    largest = torch.finfo(dtype).max
    x = draw(7, 66, device=device, dtype=dtype) * 100
    x[0], x[1], x[2, 3], x[3, 4], x[4] = largest, -largest, largest, NAN, -INF
    x[5, ::2] = -INF
    wanted = F.softmax(x.double(), -1).to(dtype)
    torch.testing.assert_close(kernels.softmax(x), wanted, equal_nan=True, rtol=bound(dtype), atol=1e-6)
    leaf, twin = x[5:].clone().requires_grad_(), x[5:].double().requires_grad_()
    upstream = draw(2, 66, device=device, dtype=dtype, seed=1)
    (found,), (wanted,) = (
        torch.autograd.grad(out, of, upstream.to(of.dtype))
        for out, of in ((kernels.softmax(leaf), leaf), (F.softmax(twin, -1), twin))
    )
    torch.testing.assert_close(found.double(), wanted, rtol=2 * bound(dtype), atol=bound(dtype))


@pytest.mark.parametrize(
    ("normalized", "affine"), [((6,), "none"), ((5, 6), "weight"), ((4, 5, 6), "weight"), ((5, 6), "both")], ids=str
)
def test_norms_over_several_dimensions_with_and_without_parameters(device, normalized, affine):
    x = draw(3, 4, 5, 6, device=device)
    weight, bias = (draw(*normalized, device=device, seed=seed) for seed in (1, 2))
    given = {"none": (), "weight": (weight,), "both": (weight, bias)}[affine]
    shape = normalized[0] if len(normalized) == 1 else normalized
    compare(lambda x, *p: kernels.layer_norm(x, shape, *p), lambda x, *p: F.layer_norm(x, normalized, *p), x, *given)
    if affine != "both":
        compare(
            lambda x, *p: kernels.rms_norm(x, shape, *p, eps=1e-5),
            lambda x, *p: F.rms_norm(x, normalized, *p, eps=1e-5),
            x, *given,
        )  # fmt: skip


@pytest.mark.parametrize("eps", [1e-12, 1e-5, 0.5])
def test_epsilon_of_norms(device, eps):
    # Variances from far below to far above it.
    x = draw(8, 33, device=device) * torch.logspace(-4, 1, 8, device=device)[:, None]
    compare(lambda x: kernels.layer_norm(x, 33, eps=eps), lambda x: F.layer_norm(x, (33,), eps=eps), x)
    compare(lambda x: kernels.rms_norm(x, 33, eps=eps), lambda x: F.rms_norm(x, (33,), eps=eps), x)
    weight = draw(33, device=device, seed=1)
    compare(
        lambda x, w: kernels.add_rms_norm(x, x, w, eps)[0], lambda x, w: F.rms_norm(x + x, (33,), w, eps=eps), x, weight
    )


@each_dtype
def test_the_default_epsilon_of_rms_norm_is_that_of_fp32(device, dtype):
    x = (draw(5, 33, device=device) * 1e-3).to(dtype)
    eps = torch.finfo(torch.float32).eps
    compare(lambda x: kernels.rms_norm(x, 33), lambda x: F.rms_norm(x, (33,), eps=eps), x)
    compare(kernels.RMSNorm(33, elementwise_affine=False), lambda x: F.rms_norm(x, (33,), eps=eps), x)


def test_norms_of_constant_rows_and_of_rows_far_from_zero(device):
    x = torch.full((3, 40), 3.0, device=device)
    # The mean may be a rounding away, which 1 / sqrt(eps) makes larger.
    torch.testing.assert_close(kernels.layer_norm(x, 40), torch.zeros_like(x), rtol=0, atol=1e-3)
    torch.testing.assert_close(kernels.rms_norm(x, 40), torch.ones_like(x))
    assert not kernels.rms_norm(torch.zeros_like(x), 40).any()
    # A variance as the difference of two large sums would have nothing left of it.
    x = draw(3, 40, device=device) + 1000
    wanted = F.layer_norm(x.double(), (40,)).float()
    torch.testing.assert_close(kernels.layer_norm(x, 40), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("ours", "plain", "shape"),
    [
        (lambda: kernels.LayerNorm((5, 6)), lambda: torch.nn.LayerNorm((5, 6)), (3, 5, 6)),
        (lambda: kernels.LayerNorm(6, bias=False), lambda: torch.nn.LayerNorm(6, bias=False), (3, 6)),
        (lambda: kernels.LayerNorm(6, 0.1, False), lambda: torch.nn.LayerNorm(6, 0.1, False), (3, 6)),
        (lambda: kernels.RMSNorm(6, 1e-6), lambda: torch.nn.RMSNorm(6, 1e-6), (3, 6)),
        (lambda: kernels.RMSNorm((5, 6), 1e-6), lambda: torch.nn.RMSNorm((5, 6), 1e-6), (3, 5, 6)),
    ],
)
def test_modules_carry_the_state_of_pytorch_s(device, ours, plain, shape):
    ours, plain = ours(), plain()
    with torch.no_grad():
        for number, parameter in enumerate(plain.parameters()):
            parameter.copy_(draw(*parameter.shape, device="cpu", seed=number + 1))
    ours.load_state_dict(plain.state_dict())
    ours, plain = copy.deepcopy(ours).to(device), plain.to(device).double()
    compare(ours, plain, draw(*shape, device=device))


@pytest.mark.parametrize("bias", [False, True])
def test_modules_with_linear_layers_take_their_state(device, bias):
    layers = {"gate_proj": (24, 40), "up_proj": (24, 40), "down_proj": (40, 24)}
    numbers = {}
    for seed, (name, shape) in enumerate(layers.items()):
        numbers[f"{name}.weight"] = draw(*shape, device="cpu", seed=seed) / 6
        if bias:
            numbers[f"{name}.bias"] = draw(shape[0], device="cpu", seed=seed)
    mlp = kernels.SwiGLUMLP(40, 24, bias)
    mlp.load_state_dict(numbers)
    twin = {name: tensor.to(device).double() for name, tensor in numbers.items()}

    def plain(x):
        gate, up = (F.linear(x, twin[f"{name}.weight"], twin.get(f"{name}.bias")) for name in ("gate_proj", "up_proj"))
        return F.linear(F.silu(gate) * up, twin["down_proj.weight"], twin.get("down_proj.bias"))

    compare(mlp.to(device), plain, draw(3, 5, 40, device=device))
    layer, head = torch.nn.Linear(40, 65, bias), kernels.LinearCrossEntropy(40, 65, bias, label_smoothing=0.1)
    head.load_state_dict(layer.state_dict())
    target, layer = classes(9, 65, device), layer.to(device).double()
    compare(
        lambda x: head.to(device)(x, target), lambda x: F.cross_entropy(layer(x), target, label_smoothing=0.1),
        draw(9, 40, device=device),
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignore", [-100, 3, 64])
def test_cross_entropy_options(device, reduction, smoothing, ignore):
    target = classes(9, 65, device, ignore)
    options = {"reduction": reduction, "label_smoothing": smoothing, "ignore_index": ignore}
    x = draw(9, 65, device=device) * 5
    compare(lambda x: kernels.cross_entropy(x, target, **options), lambda x: F.cross_entropy(x, target, **options), x)
    compare(
        lambda x: kernels.cross_entropy(x, target, gradient_in_forward=False, **options),
        lambda x: F.cross_entropy(x, target, **options), x,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(5,), (3, 5), (3, 5, 4), (2, 5, 3, 4)], ids=str)
def test_cross_entropy_of_pixels_and_of_one_row(device, shape):
    x = draw(*shape, device=device)
    places = (*shape[:1], *shape[2:]) if len(shape) > 1 else ()
    target = torch.randint(0, 5, places, generator=torch.Generator().manual_seed(1)).to(device)
    for reduction in ("mean", "none"):
        module = kernels.CrossEntropyLoss(reduction=reduction)
        compare(lambda x, m=module: m(x, target), lambda x, r=reduction: F.cross_entropy(x, target, reduction=r), x)


@each_dtype
def test_cross_entropy_of_a_large_vocabulary_and_of_large_logits(device, dtype):
    target = classes(3, 50257, device)
    for scale in (1.0, 100.0):
        x = draw(3, 50257, device=device, dtype=dtype) * scale
        compare(lambda x: kernels.cross_entropy(x, target), lambda x: F.cross_entropy(x, target), x)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_of_ignored_rows_alone(device, smoothing):
    x, weight = draw(4, 65, device=device).requires_grad_(), draw(65, 65, device=device, seed=1)
    target = torch.full((4,), -100, device=device)

    def joined(x, target, **options):
        return kernels.linear_cross_entropy(x, weight, target, **options)

    for call in (kernels.cross_entropy, joined):
        mean = call(x, target, label_smoothing=smoothing)
        assert mean.isnan()
        total = call(x, target, reduction="sum", label_smoothing=smoothing)
        assert total == 0
        (gradient,) = torch.autograd.grad(total, x)
        assert not gradient.any()


@kernels_only
def test_a_target_that_is_no_class_makes_its_loss_nan(device):
    x, weight = draw(4, 65, device=device), draw(65, 65, device=device, seed=1)
    target = torch.tensor([3, 65, -1, 64], device=device)
    strange = torch.tensor([False, True, True, False], device=device)
    for call in (kernels.cross_entropy, lambda x, t, **o: kernels.linear_cross_entropy(x, weight, t, **o)):
        assert torch.equal(call(x, target, reduction="none").isnan(), strange)
        assert call(x, target).isnan()


@kernels_only
def test_targets_of_32_bits(device):
    x, weight, target = draw(9, 65, device=device), draw(65, 65, device=device, seed=1), classes(9, 65, device)
    for call in (kernels.cross_entropy, lambda x, t: kernels.linear_cross_entropy(x, weight, t)):
        assert torch.equal(call(x, target.int()), call(x, target))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_cross_entropy_options(device, reduction, smoothing, biased):
    # Two chunks of rows, the second a short one.
    target = classes(300, 65, device)
    tensors = [draw(300, 40, device=device), draw(65, 40, device=device, seed=1) / 6, draw(65, device=device, seed=2)]
    options = {"reduction": reduction, "label_smoothing": smoothing}
    compare(
        lambda x, w, b=None: kernels.linear_cross_entropy(x, w, target, linear_bias=b, **options),
        lambda x, w, b=None: F.cross_entropy(F.linear(x, w, b), target, **options),
        *tensors[: 3 if biased else 2],
    )


def test_linear_cross_entropy_of_sequences_and_by_row(device):
    x, weight = draw(2, 5, 40, device=device), draw(65, 40, device=device, seed=1)
    target = classes(10, 65, device).reshape(2, 5)
    compare(
        lambda x, w: kernels.linear_cross_entropy(x, w, target),
        lambda x, w: F.cross_entropy(F.linear(x, w).flatten(0, 1), target.flatten()), x, weight,
    )  # fmt: skip
    rows = kernels.linear_cross_entropy(x, weight, target, reduction="none")
    wanted = F.cross_entropy(F.linear(x, weight).movedim(-1, 1), target, reduction="none")
    torch.testing.assert_close(rows, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "plain"),
    [
        (kernels.gelu, F.gelu),
        (lambda x: kernels.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
        (lambda x: kernels.swiglu(x, torch.ones_like(x)), F.silu),
    ],
    ids=["gelu", "gelu_tanh", "swiglu"],
)
@each_dtype
def test_activations_far_from_zero(device, call, plain, dtype):
    x = torch.linspace(-30, 30, 601, device=device).to(dtype)
    leaf, twin = x.clone().requires_grad_(), x.double().requires_grad_()
    actual, wanted = call(leaf), plain(twin)
    # In fp32, where the tail is a difference of numbers next to 1.
    close = {"rtol": bound(dtype), "atol": 16 * torch.finfo(torch.float32).eps}
    torch.testing.assert_close(actual.double(), wanted, **close)
    (found,), (expected,) = torch.autograd.grad(actual.sum(), leaf), torch.autograd.grad(wanted.sum(), twin)
    torch.testing.assert_close(found.double(), expected, **close)


def test_the_halves_of_one_projection_are_gated_where_they_are(device):
    compare(
        lambda x: kernels.swiglu(*x.chunk(2, -1)),
        lambda x: F.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
        draw(4, 5, 130, device=device),
    )


@each_dtype
def test_rotary_embedding_at_any_position_of_each_batch(device, dtype):
    q, k = (draw(2, heads, 7, 16, device=device, dtype=dtype, seed=heads) for heads in (4, 2))
    cos, sin = (table[0] for table in rotary_tables(100, 16, device))
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [99, 7, 7, 50, 0, 1, 3]], device=device)
    compare(
        lambda q, k: kernels.rope(q, k, cos[positions], sin[positions]),
        lambda q, k: rotated(q, k, cos[positions], sin[positions]), q, k,
    )  # fmt: skip
    module = kernels.RoPE(16).to(device)
    compare(lambda q, k: module(q, k, positions), lambda q, k: rotated(q, k, cos[positions], sin[positions]), q, k)
    compare(module, lambda q, k: rotated(q, k, cos[None, :7], sin[None, :7]), q, k)


def test_rotation_in_place_is_the_rotation(device):
    q, k = (draw(2, 7, heads, 16, device=device).transpose(1, 2) for heads in (4, 2))
    tables = rotary_tables(7, 16, device)
    wanted = kernels.rope(q, k, *tables)
    found = kernels.rope(q, k, *tables, inplace=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert found[0].data_ptr() == q.data_ptr()
    assert found[1].data_ptr() == k.data_ptr()
    torch.testing.assert_close((q, k), wanted, rtol=0, atol=0)


def test_rotation_keeps_lengths_and_depends_on_distances_alone(device):
    q, k = (draw(1, 1, 1, 64, device=device, seed=seed).expand(1, 1, 50, 64) for seed in range(2))
    turned_q, turned_k = kernels.rope(q, k, *rotary_tables(50, 64, device))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm(dim=-1))
    scores = (turned_q @ turned_k.mT)[0, 0]
    for distance in (0, 5, -20):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("columns", "causal"), [(64, True), (128, False)])
@pytest.mark.parametrize(("queries", "keys"), [(2, 37), (37, 37), (70, 33), (33, 70)])
def test_attention_of_ragged_lengths(device, columns, queries, keys, causal):
    q = draw(1, 4, queries, columns, device=device, dtype=torch.float16)
    k, v = (draw(1, 2, keys, columns, device=device, dtype=torch.float16, seed=seed) for seed in (1, 2))
    # More queries than keys: the last ones see every key, as no mask of one's own is needed for.
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=device).triu(1) if causal else None
    compare(
        lambda q, k, v: kernels.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True),
        lambda q, k, v: F.scaled_dot_product_attention(
            q, k, v, None if hidden is None else ~hidden, enable_gqa=True
        ), q, k, v,
    )  # fmt: skip


@pytest.mark.parametrize("scale", [0.0, 0.03, 1.0])
def test_attention_s_scale(device, scale):
    tensors = [draw(2, 2, 19, 64, device=device, seed=seed) for seed in range(3)]
    compare(
        lambda *t: kernels.scaled_dot_product_attention(*t, scale=scale),
        lambda *t: F.scaled_dot_product_attention(*t, scale=scale), *tensors,
    )  # fmt: skip


@kernels_only
def test_attention_to_no_keys_is_zero_and_so_are_its_gradients(device):
    q = draw(1, 2, 5, 64, device=device).requires_grad_()
    k, v = (torch.empty(1, 2, 0, 64, device=device, requires_grad=True) for _ in range(2))
    out = kernels.scaled_dot_product_attention(q, k, v)
    assert out.shape == q.shape
    assert not out.any()
    dq, dk, dv = torch.autograd.grad(out.sum(), (q, k, v))
    assert not dq.any()
    assert dk.shape == dv.shape == k.shape


def test_attention_with_large_scores(device):
    q, k, v = (draw(1, 2, 40, 64, device=device, seed=seed) for seed in range(3))
    plain = F.scaled_dot_product_attention
    compare(kernels.scaled_dot_product_attention, plain, q * 2, k * 2, v)
    # One key outweighs the others by far more than fp32 can hold the exponential of.
    actual = kernels.scaled_dot_product_attention(q * 100, k * 100, v)
    torch.testing.assert_close(
        actual, plain(*(t.double() for t in (q * 100, k * 100, v))).float(), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("filters", "dtype", "options"),
    [
        ((8, 16, 3, 3), "fp16", {}),
        ((8, 16, 3, 3), "bf16", {"padding": 1}),
        ((8, 16, 3, 3), "fp32", {"stride": 2}),
        ((5, 7, 1, 1), "fp32", {"padding": (2, 0), "stride": (1, 2)}),
        ((4, 3, 5, 2), "fp32", {"dilation": 2, "padding": 2}),
        ((4, 3, 5, 2), "bf16", {"dilation": (1, 2)}),
    ],
    ids=str,
)
def test_conv2d(device, filters, dtype, options):
    dtype = DTYPES[dtype]
    x = draw(2, filters[1], 11, 13, device=device, dtype=dtype)
    weight, bias = draw(*filters, device=device, dtype=dtype, seed=1), draw(filters[0], device=device, dtype=dtype)
    wanted = F.conv2d(x.double(), weight.double(), bias.double(), **options)
    for one, other in ((x, weight), (x.to(memory_format=torch.channels_last), weight)):
        actual = kernels.conv2d(one, other, bias, **options)
        assert actual.dtype == dtype
        assert actual.shape == wanted.shape
        assert relative_error(actual, wanted) <= bound(dtype)
    rectified = kernels.conv2d(x, weight, bias, relu=True, **options)
    assert relative_error(rectified, wanted.relu()) <= bound(dtype)


@kernels_only
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: kernels.RMSNorm(64).to(x.device).half()(x.bfloat16()),
            "weight is torch.float16 but x is torch.bfloat16",
        ),
        (
            lambda x: kernels.LayerNorm(64).to(x.device).half()(x.bfloat16()),
            "weight is torch.float16 but x is torch.bfloat16",
        ),
        (
            lambda x: kernels.add_rms_norm(x.half(), x.bfloat16(), x[0]),
            "residual is torch.bfloat16 but x is torch.float16",
        ),
        (lambda x: kernels.swiglu(x, x.half()), "up is torch.float16 but gate is torch.float32"),
        (
            lambda x: kernels.linear_cross_entropy(x.half(), x, classes(3, 3, x.device)),
            "linear_weight is torch.float32",
        ),
        (lambda x: kernels.conv2d(x[None, None].requires_grad_(), x[None, None]), "input requires a gradient"),
    ],
    ids=["RMSNorm", "LayerNorm", "add_rms_norm", "swiglu", "linear_cross_entropy", "conv2d"],
)
def test_what_a_model_must_cast_or_detach_itself_is_named(device, call, message):
    with pytest.raises(ValueError, match=message):
        call(draw(3, 64, device=device))
