"""Operators pass PyTorch's dispatcher by where nothing looks on, and mean the same."""

import traceback
from typing import Any

import pytest
import torch
from tilescope_kernels._shared import operators
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

CALLS: list[str] = []


@operators.operator("test_square")
def square(x: torch.Tensor, factor: float) -> torch.Tensor:
    CALLS.append(
        "dispatched" if any("custom_ops" in frame.filename for frame in traceback.extract_stack()) else "direct"
    )
    return x * x * factor


@square.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, ctx.factor = inputs
    ctx.save_for_backward(x)


def differentiate(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    (x,) = ctx.saved_tensors
    return 2 * x * dy * ctx.factor, None


square.register_autograd(differentiate, setup_context=save)


@operators.operator("test_double_in_place", mutates=("x",))
def double_in_place(x: torch.Tensor) -> None:
    x.mul_(2)


class Subclass(torch.Tensor):
    pass


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(operators, "DIRECT", "is_cpu")
    CALLS.clear()


def how() -> str:
    (call,) = CALLS
    CALLS.clear()
    return call


def test_an_ordinary_call_is_direct_with_a_gradient_and_without():
    x = torch.tensor([3.0], requires_grad=True)
    with torch.no_grad():
        assert square(x, 2.0).item() == 18
    assert how() == "direct"
    y = square(x, 2.0)
    assert how() == "direct"
    (gradient,) = torch.autograd.grad(y, x)
    assert gradient.item() == 12
    assert square(x.detach(), 1.0).item() == 9
    assert how() == "direct"


def test_the_gradient_is_that_of_the_operator():
    x = torch.randn(7, dtype=torch.float64, requires_grad=True)
    (direct,) = torch.autograd.grad(square(x, 3.0).sum(), x)
    (dispatched,) = torch.autograd.grad(torch.ops.tilescope.test_square(x, 3.0).sum(), x)
    assert torch.equal(direct, dispatched)


@pytest.mark.parametrize(
    "looking",
    [Dispatch, Function, lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])],
    ids=["dispatch mode", "function mode", "profiler"],
)
def test_what_looks_on_sees_the_operator(looking):
    with looking():
        assert square(torch.tensor([3.0]), 1.0).item() == 9
    assert how() == "dispatched"


def test_the_profiler_knows_the_operator_by_name():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        square(torch.tensor([3.0]), 1.0)
    assert "tilescope::test_square" in {event.name for event in profile.events()}


def test_a_subclass_another_device_and_a_transform_go_through_the_dispatcher(monkeypatch):
    square(torch.tensor([3.0]).as_subclass(Subclass), 1.0)
    assert how() == "dispatched"
    torch.func.vmap(lambda x: square(x, 1.0))(torch.ones(2, 2))
    assert CALLS == ["dispatched"] * 2
    CALLS.clear()
    monkeypatch.setattr(operators, "DIRECT", "is_cuda")
    square(torch.tensor([3.0]), 1.0)
    assert how() == "dispatched"


def test_what_memory_has_with_the_other_sign_goes_through_the_dispatcher():
    signs = []

    @operators.operator("test_first")
    def first(x: torch.Tensor) -> torch.Tensor:
        signs.append(x.is_neg())
        return x + 0.0

    imaginary = torch.tensor([3.0 + 4.0j]).conj().imag
    assert imaginary.is_neg() and first(imaginary).item() == -4
    assert signs == [False]


def test_what_writes_its_argument_counts_its_version():
    x = torch.ones(3)
    before = x._version
    double_in_place(x)
    assert x._version > before
    assert x.tolist() == [2, 2, 2]


def test_the_compiler_sees_the_operator():
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module

    compiled = torch.compile(lambda x: square(x, 2.0) + 1, backend=backend, fullgraph=True)
    assert compiled(torch.tensor([3.0])).item() == 19
    assert "tilescope.test_square.default" in seen


def test_an_old_pytorch_that_does_not_tell_has_all_dispatched(monkeypatch):
    for name, query in zip(("_is_watched", "_is_observed"), operators._watch(object()), strict=True):
        monkeypatch.setattr(operators, name, query)
    square(torch.tensor([3.0]), 1.0)
    assert how() == "dispatched"


def test_autograd_and_the_profiler_know_what_writes_its_argument():
    x = torch.ones(3)
    y = x.detach().requires_grad_() * 1
    product = y * y
    with torch.no_grad():
        double_in_place(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        inferred = torch.ones(3)
        double_in_place(inferred)
    assert inferred.tolist() == [2, 2, 2]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        double_in_place(x)
    assert "tilescope::test_double_in_place" in {event.name for event in profile.events()}


def test_what_writes_its_argument_passes_the_dispatcher_by(monkeypatch):
    written: list[str] = []
    monkeypatch.setattr(double_in_place._launch, "function", lambda x: written.append("direct"))
    double_in_place(torch.ones(3))
    double_in_place(torch.ones(3).as_subclass(Subclass))
    with Dispatch():
        double_in_place(torch.ones(3))
    assert written == ["direct"]
