"""What autograd and PyTorch's tools may do with every operation: layouts, dtypes, recomputation, autocast, CUDA graphs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import tilescope_kernels as kernels
import torch
import torch.nn.functional as F

from . import adapted, on_gpu
from .adapted import bound, classes, compare, draw, each_dtype
from .checks import outputs_of, relative_error

pytestmark = adapted.MARKS
device = adapted.device


@dataclass(frozen=True)
class Operation:
    """A function, the same in PyTorch, and the shapes of its tensors for a first extent: rows, or a batch."""

    ours: Callable[..., Any]
    plain: Callable[..., Any]
    shapes: Callable[[int], tuple[tuple[int, ...], ...]]

    def tensors(self, device, dtype=torch.float32, rows=2 if adapted.INTERPRETED else 6):
        return [draw(*s, device=device, dtype=dtype, seed=i) for i, s in enumerate(self.shapes(rows))]


def _rope(q, k):
    return kernels.rope(q, k, *adapted.rotary_tables(q.shape[2], q.shape[3], q.device))


def _plain_rope(q, k):
    return adapted.rotated(q, k, *adapted.rotary_tables(q.shape[2], q.shape[3], q.device))


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


def twice(loss, leaves):
    gradients = torch.autograd.grad(loss, leaves, create_graph=True)
    return torch.autograd.grad(sum(gradient.square().sum() for gradient in gradients), leaves)


@each_operation
def test_a_second_derivative_is_refused_but_for_a_rotation_s(device, operation):
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    loss = sum(out.sin().sum() for out in outputs_of(operation.ours(*leaves)))
    if operation is OPERATIONS["rope"]:
        twins = [tensor.detach().double().requires_grad_() for tensor in leaves]
        losses = loss, sum(out.sin().sum() for out in operation.plain(*twins))
        for one, other in zip(*map(twice, losses, (leaves, twins)), strict=True):
            assert relative_error(one, other) <= 4 * bound(torch.float32)
        return
    with pytest.raises(RuntimeError, match=r"no autograd formula|does not require grad|no second derivative"):
        twice(loss, leaves)


@on_gpu.INDUCTOR
@pytest.mark.parametrize("device", [adapted.GPU], indirect=True)
@each_operation
def test_function_compiles_into_one_graph(device, operation):
    def total(call):
        return lambda *tensors: sum((out * 2.0).pow(2).sum() for out in outputs_of(call(*tensors)))

    # Each case is another graph of the same lambda, of which Dynamo keeps only so many.
    torch.compiler.reset()
    leaves = [tensor.requires_grad_() for tensor in operation.tensors(device)]
    wanted, actual = total(operation.plain)(*leaves), torch.compile(total(operation.ours), fullgraph=True)(*leaves)
    torch.testing.assert_close(actual, wanted, rtol=1e-4, atol=1e-4)
    for one, other in zip(torch.autograd.grad(actual, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


# Leaves are older than the stream that a graph is captured on, as in any such use.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match")
@pytest.mark.parametrize("device", [adapted.GPU], indirect=True)
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
