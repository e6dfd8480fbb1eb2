"""Looking on at operators costs nobody PyTorch's compiler, which is told of it where it is there."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch
from tilescope.execution import dispatch


@pytest.fixture
def seeing() -> tuple[type, list[str]]:
    """A mode of its own class, and the operators that it has seen."""
    seen: list[str] = []

    class Seeing(dispatch.OnLooker):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    return Seeing, seen


def test_the_first_operator_imports_no_compiler(seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, seen = seeing
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with mode():
        torch.ones(2) + 1
    assert seen == ["ones", "add"]
    assert "torch._dynamo" not in sys.modules


def test_half_an_import_hides_nothing_and_a_whole_one_does(seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    mode, seen = seeing
    monkeypatch.setitem(sys.modules, "torch._dynamo", types.ModuleType("torch._dynamo"))
    with mode():
        torch.ones(2)
    assert seen == ["ones"]
    monkeypatch.undo()
    importlib.import_module("torch._dynamo")

    before = mode.__torch_dispatch__
    with mode():
        torch.zeros(2)
    assert seen == ["ones", "zeros"]
    assert mode.__torch_dispatch__ is not before, "from now on it is what PyTorch made of it"
