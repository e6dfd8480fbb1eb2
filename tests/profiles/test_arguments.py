"""A kernel's arguments as blocks, and the memory that they refer to."""

import numpy as np
import pytest
import torch
from tilescope.execution.launches import Launch
from tilescope.interpreter import arguments, interpret
from triton.tools.tensor_descriptor import TensorDescriptor


@pytest.mark.parametrize(("value", "kind", "dtype"), [
    (True, "int1", np.bool_), (7, "int32", np.int32), (-(2**31), "int32", np.int32), (2**31, "int64", np.int64),
    (2**40, "int64", np.int64), (2**63, "uint64", np.uint64), (0.1, "fp32", np.float32),
])  # fmt: skip
def test_as_block_gives_tritons_types(value, kind, dtype):
    block = arguments.as_block(value)
    assert block.dtype.name == kind
    assert block.handle.data.dtype == dtype
    assert block.handle.data.tolist() == [dtype(value)]


def test_as_block_keeps_other_values():
    assert arguments.as_block(None) is None
    assert arguments.as_block("text") == "text"
    pair = arguments.as_block((1, (2.0, None)))
    assert pair[0].dtype.name == "int32"
    assert pair[1][0].dtype.name == "fp32"
    assert pair[1][1] is None


def _addresses(value):
    return {storage.data_ptr() for storage in arguments.storages(value)}


def test_storages_of_tuples_and_descriptors():
    x, y = torch.zeros(4, 4), torch.zeros(4, 4)
    given = {"a": (x[1:], 3), "b": TensorDescriptor.from_tensor(y, [4, 4]), "c": None}
    assert _addresses(given) == {x.data_ptr(), y.data_ptr()}


def test_storages_of_a_table_of_addresses():
    parts = [torch.zeros(5), torch.zeros(6)]
    table = torch.tensor([part[1:].data_ptr() for part in parts])
    apart, sparse = torch.zeros(5), torch.eye(3).to_sparse()  # a sparse tensor has no one memory to look at
    found = _addresses({"table": table, "sizes": torch.tensor([5, 6])})
    assert sparse.is_sparse
    assert {table.data_ptr(), *(part.data_ptr() for part in parts)} <= found
    assert apart.data_ptr() not in found


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
