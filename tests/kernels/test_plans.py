"""A call is planned once for tensors that are alike in all but their data, and its plan keeps none of them."""

import gc
import importlib
import weakref

import pytest
import torch
from tilescope.execution import launches, offline
from tilescope_kernels import matmul, scaled_dot_product_attention
from tilescope_kernels._shared import plans

from .releases import GLUON, PAIRS_OF_SMS

PRODUCT = importlib.import_module("tilescope_kernels.matrix_products.matmul")
ATTENTION = importlib.import_module("tilescope_kernels.attention.attention")


@pytest.fixture(autouse=True)
def gpu(monkeypatch, cuda):
    """Tensors without values that claim to be on a GPU."""
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: 0)
    cuda({"mem_get_info": lambda _: None})
    for module in (PRODUCT, ATTENTION):
        monkeypatch.setattr(module, "_PLANS", {})
    with offline.targeting("sm_90"):
        yield


def new(*shape):
    return torch.empty(shape, dtype=torch.bfloat16, device="meta")


def product(m, n, k):
    return lambda: [new(m, k), new(k, n)], matmul, {}, (PRODUCT, "_writer")


def attention(*shape, causal=True):
    options = {"is_causal": causal}
    return lambda: [new(*shape) for _ in "qkv"], scaled_dot_product_attention, options, (ATTENTION, "_writer")


CALLS = {
    "pairs": pytest.param(product(1536, 1536, 1536), marks=PAIRS_OF_SMS),
    "hopper": pytest.param(product(2048, 2048, 2048), marks=GLUON),
    "split": product(512, 512, 512),
    "copies": product(1000, 1001, 777),
    "parts and copies": product(4097, 4099, 4101),
    "triton": product(100, 100, 40),
    "attention": pytest.param(attention(2, 16, 1024, 128), marks=GLUON),
    "attention of few": pytest.param(attention(1, 16, 1024, 64), marks=GLUON),
    "attention in triton": attention(1, 8, 256, 64, causal=False),
    "attention of tiles": attention(16, 12, 256, 32, causal=False),
    "decode": attention(4, 8, 1, 128, causal=False),
}


def plain(value):
    """An argument of a launch, without what differs from call to call."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.stride()
    fields = getattr(value, "__dict__", {})
    return {name: plain(each) for name, each in fields.items()} if "block_shape" in fields else value


def unplanned(*_):
    raise AssertionError("planned again")


def launched(call, tensors, options):
    with launches.catch() as seen:
        call(*tensors, **options)
    return seen


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_second_call_launches_the_same_without_a_plan(monkeypatch, call):
    make, function, options, (module, planner) = call
    first, tensors = make(), make()
    before = launched(function, first, options)
    with monkeypatch.context() as patched:
        patched.setattr(module, planner, unplanned)
        after = launched(function, tensors, options)
    assert before
    told = [
        [(one.name, one.grid, {name: plain(value) for name, value in one.arguments.items()}) for one in seen]
        for seen in (before, after)
    ]
    assert told[0] == told[1]
    # The first launches read the first tensors alone, the second ones the second.
    for seen, own, others in ((before, first, tensors), (after, tensors, first)):
        given = [getattr(value, "base", value) for one in seen for value in one.arguments.values()]
        assert any(value is each for value in given for each in own)
        assert not any(value is each for value in given for each in others)
    kept = [weakref.ref(each) for each in first]
    del before, first, given, own, others, seen
    gc.collect()
    assert [each() for each in kept] == [None] * len(kept)


def test_attention_with_other_options_has_another_plan():
    tensors = [new(1, 8, 256, 64) for _ in "qkv"]
    found = []
    for options in ({}, {"is_causal": True}, {"scale": 0.5}, {"is_causal": True, "window": 7}):
        (launch,) = launched(scaled_dot_product_attention, tensors, options)
        found.append([launch.arguments[name] for name in ("CAUSAL", "score_scale", "window")])
    assert found[1:] == [[True, found[0][1], None], [False, found[2][1], None], [True, found[0][1], 7]]
    assert found[2][1] == pytest.approx(4 * found[0][1])


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (64, 32)}, {"dtype": torch.float16}, {"turned": True}, {"offset": 1}, {"rest": 2}
    ],
    ids=["shape", "dtype", "strides", "alignment", "rest"],
)  # fmt: skip
def test_plan_of_other_tensors_is_another(other):
    made, known = [], {}

    def ask(shape=(64, 64), dtype=torch.bfloat16, turned=False, offset=0, rest=1):
        x = torch.empty(shape[0] * shape[1] + 8, dtype=dtype)[offset:][: shape[0] * shape[1]].view(shape)
        return plans.planned(known, lambda: made.append(x) or made, (x.T if turned else x,), rest)

    for _ in range(2):
        ask()
        ask(**other)
    assert len(made) == 2


def test_plans_without_a_gpu_are_not_kept(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "get_device", lambda _: -1)
    known = {}
    assert [plans.planned(known, lambda: 7, (new(8),)) for _ in range(2)] == [7, 7]
    assert not known


def test_plans_have_a_largest_number(monkeypatch):
    monkeypatch.setattr(plans, "_MOST", 3)
    known = {}
    for size in range(10):
        plans.planned(known, lambda: 7, (new(size),))
        assert len(known) <= 3
