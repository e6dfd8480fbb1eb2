"""Operators of PyTorch: the bytes that they move and the operations they do."""

import torch
from tilescope.execution.pytorch_traffic import CountOperators, Operation
from torch.utils.flop_counter import flop_registry


def product():
    """What is counted of a product of 3x4 and 4x5."""
    seen: list[Operation] = []
    with CountOperators(seen.append):
        torch.mm(torch.empty(3, 4, device="meta"), torch.empty(4, 5, device="meta"))
    (found,) = seen
    return found


def test_product_reads_both_operands():
    assert product() == Operation("aten.mm", (12 + 20) * 4, 15 * 4, 2 * 3 * 4 * 5)


def test_product_without_a_formula_has_unknown_operations(monkeypatch):
    """As PyTorch 2.11's formula of attention does with several query heads to a key head."""

    def refuse(*args, **kwargs):
        raise AssertionError("shapes are incompatible")

    monkeypatch.setitem(flop_registry, torch.ops.aten.mm, refuse)
    assert product() == Operation("aten.mm", (12 + 20) * 4, 15 * 4, None)
