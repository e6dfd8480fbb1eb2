"""A kernel's arguments as blocks, and the memory that they refer to."""

import numpy as np
import pytest
import torch
from tilescope.execution.launches import Launch
from tilescope.interpreter import arguments, interpret


@pytest.mark.parametrize(("value", "kind", "dtype"), [
    (True, "int1", np.bool_), (7, "int32", np.int32), (-(2**31), "int32", np.int32), (2**31, "int64", np.int64),
    (2**40, "int64", np.int64), (2**63, "uint64", np.uint64), (0.1, "fp32", np.float32),
])  # fmt: skip
def test_as_block_gives_tritons_types(value, kind, dtype):
    block = arguments.as_block(value)
    assert block.dtype.name == kind
    assert block.handle.data.dtype == dtype
    assert block.handle.data.tolist() == [dtype(value)]


@pytest.mark.parametrize(("given", "floats"), [
    ((torch.zeros(2), 3), True),
    ((torch.zeros(2), torch.zeros(2, dtype=torch.int64)), False),
    (((torch.zeros(2), torch.zeros(2, dtype=torch.int32)), 3), False),
])  # fmt: skip
def test_floats_only_notices_integers(given, floats):
    class Function:
        @staticmethod
        def fn(first, second): ...

    assert interpret.floats_only(Launch(Function, given, {}, (1, 1, 1), {})) is floats


def test_named_tells_memory_behind_a_table_of_addresses():
    x = torch.zeros(4)
    table = torch.tensor([x.data_ptr()])
    assert arguments.named({"x": x, "table": table}, x.data_ptr()) == "the memory of x and table"
    assert arguments.named({"table": table}, x.data_ptr()) == "a tensor that table points to"
