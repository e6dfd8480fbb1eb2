"""Calls of kernels that other people wrote, small enough to be interpreted: a module a library, none of which need be installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

#: Modules of this package, by the name under which each library is imported.
LIBRARIES = {
    "liger_kernel": "liger",
    "fla": "linear_attention",
    "mamba_ssm": "mamba",
    "torchao": "quantized",
    "gemlite": "low_bits",
}


@dataclass(frozen=True)
class Entry:
    """One call: ``given`` draws its arguments, and ``reference`` computes the same in plain PyTorch, None where nobody wrote one.

    Of the results the first that can be differentiated is, where an argument asks for a gradient.
    """

    library: str
    name: str
    given: Callable[[], tuple[Any, ...]]
    call: Callable[..., Any]
    reference: Callable[..., Any] | None = None
    #: The largest relative error, in norm, that the dtypes of the call allow.
    allowed: float = 1e-5


def importable(library: str) -> bool:
    """Whether the library is installed here."""
    return importlib.util.find_spec(library) is not None


def every() -> Iterator[Entry]:
    """The entries of each library that can be imported."""
    for library, module in LIBRARIES.items():
        if importable(library):
            yield from importlib.import_module(f"{__name__}.{module}").ENTRIES


def attribute(path: str) -> Any:
    """What ``module:name`` names, imported when it is asked for: some libraries look for a GPU while they are imported."""
    module, name = path.split(":")
    return getattr(importlib.import_module(module), name)


def late(path: str) -> Callable[..., Any]:
    """The function that ``module:name`` names, imported at its first call."""

    def call(*given: Any, **named: Any) -> Any:
        return attribute(path)(*given, **named)

    return call


def drawn(*shape: int, dtype: torch.dtype = torch.float32, gradient: bool = True) -> torch.Tensor:
    """A tensor of random numbers, which asks for its gradient unless told otherwise."""
    return torch.randn(*shape, dtype=dtype, device="cuda").requires_grad_(gradient)


def first(result: Any) -> Any:
    """The first of several results."""
    return result[0] if isinstance(result, (tuple, list)) else result
