"""A dispatch mode of ours works without PyTorch's compiler, and is hidden from it where it is there."""

import sys
import types

import torch
from tilescope_kernels import dispatch


class Seeing(dispatch.OnLooker):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_on_looker_imports_no_compiler(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with Seeing(seen := []):
        torch.ones(2) + 1
    assert seen == ["ones", "add"] and "torch._dynamo" not in sys.modules


def test_on_looker_sees_operators_inside_higher_order_ones():
    with Seeing(seen := []), Seeing(seen):
        assert torch.ops.higher_order.wrap(lambda x: x + 1, torch.ones(2)).tolist() == [2, 2]
    assert seen.count("add") == 2


def test_without_compiler_hides_once_the_compiler_is_whole(monkeypatch):
    hidden_calls: list[str] = []

    def hide(plain):
        def hidden():
            hidden_calls.append("hidden")
            return plain()

        hidden.__wrapped__ = plain
        return hidden

    call = dispatch.without_compiler(hide(lambda: "called"))
    compiler = types.ModuleType("torch._dynamo")
    monkeypatch.setitem(sys.modules, compiler.__name__, compiler)
    assert call() == "called" and not hidden_calls
    compiler.disable = None
    assert call() == "called" and hidden_calls == ["hidden"]
