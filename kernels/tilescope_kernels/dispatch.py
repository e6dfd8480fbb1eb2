"""Looking on at PyTorch's operators, and being one. Imports torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


def without_compiler(hidden: Callable[..., Any]) -> Callable[..., Any]:
    """What PyTorch hides from its compiler, without the import of that where nobody else has it.

    PyTorch imports its compiler for that at the first call, for 1.3 seconds of a CPU. Where it is not imported there is nothing to
    hide from.
    """
    plain = getattr(hidden, "__wrapped__", hidden)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        # While it is being imported it cannot hide anything either.
        there = hasattr(sys.modules.get("torch._dynamo"), "disable")
        return (hidden if there else plain)(*args, **kwargs)

    return call


class OnLooker(TorchDispatchMode):
    """A dispatch mode that does not import PyTorch's compiler where nobody else has."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__torch_dispatch__" in cls.__dict__:
            cls.__torch_dispatch__ = without_compiler(cls.__torch_dispatch__)
