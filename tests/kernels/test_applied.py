"""Calls of a public function whose gradient is wanted: repeated ones go straight to autograd, which sees what it saw."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tilescope_kernels._shared import applied, launches, operators
from tilescope_kernels._shared import kept as replays
from torch.autograd import forward_ad
from torch.overrides import BaseTorchFunctionMode
from torch.profiler import profile
from torch.utils._python_dispatch import TorchDispatchMode

from .noted_launches import MADE, gpu, scaled_kernel  # noqa: F401 - gpu is a fixture

CALLS: list[Any] = []


@operators.operator("test_applied_weigh")
def weigh(x: torch.Tensor, weight: torch.Tensor | None, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    y, saved = torch.empty_like(x), x.new_empty(3)
    launches.launch(scaled_kernel, (2,), y, x, weight, (1, 64), 64, factor, BLOCK=32, num_warps=1)
    launches.launch(scaled_kernel, (2,), saved, x, None, (1, 64), 64, factor, BLOCK=32, num_warps=1)
    return y, saved


def save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, weight, ctx.factor = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, weight)


def differentiate(ctx: Any, dy: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    return dy * x * ctx.factor, None if weight is None else 7 * dy.sum() + torch.zeros_like(weight), None


weigh.register_autograd(differentiate, setup_context=save)


def weighed(x: torch.Tensor, weight: torch.Tensor | None = None, *, factor: float = 2.0) -> torch.Tensor:
    """A public function: of a view, by an operator, in the shape of ``x``."""
    CALLS.append(x)
    return weigh(x.reshape(-1), weight, factor)[0].reshape(x.shape)


@pytest.fixture(autouse=True)
def on_the_cpu(gpu, monkeypatch):  # noqa: F811 - the fixture
    monkeypatch.setattr(operators, "DIRECT", "is_cpu")
    replays.forget()
    CALLS.clear()


def calls(function: Any, *args: Any, times: int = 1, **kwargs: Any) -> int:
    """How often the public function itself was called in so many calls."""
    CALLS.clear()
    for _ in range(times):
        function(*args, **kwargs)
    return len(CALLS)


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (64,))).requires_grad_()


@pytest.mark.parametrize("shape", [(64,), (2, 32), (2, 4, 8)])
def test_a_call_whose_gradient_is_wanted_is_applied_again_to_other_tensors(shape):
    public = operators.remembered(weighed)
    assert calls(public, leaf(*shape), leaf(), factor=3.0, times=4) == 2
    x, weight = leaf(*shape), leaf()
    MADE.clear()
    CALLS.clear()
    y = public(x, weight, factor=3.0)
    assert not CALLS and [made[2:5] for made in MADE[:1]] == [(y.data_ptr(), x.data_ptr(), weight.data_ptr())]
    assert y.shape == x.shape and y.requires_grad
    upstream = torch.randn(shape)
    dx, dweight = torch.autograd.grad(y, (x, weight), upstream)
    assert torch.equal(dx, upstream * x * 3.0) and torch.equal(dweight, (7 * upstream.sum()).expand(64))


def test_what_autograd_does_around_a_call_is_done_around_a_repeated_one():
    public, x = operators.remembered(weighed), leaf()
    before = public(x)
    for _ in range(2):
        public(x)
    seen: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append("packed"), t)[1], lambda t: t):
        y = public(x)
    assert len(CALLS) == 2 and seen == ["packed"]
    assert type(y.grad_fn) is type(before.grad_fn)
    y.register_hook(lambda _: seen.append("hook"))
    y.sum().backward(retain_graph=True)
    assert seen == ["packed", "hook"] and torch.equal(x.grad, 2 * x)
    y = public(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_whose_gradient_is_wanted_is_part_of_the_signature():
    public, x, weight = operators.remembered(weighed), leaf(), leaf()
    for args in ((x, weight), (x.detach(), weight), (x, weight.detach())):
        assert calls(public, *args, times=4) == 2
        dy = torch.autograd.grad(public(*args).sum(), [each for each in args if each.requires_grad])
        assert len(dy) == sum(each.requires_grad for each in args)
    with torch.no_grad():
        assert calls(public, x, weight, times=4) == 2
        assert not public(x, weight).requires_grad
    assert calls(public, x, weight) == 0 and public(x, weight).requires_grad
    with torch.inference_mode():
        assert not public(x, weight).requires_grad
    assert not public(x.detach(), weight.detach()).requires_grad


class Subclass(torch.Tensor):
    pass


class Look(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_function_itself_is_called_where_somebody_looks_on_or_more_than_its_tensors_matters(monkeypatch):
    public, x = operators.remembered(weighed), leaf()
    assert calls(public, x, times=3) == 2
    for onlooker in (BaseTorchFunctionMode(), profile(), forward_ad.dual_level()):
        with onlooker:
            assert calls(public, x) == 1
    torch.set_autocast_enabled("cuda", True)
    assert calls(public, x) == 1
    torch.set_autocast_enabled("cuda", False)
    for unlike in (x.as_subclass(Subclass), leaf(65)[1:], leaf(128)[::2], leaf(64).double()):
        assert calls(public, unlike) == 1
    assert calls(public, x, x) == 1
    monkeypatch.setenv("TILESCOPE_USE_TRITON", "0")
    assert calls(public, x) == 1


def test_a_dispatch_mode_sees_the_function_s_operator():
    public, x = operators.remembered(weighed), leaf()
    weigh.register_fake(lambda x, weight, factor: (torch.empty_like(x), x.new_empty(3)))
    assert calls(public, x, times=3) == 2
    with Look():
        assert calls(public, x) == 1


def twice(x: torch.Tensor) -> torch.Tensor:
    return weigh(weigh(x, None, 2.0)[0], None, 2.0)[0]


def of_a_copy(x: torch.Tensor) -> torch.Tensor:
    return weigh(x.clone(), None, 2.0)[0]


def of_a_part(x: torch.Tensor) -> torch.Tensor:
    return weigh(x[:32], None, 2.0)[0]


def of_a_constant(x: torch.Tensor) -> torch.Tensor:
    return weigh(x, x.detach(), 2.0)[0]


def and_more(x: torch.Tensor) -> torch.Tensor:
    return weigh(x, None, 2.0)[0] + 1


def nothing(x: torch.Tensor) -> torch.Tensor:
    return x


@pytest.mark.parametrize("function", [twice, of_a_copy, of_a_part, of_a_constant, and_more, nothing])
def test_what_does_more_than_apply_an_operator_to_its_tensors_is_called_every_time(function):
    def counted(x: torch.Tensor) -> torch.Tensor:
        CALLS.append(x)
        return function(x)

    public = operators.remembered(counted)
    for size in range(64, 72):
        assert calls(public, leaf(size), times=4) == 4
    assert not applied.NOTES
    # That is no reason to give up on calls without a gradient.
    with torch.no_grad():
        assert calls(public, leaf(), times=4) == (2 if function in {twice, of_a_part, of_a_constant} else 4)


def test_a_function_within_another_is_recorded_for_both():
    inner = operators.remembered(weighed)
    outer, x = operators.remembered(inner), leaf(2, 32)
    assert calls(outer, x, times=4) == 2 and calls(inner, x) == 0
    assert torch.equal(torch.autograd.grad(outer(x).sum(), x)[0], 2 * x) and not applied.NOTES


def of_a_gradient(x: torch.Tensor) -> torch.Tensor:
    """Can be applied, but not replayed where no gradient is wanted."""
    CALLS.append(x)
    return weigh(x, None, 2.0)[0] if operators.wants_grad(x) else weigh(x.clone(), None, 2.0)[0]


def of_none(x: torch.Tensor) -> torch.Tensor:
    """Can be replayed, but not applied where a gradient is wanted."""
    CALLS.append(x)
    return weigh(x.clone() if operators.wants_grad(x) else x, None, 2.0)[0]


@pytest.mark.parametrize(("function", "wanted"), [(of_a_gradient, False), (of_none, True)])
def test_calls_with_a_gradient_and_without_are_given_up_apart(function, wanted):
    kept = replays.Kept(function)
    for size in range(64, 70):
        assert calls(kept, leaf(size).requires_grad_(wanted), times=3) == 3
    kept(x=leaf(70).requires_grad_(wanted))
    assert len(kept._known) == 4  # no more signatures
    for size in range(64, 70):
        assert calls(kept, leaf(size).requires_grad_(not wanted), times=4) == 2
    assert len(kept._known) == 10
    # Without a gradient is also a leaf of which none is wanted.
    with torch.no_grad():
        assert calls(kept, leaf(), times=4) == (2 if wanted else 4)
    kept.forget()
    assert calls(kept, leaf(70).requires_grad_(wanted), times=3) == 3 and len(kept._known) == 1


def test_calls_with_a_gradient_of_which_one_can_be_repeated_are_not_given_up():
    kept = replays.Kept(lambda x: (nothing if x.numel() > 64 else weighed)(x))
    assert calls(kept, leaf(), times=4) == 2
    for size in range(65, 72):
        kept(leaf(size))
        kept(leaf(size))
    assert len(kept._known) == 8 and calls(kept, leaf()) == 0


def test_several_results_are_those_of_the_operator():
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        CALLS.append(x)
        y, saved = weigh(x.reshape(-1), None, 2.0)
        return saved, y.view(x.shape)

    public, x = operators.remembered(both), leaf(2, 32)
    assert calls(public, x, times=4) == 2
    saved, y = public(x)
    assert (saved.shape, saved.requires_grad, y.shape, y.requires_grad) == ((3,), False, (2, 32), True)


def test_calls_that_follow_each_other_as_before_are_recognized_without_a_signature(monkeypatch):
    public, args = operators.remembered(weighed), [leaf(2, 32), leaf(80), leaf(3, 64)]
    for _ in range(4):
        for x in args:
            public(x)
    monkeypatch.setattr(replays, "_kind", lambda *_: pytest.fail("a signature"))
    for _ in range(2):
        for x in args:
            assert public(x).shape == x.shape


@operators.operator("test_applied_turned")
def turned_weigh(x: torch.Tensor, weight: torch.Tensor | None, steps: Sequence[int]) -> torch.Tensor:
    y = torch.empty_like(x)
    launches.launch(scaled_kernel, (2,), y, x, weight, (1, 64), 64, float(steps[0]), BLOCK=32, num_warps=1)
    return y


def save_steps(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, _, ctx.steps = inputs


turned_weigh.register_autograd(lambda ctx, dy: (dy * ctx.steps[0], None, None), setup_context=save_steps)


def turned(x: torch.Tensor, weight: torch.Tensor | None, steps: tuple[int, ...]) -> torch.Tensor:
    """A public function of images, whose operator has channels last and takes integers, as of a convolution."""
    CALLS.append(x)
    return turned_weigh(x.permute(0, 2, 3, 1).contiguous(), weight, tuple(steps)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("shape", [(2, 4, 2, 4), (1, 64, 1, 1), (4, 1, 4, 4), (16, 4, 1, 1)])
def test_a_call_of_permuted_views_is_applied_again(shape):
    def images() -> torch.Tensor:
        return torch.randn(shape).to(memory_format=torch.channels_last).requires_grad_()

    public = operators.remembered(turned)
    assert calls(public, images(), None, (3, 5), times=4) == 2
    x = images()
    MADE.clear()
    CALLS.clear()
    y = public(x, None, (3, 5))
    assert not CALLS and [made[2:4] for made in MADE] == [(y.data_ptr(), x.data_ptr())]
    expected = turned(x, None, (3, 5))
    assert (y.shape, y.stride()) == (expected.shape, expected.stride())
    upstream = torch.randn(shape)
    assert torch.equal(torch.autograd.grad(y, x, upstream)[0], upstream * 3)
    assert calls(public, x, None, (4, 5)) == 1


def test_a_call_whose_copies_are_permuted_is_not_applied_again():
    x = torch.randn(2, 4, 2, 4).requires_grad_()
    assert calls(operators.remembered(turned), x, None, (3, 5), times=4) == 4
