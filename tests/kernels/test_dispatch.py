"""Looking on at operators, and calling them, costs nobody PyTorch's compiler, which is told of it where it is there."""

import importlib
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tilescope_kernels import dispatch

#: Each kind of call is made, watched and made again, by the function and by the dispatcher. The CPU is taken for the GPU.
CALLS = """
import sys
from tilescope_kernels._shared import operators
operators.DIRECT = "is_cpu"
import torch
from tilescope_kernels import cross_entropy, softmax
x, targets = torch.randn(2, 8, requires_grad=True), torch.tensor([1, 2])
for _ in range(3):
    softmax(x.detach())
    torch.ops.tilescope.softmax(x, "").sum().backward()
    cross_entropy(x, targets).backward()
assert "torch._dynamo" not in sys.modules
"""


@pytest.fixture
def seeing() -> tuple[type, list[str]]:
    """A mode of its own class, and the operators that it has seen."""
    seen: list[str] = []

    class Seeing(dispatch.OnLooker):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    return Seeing, seen


def test_the_first_operator_imports_no_compiler(
    seeing: tuple[type, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mode, seen = seeing
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    with mode():
        torch.ones(2) + 1
    assert seen == ["ones", "add"]
    assert "torch._dynamo" not in sys.modules


def test_operators_of_the_library_import_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = subprocess.run([sys.executable, "-c", CALLS], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def test_half_an_import_hides_nothing_and_a_whole_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def hide(plain: Callable[[], str]) -> Callable[[], str]:
        def hidden() -> str:
            told.append("hidden")
            return plain()

        hidden.__wrapped__ = plain  # type: ignore[attr-defined]
        return hidden

    call = dispatch.without_compiler(hide(lambda: "called"))
    monkeypatch.setitem(sys.modules, "torch._dynamo", types.ModuleType("torch._dynamo"))
    assert call() == "called" and not told
    monkeypatch.undo()
    importlib.import_module("torch._dynamo")
    assert call() == "called" and told == ["hidden"]


def test_what_pytorch_hides_names_what_it_hides() -> None:
    assert torch._disable_dynamo(len).__wrapped__ is len, "else the compiler is imported as ever"
