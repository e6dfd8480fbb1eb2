"""A case without values is counted on inputs that were not drawn, unless something depends on them."""

import contextlib
import json

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tilescope.collectors import interpreter
from tilescope.execution import execute, launches, undrawn
from tilescope.execution.not_applicable import NotApplicable
from tilescope.execution.pytorch_traffic import NeedsData
from tilescope.interpreter import interpret
from tilescope.interpreter.blocks import NeedsValues
from tilescope.table.case import Case

from . import unseen_launches as unseen


def test_random_floats_keep_what_their_memory_holds():
    with undrawn.undrawn():
        filled, made = torch.zeros(4, dtype=torch.bfloat16).normal_(), torch.randn(2, 3, dtype=torch.float64)
        copied = torch.rand(5, 6).T.to(torch.float16)
    assert filled.tolist() == [0, 0, 0, 0]
    assert (made.shape, made.dtype, copied.stride(), copied.dtype) == ((2, 3), torch.float64, (1, 6), torch.float16)


torch.library.define("tilescope_tests::order_", "(Tensor x, Tensor(a!) order) -> ()")
torch.library.impl("tilescope_tests::order_", "CPU", lambda x, order: order.copy_(x.argsort()) and None)


@pytest.mark.parametrize(
    "depends",
    [
        lambda x: x > 0,
        lambda x: x.argmax(),
        lambda x: x.sum().item(),
        lambda x: x.view(torch.int32),
        lambda x: x.to(torch.int64),
        lambda x: torch.equal(x, x),
        lambda x: torch.zeros(4, dtype=torch.int32).copy_(x),
        lambda x: torch.randint(9, (4,)),
        lambda x: torch.dropout(x, 0.5, train=True),
        lambda x: x.tolist(),
        lambda x: np.argsort(x.numpy()),
        np.asarray,
        np.from_dlpack,
        lambda x: torch._foreach_copy_([torch.zeros(4, dtype=torch.int64)], [x]),
        lambda x: torch.randn(4, dtype=torch.complex64) == 0,
        lambda x: torch.ops.tilescope_tests.order_(x, torch.zeros(4, dtype=torch.int64)),
    ],
)
def test_other_values_than_floats_need_what_is_drawn(depends):
    with undrawn.undrawn():
        x = torch.zeros(4).normal_()
        x.new_zeros(4, dtype=torch.int32).numpy()
        with pytest.raises(NeedsData):
            depends(x)


@pytest.mark.parametrize(
    ("kernel", "workload", "drawn"),
    [("softmax", "12x781-fp32", [True, False]), ("cross_entropy", "12x781-fp32", [True, False, True])],
)
def test_count_draws_only_what_it_needs(monkeypatch, tmp_path, kernel, workload, drawn):
    tried, count = [], interpreter._count

    def counted(*args, drawn=True, **more):
        tried.append(drawn)
        return count(*args, drawn=drawn, **more)

    case, spec = Case(kernel, "triton", "forward", workload), execute.load_spec(kernel)
    monkeypatch.setattr(interpreter, "_count", counted)
    interpreter.capture(case, spec, tmp_path / "found", {})
    assert tried == drawn
    known = [record for record, _ in count(case, spec, {}, "cpu", values=False)[0]]
    found = interpreter.bounded_reading.data_of(tmp_path / "found")["launches"]
    assert found == json.loads(json.dumps(known, default=str))


@pytest.mark.parametrize(("error", "tried"), [(ValueError, [False, True]), (NotApplicable, [False])])
def test_error_on_inputs_that_are_not_drawn_is_not_the_cases(monkeypatch, error, tried):
    found = []

    def count(*_, values, drawn=True):
        found.append(drawn)
        if not drawn:
            raise error("of inputs that were not drawn")
        return [], {}

    monkeypatch.setattr(interpreter, "_count", count)
    with contextlib.suppress(NotApplicable):
        interpreter._without_values(None, None, {}, drawn=False)
    assert found == tried


@triton.jit
def _clearing_kernel(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.load(x_ptr + at)
    tl.store(x_ptr + at, 0.0)


@triton.jit
def _counting_kernel(x_ptr):
    tl.atomic_add(x_ptr, 1.0)


@triton.jit
def _bits_kernel(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr.to(tl.pointer_type(tl.int32))).to(tl.float32))


@triton.jit
def _swapping_kernel(x_ptr):
    tl.atomic_cas(x_ptr.to(tl.pointer_type(tl.int32)), 0, 1)


@pytest.mark.parametrize(
    ("kernel", "constants"),
    [(_clearing_kernel, (16,)), (_counting_kernel, ()), (_bits_kernel, ()), (_swapping_kernel, ())],
)
def test_launch_that_looks_at_memory_needs_its_values(kernel, constants):
    x = torch.ones(16)
    with launches.catch() as caught:
        kernel[(2,)](x, *constants)
    interpret.run(caught[0], meter=interpret.meter(caught[0]), values=False)
    with pytest.raises(NeedsValues):
        interpret.run(caught[0], meter=interpret.meter(caught[0]), values=False, drawn=False)


@triton.jit
def _choosing_kernel(x_ptr, chosen_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(chosen_ptr + at, (tl.load(x_ptr + at) > 0).to(tl.int32) * at)


@triton.jit
def _widening_kernel(chosen_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(chosen_ptr + at).to(tl.float32))


@pytest.mark.parametrize("gathers", [True, False])
def test_launch_that_chooses_rows_by_floats_of_an_earlier_one_needs_values(gathers):
    x, chosen, y = torch.ones(16), torch.full((16,), 1 << 30, dtype=torch.int32), torch.empty(16)
    with launches.catch() as caught:
        _choosing_kernel[(1,)](x, chosen, 16)
        if gathers:
            unseen.chosen_kernel[(1,)](x, chosen, y, 16)
        else:
            _widening_kernel[(1,)](chosen, y, 16)
    left_out = set()
    interpret.run(caught[0], meter=interpret.meter(caught[0]), values=False, left_out=left_out)
    with pytest.raises(NeedsValues) if gathers else contextlib.nullcontext():
        interpret.run(caught[1], meter=interpret.meter(caught[1]), values=False, left_out=left_out)
