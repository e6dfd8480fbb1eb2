"""Dispatch modes that do not make PyTorch import its compiler. Imports torch."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils._python_dispatch import TorchDispatchMode


def without_compiler(hidden: Callable[..., Any]) -> Callable[..., Any]:
    """A function that PyTorch hides from its compiler, without importing the compiler for that.

    PyTorch would import ``torch._dynamo``, which takes more than a second, at the first call. Until someone else has imported it
    there is no compiler to hide from.
    """
    plain = getattr(hidden, "__wrapped__", hidden)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        # A module that is still being imported has no ``disable`` yet.
        there = hasattr(sys.modules.get("torch._dynamo"), "disable")
        return (hidden if there else plain)(*args, **kwargs)

    return call


def _through_higher_order(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """A mode's ``__torch_dispatch__`` that calls operators of higher order, as ``wrap_triton`` has one, by what defines them."""

    @functools.wraps(dispatch)
    def call(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, HigherOrderOperator):
            return dispatch(mode, func, types, args, kwargs)
        defined = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
        if defined is None:
            return func(*args, **(kwargs or {}))
        # The mode sees the operators inside.
        with mode:
            return defined(*args, **(kwargs or {}))

    return call


class OnLooker(TorchDispatchMode):
    """A dispatch mode that does not import PyTorch's compiler, and sees the operators inside those of higher order."""

    supports_higher_order_operators = True

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "__torch_dispatch__" in cls.__dict__:
            cls.__torch_dispatch__ = _through_higher_order(without_compiler(cls.__torch_dispatch__))
