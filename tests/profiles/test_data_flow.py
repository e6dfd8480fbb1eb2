"""Data flow in the compiler's text: accessed parameters, and floats that decide addresses, masks and branches."""

import pytest
import torch
import triton
import triton.language as tl
from tilescope.captures.data_flow import Flow
from tilescope.execution import offline

from benchmarks import chunk_states


@triton.jit
def plain_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
    tl.store(y_ptr + offsets, tl.where(x > 0, x, 0.1 * x), mask=offsets < n)


@triton.jit
def masked_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets)
    tl.store(y_ptr + offsets, x, mask=x > 0)


@triton.jit
def addressed_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    bucket = (tl.load(x_ptr + offsets) * 4).to(tl.int32)
    tl.atomic_add(y_ptr + bucket, 1.0)


@triton.jit
def branching_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    if tl.max(tl.load(x_ptr + offsets)) > 1:
        tl.store(y_ptr + offsets, 1.0)


@triton.jit
def carried_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at, total = 0, 0.0
    for _ in range(n):
        value = tl.load(x_ptr + at)
        total += value
        at = value.to(tl.int32)
    tl.store(y_ptr, total)


@triton.jit
def summed_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at, total = x_ptr, 0.0
    for _ in range(n):
        total += tl.load(at)
        at += 2
    tl.store(y_ptr, total)


@triton.jit
def chosen_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    where = 0
    if n > 3:
        where = tl.load(x_ptr).to(tl.int32)
    tl.store(y_ptr + where, 1.0)


@triton.jit
def looked_up_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.argmax(tl.load(x_ptr + offsets), 0))


@triton.jit
def halving_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    x = tl.load(x_ptr)
    while x > 1:
        x = x / 2
    tl.store(y_ptr, x)


def flow(kernel, given, **constants):
    aligned = {
        name: offline.AlignedTensor(value.to("meta")) if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }
    kernel.device_caches.clear()
    with offline.targeting("sm_90"):
        found = kernel.run(**aligned, **constants, grid=(1,), warmup=True)
    kernel.device_caches.clear()
    return Flow({"ttir": found.asm["ttir"]})


@pytest.mark.parametrize(
    ("kernel", "by_floats"),
    [
        (plain_kernel, False), (summed_kernel, False), (masked_kernel, True), (addressed_kernel, True),
        (branching_kernel, True), (carried_kernel, True), (chosen_kernel, True), (halving_kernel, True),
    ],
    ids=lambda value: getattr(getattr(value, "fn", None), "__name__", ""),
)  # fmt: skip
def test_flow_of_floats_to_accesses_is_found(kernel, by_floats):
    found = flow(kernel, {"x_ptr": torch.ones(64), "y_ptr": torch.ones(64), "n": 7}, BLOCK=64)
    assert found.by_floats is by_floats
    atomic = ["y_ptr"] if kernel is addressed_kernel else []
    assert found.touched == {"read": ["x_ptr", *atomic], "written": ["y_ptr"]}


def test_flow_of_a_stored_integer_may_be_an_address():
    given = {"x_ptr": torch.ones(64), "y_ptr": torch.ones(64, dtype=torch.int64), "n": 7}
    assert flow(looked_up_kernel, given, BLOCK=64).by_floats


def test_flow_of_a_loop_of_products_is_ruled_out():
    given = chunk_states.arguments(batch=1, steps=128, heads=2, channels=32, state=32, chunk=64, device="cpu")
    found = flow(chunk_states.chunk_states_kernel, given, BLOCK_P=32, BLOCK_N=32, BLOCK_T=32)
    assert not found.by_floats
    assert found.touched == {"read": ["b_ptr", "cum_ptr", "dt_ptr", "x_ptr"], "written": ["s_ptr"]}


def test_flow_without_a_text_is_unknown():
    found = Flow({})
    assert (found.by_floats, found.touched) == (True, None)
