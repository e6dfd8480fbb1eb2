"""Operators mean the same, whoever observes the call."""

import subprocess
import sys

import pytest
import torch
from tilescope_kernels._shared import operators
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

LAUNCHED: list[torch.Tensor] = []


@operators.operator("test_square", fake=lambda x, _: torch.empty_like(x))
def square(x: torch.Tensor, factor: float) -> torch.Tensor:
    assert not x.is_neg()
    LAUNCHED.append(x)
    return x * x * factor


@operators.operator("test_square_backward", fake=lambda _, x, __: torch.empty_like(x))
def square_backward(dy: torch.Tensor, x: torch.Tensor, factor: float) -> torch.Tensor:
    return 2 * x * dy * factor


@square.gradient(lambda x, *_: (x,))
def differentiate(ctx, dy):
    return square_backward(dy, *ctx.saved_tensors, *ctx.rest)


@operators.operator("test_double_", fake=lambda *_: None, mutates=("x",))
def double_(x: torch.Tensor, times: int) -> None:
    x.numpy()[:] *= 2**times  # PyTorch does not see it, as it does not see what a kernel writes.


class Subclass(torch.Tensor):
    pass


class Dispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def nothing_launched():
    LAUNCHED.clear()


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def test_operator_gradient_is_that_of_its_dispatched_form():
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    (direct,) = torch.autograd.grad(square(x, 3.0).sum(), x)
    (dispatched,) = torch.autograd.grad(torch.ops.tilescope.test_square(x, 3.0).sum(), x)
    assert torch.equal(direct, dispatched) and len(LAUNCHED) == 2
    assert type(square(x, 3.0).grad_fn).__name__ == "squareBackward", "PyTorch's own takes several times longer"
    with torch.no_grad():
        assert not square(x, 3.0).requires_grad
    assert not square(x.detach(), 3.0).requires_grad


def test_operator_used_twice_adds_gradients():
    x = leaf(3.0)
    (square(x, 1.0) + square(x, 2.0)).backward()
    assert x.grad is not None and x.grad.item() == 6 + 12


@pytest.mark.parametrize("mode", [Dispatch, Function])
@pytest.mark.parametrize("wants_gradient", [False, True])
def test_operator_is_seen_by_modes(mode, wants_gradient):
    with mode() as observing:
        assert square(leaf(3.0) if wants_gradient else torch.tensor([3.0]), 1.0).item() == 9
    assert any("test_square" in name for name in observing.seen)


def test_operator_is_named_in_a_profile():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        square(torch.tensor([3.0]), 1.0)
        double_(torch.ones(3), 1)
    assert {"tilescope::test_square", "tilescope::test_double_"} <= {event.name for event in profile.events()}


def test_operator_of_a_subclass_keeps_it():
    assert type(square(torch.tensor([3.0]).as_subclass(Subclass), 1.0)) is Subclass
    assert type(square(leaf(3.0).as_subclass(Subclass), 1.0)) is Subclass


def test_operator_of_a_negated_view_gets_its_values():
    z = torch.tensor([3.0 + 4.0j], requires_grad=True)
    assert square(z.detach().conj().imag, 1.0).item() == 16
    (gradient,) = torch.autograd.grad(square(z.conj().imag, 1.0), z)
    assert gradient.item() == 8j


def test_operator_under_vmap_gives_others_their_gradients():
    weights, held = torch.arange(4.0).reshape(2, 2).requires_grad_(), leaf(3.0)
    batched = torch.func.vmap(lambda row: square(row, 1.0) + square(held, 1.0))(weights)
    batched.sum().backward()
    assert torch.equal(weights.grad, 2 * weights) and held.grad.item() == 4 * 6


def test_operator_in_inference_mode_gives_an_inference_tensor():
    with torch.inference_mode():
        assert square(leaf(3.0), 1.0).is_inference()
        x = torch.ones(3)
        double_(x, 1)
    assert x.tolist() == [2, 2, 2]


def test_operator_that_writes_its_argument_tells_autograd():
    x = torch.ones(3)
    double_(x, 1)
    assert x.tolist() == [2, 2, 2] and x._version > 0
    product = (leaf(1.0) * (factor := torch.ones(1))).sum()
    double_(factor, 1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_operator_is_whole_in_a_compiled_graph():
    targets: list[str] = []

    def backend(module, _):
        targets.extend(str(node.target) for node in module.graph.nodes)
        return module

    def both(x):
        y = square(x, 2.0) + 1
        double_(y, 1)
        return y

    assert torch.compile(both, backend=backend, fullgraph=True)(torch.tensor([3.0])).item() == 38
    assert {"tilescope.test_square.default", "tilescope.test_double_.default"} <= set(targets)


def test_plain_operator_passes_opcheck():
    """The others are checked with arguments of every kernel, in batch_programs."""
    torch.library.opcheck(torch.ops.tilescope.test_square.plain, (torch.ones(3), 2.0))
    torch.library.opcheck(torch.ops.tilescope.test_double_.plain, (torch.ones(3), 2))


#: A call of each kind, with a gradient and without.
CALLS = """
import sys
import torch
from tilescope_kernels import cross_entropy, softmax
x, targets = torch.randn(2, 8, requires_grad=True), torch.tensor([1, 2])
softmax(x.detach())
softmax(x).sum().backward()
cross_entropy(x, targets).backward()
assert "torch._dynamo" not in sys.modules
"""


def test_operators_import_no_compiler(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
