"""Data flow of floats to addresses in the compiler's text, compared with what interpreting shows."""

import pytest
import torch
import triton
import triton.language as tl
from tilescope.captures import float_flow, touched
from tilescope.execution import compiled_lines, offline

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


def text(kernel, given: dict, **constants) -> str:
    aligned = {
        name: offline._AlignedTensor(value.to("meta")) if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }
    kernel.device_caches.clear()
    with offline.targeting("sm_90"):
        found = kernel.run(**aligned, **constants, grid=(1,), warmup=True)
    kernel.device_caches.clear()
    return str(found.asm["ttir"])


@pytest.mark.parametrize(
    ("kernel", "may"),
    [
        (plain_kernel, False), (summed_kernel, False), (masked_kernel, True), (addressed_kernel, True),
        (branching_kernel, True), (carried_kernel, True), (chosen_kernel, True),
    ],
    ids=lambda value: getattr(getattr(value, "fn", None), "__name__", ""),
)  # fmt: skip
def test_addresses_masks_and_branches_that_depend_on_floats_are_found(kernel, may: bool) -> None:
    x = torch.ones(64)
    assert float_flow.may_reach(text(kernel, {"x_ptr": x, "y_ptr": x, "n": 7}, BLOCK=64)) is may


def test_a_whole_number_made_of_floats_and_written_may_be_read_as_an_address() -> None:
    given = {"x_ptr": torch.ones(64), "y_ptr": torch.ones(64, dtype=torch.int64), "n": 7}
    assert float_flow.may_reach(text(looked_up_kernel, given, BLOCK=64))


def test_a_loop_of_products_is_ruled_out_and_unknown_flow_is_not() -> None:
    given = chunk_states.arguments(batch=1, steps=128, heads=2, channels=32, state=32, chunk=64, device="cpu")
    blocks = {"BLOCK_P": 32, "BLOCK_N": 32, "BLOCK_T": 32}
    known = text(chunk_states.chunk_states_kernel, given, **blocks)
    assert not float_flow.may_reach(known)
    assert touched.multiplies({"ttir": known})
    assert not touched.multiplies(
        {"ttir": text(plain_kernel, {"x_ptr": torch.ones(64), "y_ptr": torch.ones(64), "n": 7}, BLOCK=64)}
    )
    assert float_flow.may_reach("")
    assert float_flow.may_reach(known.replace("scf.for", "scf.while"))


def test_a_line_is_parsed_into_results_operands_and_carried_values() -> None:
    text = """#loc = loc("own.py":1:1)
  tt.func public @own(%x_ptr: !tt.ptr<f32> loc("x_ptr"(#loc))) attributes {noinline = false} {
    %0:2, %1 = scf.for %i = %lo to %hi step %one iter_args(%a = %x_ptr, %b = %0#1) -> (f32, f32)  : i32 { loc(#loc)
    } else { loc(#loc)
"""
    head, (loop, other) = compiled_lines.read(text)
    assert "@own" in head
    assert (loop.results, loop.given) == (("%0#0", "%0#1", "%1"), ("%i", "%a", "%b"))
    assert loop.values == ("%lo", "%hi", "%one", "%x_ptr", "%0#1")
    assert loop.carried == (("%a", "%x_ptr"), ("%b", "%0#1"))
    assert (loop.opens, loop.closes, other.opens, other.closes) == (True, False, True, True)
    assert compiled_lines.read("no kernel") == ("", [])
