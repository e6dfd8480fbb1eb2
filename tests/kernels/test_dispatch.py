"""A dispatch mode of ours works without PyTorch's compiler, and is hidden from it where it is there."""

import subprocess
import sys
import types

import torch
from tilescope_kernels import dispatch


def test_on_looker_imports_no_compiler(monkeypatch):
    seen: list[str] = []

    class Seeing(dispatch.OnLooker):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with Seeing():
        torch.ones(2) + 1
    assert seen == ["ones", "add"] and "torch._dynamo" not in sys.modules


def test_on_looker_sees_operators_inside_higher_order_ones():
    seen: list[str] = []

    class Seeing(dispatch.OnLooker):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Seeing(), Seeing():
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


ON_META = """
import sys, types, torch
from tilescope_kernels import dispatch

class Seeing(dispatch.OnLooker):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

def softmax():
    x = torch.empty(2, 3, device="meta", requires_grad=True)
    with Seeing():
        e = (x - x.amax(-1, keepdim=True)).exp().relu()
        (e / e.sum(-1, keepdim=True)).backward(torch.empty_like(x))

softmax()
assert "torch._dynamo" not in sys.modules, "the compiler is imported"
hidden = []
sys.modules["torch._dynamo"] = torch._dynamo = types.ModuleType("torch._dynamo")
torch._dynamo.disable = lambda plain, recursive, wrapping: hidden.append(plain) or plain
softmax()
files = {plain.__code__.co_filename for plain in hidden}
assert any("_prims_common" in file for file in files), "operators are not hidden from the compiler that is there"
"""


def test_operators_on_meta_import_no_compiler():
    subprocess.run([sys.executable, "-c", ON_META], check=True)
